#include "evolve/search/surrogate_model.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace niche::evolve::search {

SurrogateModel::SurrogateModel(const SearchSpace& space) : families_(space.family_count()), width_(0) {
  const int family_columns = families_ > 1 ? families_ : 0;
  std::map<std::string, int> by_name;
  for (int f = 0; f < families_; ++f) {
    columns_.emplace_back();
    encoded_.emplace_back();
    for (const Param& p : space.params(f)) {
      const auto [it, fresh] = by_name.emplace(p.name, family_columns + static_cast<int>(by_name.size()));
      columns_.back().push_back(it->second);
      std::vector<float> values;
      for (int v : p.values)
        values.push_back(v < 0 ? static_cast<float>(v) : std::log2(1.0F + static_cast<float>(v)));
      encoded_.back().push_back(std::move(values));
    }
  }
  width_ = family_columns + static_cast<int>(by_name.size());
  row_.resize(static_cast<size_t>(width_));
}

void SurrogateModel::features(const FamilyPoint& c, std::vector<float>& row) const {
  std::fill(row.begin(), row.end(), -1.0F);
  const auto family = static_cast<size_t>(c.family);
  if (families_ > 1)
    for (int f = 0; f < families_; ++f) row[static_cast<size_t>(f)] = f == c.family ? 1.0F : 0.0F;
  for (size_t i = 0; i < c.point.size(); ++i)
    row[static_cast<size_t>(columns_[family][i])] = encoded_[family][i][static_cast<size_t>(c.point[i])];
}

void SurrogateModel::fit(const Tree& tree, Rng& rng) {
  std::vector<float> time_rows, all_rows;
  std::vector<double> log_costs, passed;
  for (int id = 0; id < tree.size(); ++id) {
    const Node& n = tree.node(id);
    if (n.outcome == Outcome::kInFlight) continue;
    features(n.candidate, row_);
    all_rows.insert(all_rows.end(), row_.begin(), row_.end());
    passed.push_back(n.outcome == Outcome::kValid ? 1 : 0);
    if (n.outcome != Outcome::kValid) continue;
    time_rows.insert(time_rows.end(), row_.begin(), row_.end());
    log_costs.push_back(std::log(n.cost));
  }
  any_failed_ = tree.failed_count() > 0;
  time_.fit(time_rows, width_, log_costs, rng);
  if (any_failed_) validity_.fit(all_rows, width_, passed, rng);
}

double SurrogateModel::lower_bound(const FamilyPoint& c, double kappa) const {
  features(c, row_);
  const Forest::Prediction p = time_.predict(row_);
  return p.mean - kappa * p.deviation;
}

double SurrogateModel::p_valid(const FamilyPoint& c) const {
  if (!any_failed_) return 1;
  features(c, row_);
  return validity_.predict(row_).mean;
}

double SurrogateModel::merit(const FamilyPoint& c, double incumbent_log_cost, double kappa) const {
  const double gain = incumbent_log_cost - lower_bound(c, kappa);
  // Softplus with a knee of 2 %: near misses keep an order, and validity scales a number that is never
  // negative.
  constexpr double kKnee = 0.02;
  const double soft = gain > 30 * kKnee ? gain : kKnee * std::log1p(std::exp(gain / kKnee));
  return soft * p_valid(c);
}

}  // namespace niche::evolve::search
