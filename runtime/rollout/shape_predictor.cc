#include "runtime/rollout/shape_predictor.h"

#include <algorithm>
#include <cmath>

namespace niche::rollout {

double ShapePredictor::line(double x) const {
  // A slope outside [0, 1.5] is noise: time never falls with work, and seldom grows faster than it.
  const double slope = var_x_ > 1e-6 ? std::clamp(cov_ / var_x_, 0.0, 1.5) : 1.0;
  return mean_y_ + slope * (x - mean_x_);
}

double ShapePredictor::log_ratio(uint64_t shape_hash, double work, double ns) {
  const double x = std::log(work), y = std::log(ns);
  auto it = shapes_.find(shape_hash);
  double ratio = 0;
  if (it != shapes_.end() && it->second.calls >= kOwnMeanAfter)
    ratio = y - it->second.mean;
  else if (weight_ > 0)
    ratio = y - line(x);

  if (it == shapes_.end() && shapes_.size() < shapes_max_) it = shapes_.emplace(shape_hash, Shape{}).first;
  if (it != shapes_.end()) {
    Shape& s = it->second;
    ++s.calls;
    s.mean += (y - s.mean) * std::max(1.0 / static_cast<double>(s.calls), kForget);
  }
  weight_ = weight_ * (1 - kForget) + 1;
  const double gain = 1 / weight_, dx = x - mean_x_, dy = y - mean_y_;
  mean_x_ += gain * dx;
  mean_y_ += gain * dy;
  var_x_ += gain * (dx * (x - mean_x_) - var_x_);
  cov_ += gain * (dx * (y - mean_y_) - cov_);
  return ratio;
}

}  // namespace niche::rollout
