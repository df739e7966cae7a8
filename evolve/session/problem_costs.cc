#include "evolve/session/problem_costs.h"

#include <algorithm>
#include <cmath>

namespace niche::evolve {

ProblemCosts::ProblemCosts(const std::vector<SeenProblem>& problems) {
  double total = 0;
  for (const SeenProblem& p : problems) total += p.weight > 0 ? p.weight : 0;
  for (const SeenProblem& p : problems) {
    axes_.push_back(p.var_axes);
    weights_.push_back(total > 0 ? (p.weight > 0 ? p.weight : 0) / total
                                 : 1.0 / static_cast<double>(problems.size()));
  }
}

// `timed` holds 0 where nothing is known.
std::vector<double> ProblemCosts::fill(const std::vector<double>& timed) const {
  double sum = 0, weight = 0;
  for (size_t p = 0; p < timed.size(); ++p) {
    if (timed[p] <= 0) continue;
    const double w = std::max(weights_[p], 1e-12);
    sum += w * timed[p];
    weight += w;
  }
  std::vector<double> out = timed;
  for (double& c : out)
    if (c <= 0) c = weight > 0 ? sum / weight : 1;
  return out;
}

std::optional<std::vector<double>> ProblemCosts::of(const Verdict& verdict) const {
  std::vector<double> costs(weights_.size(), 0.0);
  bool any = false;
  for (const PointTiming& t : verdict.timing)
    for (size_t p = 0; p < axes_.size(); ++p) {
      if (axes_[p] != t.var_axes) continue;
      const double cost = t.kernel_ns / t.fallback_ns;
      if (!std::isfinite(cost) || cost <= 0) return std::nullopt;
      costs[p] = cost;
      any = true;
    }
  if (!any) return std::nullopt;
  return fill(costs);
}

std::vector<double> ProblemCosts::proven(const Verdict& verdict) const {
  std::vector<double> costs(weights_.size(), 0.0);
  for (const PointTiming& t : verdict.timing)
    for (size_t p = 0; p < axes_.size(); ++p)
      if (axes_[p] == t.var_axes)
        costs[p] = t.status == VerdictStatus::kFaster && t.speedup > 0 ? 1 / t.speedup : 1;
  costs = fill(costs);
  for (size_t p = 0; p < axes_.size(); ++p)
    if (!verdict.guard.holds_var(axes_[p].data())) costs[p] = 1;
  return costs;
}

double ProblemCosts::weighted(const std::vector<double>& costs) const {
  double sum = 0;
  for (size_t p = 0; p < weights_.size(); ++p) sum += weights_[p] * costs[p];
  return sum;
}

}  // namespace niche::evolve
