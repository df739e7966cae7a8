// AdjacentPairs: makes pairs (challenger, control) out of the stream of exposed observations, so that under
// "no difference" either side of a pair is as likely to be the slower one, given everything before the pair
// began.
//
// Rule: hold one observation. The next of the same arm replaces it; the next of the other arm completes a
// pair, and the slot is empty again. Why it is fair: when the slot is empty, the next observation's arm is a
// fair coin (the arms are equal shares of a hash's range), and from there the rule treats both arms alike. So
// swapping all labels swaps the pair and nothing else, whatever the times did meanwhile.
//
// Why not two queues, first with first: when one arm is ahead by k, its half of every pair is older by k
// arrivals; while the machine slows down (or speeds up) the arm that is ahead wins (or loses) pair after
// pair, and an e-process takes that for evidence. tests/runtime/rollout simulates it: under drift and bursts, with
// nothing different, 54 of 300 streams reach the evidence that promotes, against 0 here. Cost of fairness: a pair for three observations on average, not
// for two.
//
// Thread-safety: one owner. Bound: one observation.
#pragma once

#include <optional>

#include "runtime/rollout/observation.h"

namespace niche::rollout {

struct Pair {
  double challenger = 0, control = 0;  // log ratios
};

class AdjacentPairs {
 public:
  std::optional<Pair> add(const Observation& o) {
    const Observation held = waiting_;
    if (!holds_ || held.arm == o.arm) {
      waiting_ = o;
      holds_ = true;
      return std::nullopt;
    }
    holds_ = false;
    return o.arm == Arm::kChallenger ? Pair{o.log_ratio, held.log_ratio} : Pair{held.log_ratio, o.log_ratio};
  }

 private:
  Observation waiting_;
  bool holds_ = false;
};

}  // namespace niche::rollout
