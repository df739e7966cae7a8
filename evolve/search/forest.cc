#include "evolve/search/forest.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace niche::evolve::search {

void Forest::fit(std::span<const float> rows, int width, std::span<const double> targets, Rng& rng) {
  splits_.clear();
  roots_.clear();
  if (targets.empty()) return;
  std::vector<int> sample(targets.size());
  for (int t = 0; t < tree_count_; ++t) {
    std::iota(sample.begin(), sample.end(), 0);
    roots_.push_back(grow(rows, width, targets, sample, rng));
  }
}

int Forest::grow(std::span<const float> rows, int width, std::span<const double> targets,
                 std::span<int> sample, Rng& rng) {
  const auto at = [&](int row, int feature) {
    return rows[static_cast<size_t>(row) * static_cast<size_t>(width) + static_cast<size_t>(feature)];
  };
  const auto n = static_cast<double>(sample.size());
  double sum = 0, lo_y = std::numeric_limits<double>::infinity(), hi_y = -lo_y;
  for (int row : sample) {
    const double y = targets[static_cast<size_t>(row)];
    sum += y;
    lo_y = std::min(lo_y, y);
    hi_y = std::max(hi_y, y);
  }
  const int index = static_cast<int>(splits_.size());
  splits_.push_back({-1, 0, 0, 0, sum / n});
  if (sample.size() < 2 || hi_y - lo_y < 1e-12) return index;

  int best_feature = -1;
  float best_threshold = 0;
  double best_gain = -1;
  for (int f = 0; f < width; ++f) {
    float lo = at(sample[0], f), hi = lo;
    for (int row : sample) lo = std::min(lo, at(row, f)), hi = std::max(hi, at(row, f));
    if (!(hi > lo)) continue;
    const auto threshold = static_cast<float>(rng.uniform(lo, hi));
    double left_sum = 0, left_n = 0;
    for (int row : sample)
      if (at(row, f) <= threshold) left_sum += targets[static_cast<size_t>(row)], ++left_n;
    if (left_n == 0 || left_n == n) continue;
    // Reduction of the squared error: between-group sum of squares.
    const double right_sum = sum - left_sum, right_n = n - left_n;
    const double gain = left_sum * left_sum / left_n + right_sum * right_sum / right_n - sum * sum / n;
    if (gain > best_gain) best_gain = gain, best_feature = f, best_threshold = threshold;
  }
  if (best_feature < 0) return index;  // equal rows with different targets: their mean

  const auto middle = std::partition(sample.begin(), sample.end(),
                                     [&](int row) { return at(row, best_feature) <= best_threshold; });
  const auto left_size = static_cast<size_t>(middle - sample.begin());
  const int left = grow(rows, width, targets, sample.first(left_size), rng);
  const int right = grow(rows, width, targets, sample.subspan(left_size), rng);
  Split& split = splits_[static_cast<size_t>(index)];
  split.feature = best_feature;
  split.threshold = best_threshold;
  split.left = left;
  split.right = right;
  return index;
}

Forest::Prediction Forest::predict(std::span<const float> row) const {
  if (roots_.empty()) return {};
  double sum = 0, squares = 0;
  for (int root : roots_) {
    const Split* s = &splits_[static_cast<size_t>(root)];
    while (s->feature >= 0)
      s = &splits_[static_cast<size_t>(row[static_cast<size_t>(s->feature)] <= s->threshold ? s->left
                                                                                            : s->right)];
    sum += s->value;
    squares += s->value * s->value;
  }
  const auto n = static_cast<double>(roots_.size());
  const double mean = sum / n;
  return {mean, std::sqrt(std::max(0.0, squares / n - mean * mean))};
}

}  // namespace niche::evolve::search
