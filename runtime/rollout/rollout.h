// Rollout: one challenger's way from shadow through canary to incumbent, or out.
//
// A state machine without clock, I/O or randomness: time, traffic and evidence are given, the answer is a
// Decision that the caller carries out (Route::set_state, roll_back, quarantine). Rules (docs/rollout.md):
//  - shadow until enough comparisons matched;
//  - canary starts at the share that gives about five exposed calls a second, at most 10 %, at least 0.1 %
//    above 5,000 calls a second, and rises with evidence: 1 %, 10 %, 50 %;
//  - promoted when the e-value for FASTER is 100, the winsorised mean ratio's upper bound is below 1, and
//    the challenger's p99 is at most 1.05 times the control's;
//  - rolled back and quarantined at once on an e-value for SLOWER of 20 with a margin of 1 %;
//  - rolled back without quarantine when it could not be proven within the bounds.
// A wrong answer needs no evidence: who finds one (ShadowChecker) has the kernel taken out whatever its stage.
//
// Both e-values hold at every look (Ville): a kernel that is no different is promoted with probability at
// most 1 %, and a kernel that is not slower is condemned with probability at most 5 %.
//
// Thread-safety: one owner. Cost: some 300 ns an observation. Bound: 9 KB.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/rollout/arm_stats.h"
#include "runtime/rollout/evidence.h"
#include "runtime/rollout/pairing.h"

namespace niche::rollout {

struct Policy {
  int shadow_matches_min = 3;
  // Without one comparison for so long (inputs too large for the arena, say) the canary begins all the same:
  // the kernel was verified, and the canary's first share is small.
  int64_t shadow_wait_ns = int64_t{8} * 1'000'000'000;

  double exposed_per_s = 5;
  double first_share_max = 0.10, busy_share = 0.001, busy_calls_per_s = 5000;
  // A step up wants this many pairs since the last one, and this evidence; or, failing the evidence, patience
  // without a sign of harm: a small gain needs exposure before it can show.
  int step_pairs_min = 8;
  int step_pairs_patient = 200;

  double margin = 0.01;
  double e_promote = 100, e_rollback = 20;
  double tail_slack = 1.05;
  int tail_observations_min = 200;  // an arm; a p99 of fewer is a guess
  int64_t canary_ns_min = 200'000'000;
  int64_t pairs_max = 20'000;
  int64_t canary_ns_max = int64_t{3600} * 1'000'000'000;
};

enum class Stage : uint8_t { kShadow, kCanary, kIncumbent, kRolledBack };
const char* stage_name(Stage stage);

enum class Cause : uint8_t {
  kNone,
  kSlower,     // e-value for SLOWER
  kNotProven,  // the bounds of pairs or time ended it
  kWithdrawn,  // taken out by the caller, for a reason of its own
};
const char* cause_name(Cause cause);

struct Decision {
  Stage stage = Stage::kShadow;
  double share = 0;  // of calls (or requests) for the challenger, and as much for the control arm
  Cause cause = Cause::kNone;
  bool quarantine = false;  // durably, for this environment
  bool changed = false;     // stage or share differ from the decision before
};

class Rollout {
 public:
  Rollout(const Policy& policy, int64_t now_ns);

  // The traffic of the route: calls (requests, under sticky assignment) a second. Call it once a tick; it
  // alone moves from shadow to canary and enforces bounds of time.
  Decision tick(double calls_per_s, int64_t now_ns);
  // Evidence. After kIncumbent or kRolledBack, observations are ignored.
  Decision observe(const Observation& o, int64_t now_ns);
  Decision shadow_match();
  // Begins in canary, at half and half: for an incumbent that is suspected and was taken back to be judged
  // again.
  Decision start_in_canary(int64_t now_ns);

  const Decision& decision() const { return decision_; }
  // Why it stands where it stands, in one line: "canary 10 %: 41 pairs, mean ratio 0.71 (< 0.78), e-faster
  // 310, p99 0.9 of control's; waits for 12 observations of p99".
  std::string explain() const;

  int64_t pairs() const { return test_.pairs(); }
  double e_faster() const { return test_.e_faster(); }
  double e_slower() const { return test_.e_slower(); }
  double mean_ratio() const { return mean_.ratio(); }
  double tail_ratio() const;  // p99 challenger / control; 0: not enough yet

 private:
  Decision set(Stage stage, double share);
  Decision out(Cause cause, const std::string& what);
  double first_share(double calls_per_s) const;
  double next_share() const;
  bool ready() const;

  Policy policy_;
  int64_t born_ns_, canary_ns_ = 0;
  Decision decision_;
  std::string why_;
  int64_t matches_ = 0;
  int64_t pairs_at_step_ = 0;
  AdjacentPairs pairing_;
  PairEvidence test_;
  MeanBound mean_;
  ArmTail challenger_, control_;
};

}  // namespace niche::rollout
