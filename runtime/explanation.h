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
  // "incumbent" (it answers this problem, or its Guard does not hold here), "incumbent elsewhere", "verified, waiting
  // for its rollout", the line of its rollout ("canary: 41 pairs, ..."), or what became of it: "quarantined", "held",
  // "superseded", "refused", ...
  std::string state;
  std::string reason;  // why it is in that state, or cannot serve this problem
  double kernel_ns = 0,
         fallback_ns = 0;        // at admission, at the measured point that is nearest to the problem
  std::string guard;             // "M=1..4096, pointers at 64 bytes": what it was verified on
  int64_t verified_unix_ns = 0;  // when its Verdict was given; 0: not known here
};

struct Explanation {
  std::string definition;  // "rms_norm.f32.N4096.eps1e-06"
  std::string problem;     // "M=17"
  std::string kernel;      // what serves: a kernel's name, or "fallback:<form>"
  std::string rung;        // the rung of the ladder: "exact", "region", "fallback", "forced", as in metrics
  std::string why;         // one sentence
  std::string rollout;     // of the route: "none", "shadow", "canary 10 %", "incumbent"
  std::vector<ExplainedKernel> kernels;
  std::string session;    // "running, 41 tried, 2 kernels", "planned", "none: ..." with its reason
  std::string evolution;  // "on" or "off: <reason>"
  std::string cache;      // "DIR (12 kernels)", "DIR: nothing of ...", "none: ..." or "unusable: ..."

  std::string to_text() const;
  std::string to_json() const;
};

}  // namespace niche
