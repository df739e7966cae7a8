// Verdict: the evaluator's answer on one candidate: status, first failed gate, correctness figures, timing.
//
// Thread-safety: a value.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dispatch/base/status.h"
#include "dispatch/definition.h"
#include "dispatch/kernel.h"
#include "evolve/digest.h"

namespace niche::evolve {

// Gates in the order they are passed, cheapest first. The first failure ends the evaluation.
enum class Gate : uint8_t {
  kParse = 0,    // size, encoding, entry symbols
  kDuplicate,    // the same source or machine code was judged before
  kCompile,      // the compiler refused, or ran past its limits
  kBinary,       // symbols, constructors, writable globals, raw system calls
  kSmoke,        // one small case between guard pages: crash, hang, out of bounds, unwritten or changed bytes
  kScreen,       // a few timed pairs: clearly slower than the best fallback
  kCorrectness,  // the error bound over the Guard's points and all distributions
  kDeterminism,  // two runs, or two thread splits, differ in a bit
  kTiming,       // the e-process: not faster, or the budget ended first
  kConfirm,      // the winner was not faster on fresh data
  kNone,         // no gate failed
};
inline constexpr int kGateCount = static_cast<int>(Gate::kNone);
const char* gate_name(Gate gate);  // "parse", "duplicate", ...

enum class VerdictStatus : uint8_t {
  kFaster,     // verified and faster than the best fallback, with evidence
  kNotFaster,  // right, and not faster
  kAmbiguous,  // right; the budget ended before the evidence was enough
  kRejected,   // failed a gate before timing
};
const char* verdict_name(VerdictStatus status);  // "FASTER", ...

// Timing at one Problem.
struct PointTiming {
  std::vector<int64_t> var_axes;  // in Definition::var_axes() order
  std::string fallback;           // the best form here
  double fallback_ns = 0;         // medians, in the judged cache state
  double kernel_ns = 0;
  double speedup = 1;              // median of paired ratios fallback / kernel
  double ci_low = 1, ci_high = 1;  // 95 % paired bootstrap
  double cold_speedup = 0;         // the other cache state; 0: not measured
  int pairs = 0;
  VerdictStatus status = VerdictStatus::kAmbiguous;
};

// A case at which a candidate was wrong: what OpSpec::make_inputs needs to make its inputs again
// (judge/failed_case.h writes them to files).
struct FailedCase {
  std::vector<int64_t> var_axes;  // in Definition::var_axes() order
  int distribution = 0;
  uint64_t seed = 0;
  uint64_t constant_seed = 0;  // not 0: of the arguments that stay constant between calls
};

struct Verdict {
  VerdictStatus status = VerdictStatus::kRejected;
  Gate failed_gate = Gate::kNone;
  std::string
      reason;  // what, which, where: "output 'y' element 4097 of 8192 not written at M=3 (distribution 1)"
  double max_error = 0;  // worst over points, in units of the bound (<= 1 passes)
  double rms_error = 0;
  int correctness_points = 0;
  dispatch::Guard guard;  // clipped to what was verified
  std::vector<PointTiming> timing;
  double e_value = 0;  // evidence for FASTER, traffic-weighted problems pooled
  double compile_ms = 0;
  double evaluate_ms = 0;
  std::optional<FailedCase> failed_case;
  std::optional<Digest> digest;  // of a candidate for a GPU that was timed
  std::string sandbox;           // which containments held: "rlimits+landlock+seccomp"

  bool faster() const { return status == VerdictStatus::kFaster; }
  std::string to_json() const;
  static dispatch::Result<Verdict> from_json(const std::string& text);
};

// The same for people: some lines, the gates in their order with the first failure, errors against the bound, times, where
// it may serve. Axes are named as `definition` names them.
std::string verdict_text(const Verdict& verdict, const dispatch::Definition& definition);

}  // namespace niche::evolve
