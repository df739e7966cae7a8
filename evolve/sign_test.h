// SignTest: a sequential test of "A is slower than B" on paired times, valid at any time it is looked at,
// whatever the noise. Used by the evaluator; live traffic, whose noise hides small differences from it, is judged by
// runtime/rollout/evidence.h.
//
// Each pair is a bet on which side was quicker; the order within a pair must have been random. E-values mix
// five betting fractions: E_n = 1/5 sum_g prod_i (p_g / 0.5)^win ((1 - p_g) / 0.5)^loss, p_g in {.6, .7, .8,
// .9, .97}. Under the null (a win by more than the margin is at most as likely as not) E is a
// supermartingale, so P(E ever >= 1/alpha)
// <= alpha (Ville). Source: Waudby-Smith and Ramdas, betting e-processes; figures in docs/evaluation.md.
//
// Thread-safety: a value; one writer. Cost: some 100 ns a pair, 100 bytes, no allocation.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace niche::evolve {

class SignTest {
 public:
  // `margin`: relative difference that counts as a win, 0.01 for 1 %. Smaller differences count against both
  // sides.
  explicit SignTest(double margin = 0.01);

  // One pair: time of A (the incumbent, the fallback) and of B (the challenger, the kernel), any unit. Pairs
  // with a time that is not positive and finite are ignored.
  void add(double time_a, double time_b);

  double e_faster() const {
    return e_value(faster_);
  }  // evidence that B is quicker than A by more than the margin
  double e_slower() const { return e_value(slower_); }  // and that it is slower by more than the margin
  // The largest value each ever had: what Ville's bound speaks of.
  double e_faster_max() const { return faster_max_; }
  double e_slower_max() const { return slower_max_; }
  int64_t pairs() const { return pairs_; }
  int64_t wins() const { return wins_; }      // B quicker by more than the margin
  int64_t losses() const { return losses_; }  // B slower by more than the margin

 private:
  using Logs = std::array<double, 5>;
  static double e_value(const Logs& logs);
  double log_margin_;
  Logs faster_{}, slower_{};
  double faster_max_ = 1, slower_max_ = 1;
  int64_t pairs_ = 0, wins_ = 0, losses_ = 0;
};

// Pairs that a true win probability `p` > 1/2 needs on average until E >= 1/alpha; for planning an exposure.
double sign_test_expected_pairs(double p, double alpha);

struct RatioInterval {
  double median = 1, low = 1, high = 1;
};
// Median of the paired ratios time_a / time_b (> 1: B is quicker) and its percentile bootstrap interval.
// Deterministic in `seed`. Pairs beyond the first 4,096 are ignored. Cost: resamples x pairs x some ns. No
// pair: {1, 1, 1}.
RatioInterval bootstrap_ratio(std::span<const double> time_a, std::span<const double> time_b, uint64_t seed,
                              int resamples = 2000, double confidence = 0.95);

}  // namespace niche::evolve
