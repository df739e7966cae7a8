#include "evolve/session/objective.h"

#include <algorithm>
#include <numeric>

namespace niche::evolve {

Objective::Objective(std::vector<double> weights) : weights_(std::move(weights)) {
  if (weights_.size() < 2) return;
  turns_.resize(weights_.size());
  std::iota(turns_.begin(), turns_.end(), 0);
  const auto weight = [this](int p) { return weights_[static_cast<size_t>(p)]; };
  std::stable_sort(turns_.begin(), turns_.end(), [&](int a, int b) { return weight(a) > weight(b); });
  if (turns_.size() > kFocusesMax) turns_.resize(kFocusesMax);
  std::erase_if(turns_, [&](int p) { return weight(p) < kFocusWeightMin; });
}

double Objective::of(const std::vector<double>& costs) const {
  if (focus_ >= 0) return costs[static_cast<size_t>(focus_)];
  double sum = 0;
  for (size_t p = 0; p < weights_.size(); ++p) sum += weights_[p] * costs[p];
  return sum;
}

bool Objective::advance() {
  focus_ = next_ < turns_.size() ? turns_[next_++] : -1;
  return focus_ >= 0;
}

}  // namespace niche::evolve
