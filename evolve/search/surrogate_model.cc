#include "evolve/search/surrogate_model.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace niche::evolve::search {
namespace {

// The process sees the best samples and the latest of the others: what is far from the best need not be known
// well, and its cost grows with the cube.
constexpr size_t kProcessSamples = 80, kProcessBest = 56;
// Beyond e times the best it does not matter how bad a candidate is; the process would bend its weights for it.
constexpr double kWorstLogCost = 1.0;
constexpr int kFirstSweeps = 2;
constexpr size_t kSamplesAnAscent = 16;

}  // namespace

SurrogateModel::SurrogateModel(const SearchSpace& space) : families_(space.family_count()), width_(0) {
  const int family_columns = families_ > 1 ? families_ : 0;
  std::map<std::string, int> by_name;
  std::map<std::string, std::pair<float, float>> range;
  const auto code = [](int v) {
    return v < 0 ? static_cast<float>(v) : std::log2(1.0F + static_cast<float>(v));
  };
  for (int f = 0; f < families_; ++f)
    for (const Param& p : space.params(f))
      for (int v : p.values) {
        const auto [it, fresh] = range.emplace(p.name, std::pair(code(v), code(v)));
        it->second = {std::min(it->second.first, code(v)), std::max(it->second.second, code(v))};
      }
  for (int f = 0; f < families_; ++f) {
    columns_.emplace_back();
    encoded_.emplace_back();
    for (const Param& p : space.params(f)) {
      const auto [it, fresh] = by_name.emplace(p.name, family_columns + static_cast<int>(by_name.size()));
      columns_.back().push_back(it->second);
      const auto [low, high] = range[p.name];
      std::vector<float> values;
      for (int v : p.values) values.push_back(high > low ? (code(v) - low) / (high - low) : 0.0F);
      encoded_.back().push_back(std::move(values));
    }
  }
  width_ = family_columns + static_cast<int>(by_name.size());
}

std::vector<float> SurrogateModel::features(const FamilyPoint& c) const {
  std::vector<float> row(static_cast<size_t>(width_), -1.0F);
  const auto family = static_cast<size_t>(c.family);
  if (families_ > 1)
    for (int f = 0; f < families_; ++f) row[static_cast<size_t>(f)] = f == c.family ? 1.0F : 0.0F;
  for (size_t i = 0; i < c.point.size(); ++i)
    row[static_cast<size_t>(columns_[family][i])] = encoded_[family][i][static_cast<size_t>(c.point[i])];
  return row;
}

void SurrogateModel::fit(const Tree& tree, Rng& rng) {
  std::vector<float> time_rows, all_rows;
  std::vector<double> log_costs, passed;
  std::vector<int> valid;
  for (int id = 0; id < tree.size(); ++id) {
    const Node& n = tree.node(id);
    if (n.outcome == Outcome::kInFlight) continue;
    const std::vector<float> row = features(n.candidate);
    all_rows.insert(all_rows.end(), row.begin(), row.end());
    passed.push_back(n.outcome == Outcome::kValid ? 1 : 0);
    if (n.outcome != Outcome::kValid) continue;
    time_rows.insert(time_rows.end(), row.begin(), row.end());
    log_costs.push_back(std::log(n.cost));
    valid.push_back(id);
  }
  any_failed_ = tree.failed_count() > 0;
  time_.fit(time_rows, width_, log_costs, rng);
  if (any_failed_) validity_.fit(all_rows, width_, passed, rng);
  if (valid.empty()) return;

  std::vector<int> chosen = tree.elites(static_cast<int>(kProcessBest));
  for (size_t i = valid.size(); i-- > 0 && chosen.size() < kProcessSamples;)
    if (std::find(chosen.begin(), chosen.end(), valid[i]) == chosen.end()) chosen.push_back(valid[i]);
  const double best = std::log(tree.node(tree.best()).cost);
  std::vector<float> rows;
  std::vector<double> targets;
  for (int id : chosen) {
    const std::vector<float> row = features(tree.node(id).candidate);
    rows.insert(rows.end(), row.begin(), row.end());
    targets.push_back(std::min(std::log(tree.node(id).cost), best + kWorstLogCost));
  }
  // The weights move slowly: between two ascents only the samples are new.
  const bool ascend = process_.empty() || valid.size() >= ascended_at_ + kSamplesAnAscent;
  process_.fit(rows, width_, targets, process_.empty() ? kFirstSweeps : ascend ? 1 : 0);
  if (ascend) ascended_at_ = valid.size();
}

SurrogateModel::Belief SurrogateModel::rough(const std::vector<float>& row) const {
  const Forest::Prediction p = time_.predict(row);
  return {p.mean, p.deviation, any_failed_ ? validity_.predict(row).mean : 1};
}

SurrogateModel::Belief SurrogateModel::belief(const std::vector<float>& row) const {
  Belief b = rough(row);
  const GaussianProcess::Prediction p = process_.predict(row);
  const double apart = (b.mean - p.mean) / 2;
  b.mean = (b.mean + p.mean) / 2;
  b.deviation = std::sqrt((b.deviation * b.deviation + p.deviation * p.deviation) / 2 + apart * apart);
  return b;
}

double SurrogateModel::likeness(const std::vector<float>& a, const std::vector<float>& b) const {
  return process_.likeness(a, b);
}

double merit(const SurrogateModel::Belief& b, double incumbent, double kappa) {
  const double gain = incumbent - (b.mean - kappa * b.deviation);
  // Softplus with a knee of 2 %: near misses keep an order, and validity scales a number that is never negative.
  constexpr double kKnee = 0.02;
  const double soft = gain > 30 * kKnee ? gain : kKnee * std::log1p(std::exp(gain / kKnee));
  return soft * b.p_valid;
}

}  // namespace niche::evolve::search
