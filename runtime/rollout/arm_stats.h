// ArmTail and MeanBound: what promotion asks beyond the sign test. The sign test sees how often the
// challenger is quicker, not by how much: a kernel that is 5 % quicker in nine calls of ten and twice as slow
// in the tenth passes it and is a loss.
//
// Thread-safety: one owner. Bounds: 4 KB an arm. Cost: some ns an observation.
#pragma once

#include <array>
#include <cstdint>

namespace niche::rollout {

// Quantiles of exp(log_ratio) in buckets of 1 %, from e^-5 to e^5; what lies outside counts in the last
// bucket.
class ArmTail {
 public:
  void add(double log_ratio);
  int64_t count() const { return count_; }
  // Upper edge of the bucket that holds the q-quantile, as a time ratio; 0 when empty.
  double quantile(double q) const;

 private:
  static constexpr int kBuckets = 1000;
  static constexpr double kWidth = 0.01, kLow = -5;
  std::array<uint32_t, kBuckets> buckets_{};
  int64_t count_ = 0;
};

// Mean of challenger minus control, in units of the predicted time, each winsorised at kCap times its
// prediction: one stall of a second must not decide, a tail of two times must. The bound is an asymptotic
// confidence sequence (Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas, 2021): it may be looked at after every
// pair.
class MeanBound {
 public:
  static constexpr double kCap = 4;
  explicit MeanBound(double alpha = 0.025) : alpha_(alpha) {}

  void add(double challenger_log_ratio, double control_log_ratio);
  int64_t pairs() const { return n_; }
  // Of mean(challenger) / mean(control). 1 and infinity before there is enough to say anything.
  double ratio() const;
  double ratio_upper() const;

 private:
  double half_width() const;
  double alpha_;
  int64_t n_ = 0;
  double challenger_sum_ = 0, control_sum_ = 0;
  double mean_ = 0, m2_ = 0;  // Welford, of the differences
};

}  // namespace niche::rollout
