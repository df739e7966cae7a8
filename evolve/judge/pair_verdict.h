// PairVerdict: when pairs of times are enough, and what they say: FASTER by the e-process, NOT_FASTER by its
// mirror or when the interval lies below the margin after 48 pairs, else AMBIGUOUS. The rule of every timing
// gate, and what A/A trials put to the test (bench/judge).
//
// Pure but for the bootstrap's cost. Thread-safety: one owner.
#pragma once

#include <span>
#include <vector>

#include "evolve/judge/bench.h"
#include "evolve/judge/clock_check.h"
#include "evolve/sign_test.h"
#include "evolve/verdict.h"

namespace niche::evolve::judge {

class PairVerdict {
 public:
  // Evidence for SLOWER that ends a problem: what rolls a kernel back on live traffic too (runtime/rollout/rollout.h).
  static constexpr double kSlowerEvidence = 20;
  // Do dropped pairs count with the others? Where fewer than a quarter are quiet: on a machine that disturbs nearly
  // every call, or with outputs that come from fresh pages each time. Their order was random, so that the test stays
  // valid; it only needs more of them.
  static bool all_count(std::span<const PairSample> pairs);
  // `e_stop`: evidence that is enough for FASTER.
  PairVerdict(double margin, double e_stop, uint64_t seed)
      : margin_(margin), e_stop_(e_stop), seed_(seed), test_(margin) {}

  // More pairs. Not kAmbiguous: decided.
  VerdictStatus add(std::span<const PairSample> pairs);

  VerdictStatus status() const { return status_; }
  int taken() const { return static_cast<int>(all_.size()); }  // dropped ones as well
  int pairs() const { return static_cast<int>(fallback_.size()); }
  double e_faster() const { return test_.e_faster(); }
  double fallback_ns() const { return median_of(fallback_); }
  double kernel_ns() const { return median_of(kernel_); }
  // Lower quartiles: what other work on the machine adds to an observation is not in them.
  ClaimedTimes claimed(bool cold) const;
  const RatioInterval& interval() const { return interval_; }

 private:
  double margin_, e_stop_;
  uint64_t seed_;
  std::vector<PairSample> all_;
  std::vector<double> fallback_, kernel_;  // of the pairs that count
  SignTest test_;
  RatioInterval interval_;
  VerdictStatus status_ = VerdictStatus::kAmbiguous;
};

}  // namespace niche::evolve::judge
