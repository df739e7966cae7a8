#include "runtime/rollout/arm_stats.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace niche::rollout {

void ArmTail::add(double log_ratio) {
  const double at = (log_ratio - kLow) / kWidth;
  const int bucket = at < 0 ? 0 : at >= kBuckets ? kBuckets - 1 : static_cast<int>(at);
  ++buckets_[static_cast<size_t>(bucket)];
  ++count_;
}

double ArmTail::quantile(double q) const {
  if (count_ == 0) return 0;
  const auto rank = static_cast<int64_t>(std::ceil(q * static_cast<double>(count_)));
  int64_t seen = 0;
  for (int i = 0; i < kBuckets; ++i) {
    seen += buckets_[static_cast<size_t>(i)];
    if (seen >= rank) return std::exp(kLow + kWidth * (i + 1));
  }
  return std::exp(kLow + kWidth * kBuckets);
}

void MeanBound::add(double challenger_log_ratio, double control_log_ratio) {
  const double b = std::min(std::exp(challenger_log_ratio), kCap);
  const double a = std::min(std::exp(control_log_ratio), kCap);
  ++n_;
  challenger_sum_ += b;
  control_sum_ += a;
  const double difference = b - a, delta = difference - mean_;
  mean_ += delta / static_cast<double>(n_);
  m2_ += delta * (difference - mean_);
}

double MeanBound::half_width() const {
  constexpr double kRhoSquared = 0.05;  // tightest around 50 to 200 pairs
  const double n = static_cast<double>(n_), nr = n * kRhoSquared;
  const double sigma = std::sqrt(m2_ / (n - 1));
  return sigma * std::sqrt(2 * (nr + 1) / (n * nr) * std::log(1 + std::sqrt(nr + 1) / (2 * alpha_)));
}

double MeanBound::ratio() const { return n_ == 0 ? 1 : challenger_sum_ / control_sum_; }

double MeanBound::ratio_upper() const {
  if (n_ < 8) return std::numeric_limits<double>::infinity();  // a variance of fewer says nothing
  return 1 + (mean_ + half_width()) / (control_sum_ / static_cast<double>(n_));
}

}  // namespace niche::rollout
