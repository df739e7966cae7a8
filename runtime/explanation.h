// Explanation: why a Problem is served by what serves it. Filled by Runtime::explain and by `niche explain`.
//
// Thread-safety: a value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace niche {

// One kernel that could serve the Problem, or is known and may not.
struct ExplainedKernel {
  std::string name;
  std::string state;  // "incumbent", "canary", "shadow", "probation", "quarantined", "outside its guard", ...
  std::string reason;                     // why it is in that state
  double kernel_ns = 0, fallback_ns = 0;  // at admission
};

struct Explanation {
  std::string definition;  // "rms_norm.f32.N4096.eps1e-06"
  std::string problem;     // "M=17"
  std::string kernel;      // what serves: a kernel's name, or "fallback:<form>"
  std::string rung;  // the rung of the ladder: "exact", "region", "fallback", "disabled", ... as in metrics
  std::string why;   // one sentence
  std::string rollout;  // "none", "shadow", "canary 10 %", "incumbent"
  std::vector<ExplainedKernel> kernels;
  std::string session;    // "running since 3.2 s, 41 tried", "planned", "none: ..." with its reason
  std::string evolution;  // "on" or "off: <reason>"
  std::string cache;      // "DIR (12 kernels)", or "unusable: <reason>"

  std::string to_text() const;
  std::string to_json() const;
};

}  // namespace niche
