#include "evolve/search/surrogate_model.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace niche::evolve::search {
namespace {

// The process sees the best samples and the latest of the others: what is far from the best need not be known
// well, and its cost grows with the cube. Of the past it sees the best and, from all over the rest, as many more.
constexpr size_t kProcessSamples = 80, kProcessBest = 56;
constexpr size_t kProcessPast = 40, kProcessPastBest = 20;
constexpr size_t kTreesAlone = 16;
// Beyond e times the best it does not matter how bad a candidate is; the process would bend its weights for it.
constexpr double kWorstLogCost = 1.0;
constexpr int kFirstSweeps = 2;
constexpr size_t kSamplesAnAscent = 16;
// The last column, where there is a past.
constexpr float kHere = 0.0F, kThere = 1.0F;

}  // namespace

SurrogateModel::SurrogateModel(const SearchSpace& space, std::span<const PastResult> past)
    : families_(space.family_count()), tells_past_(!past.empty()), process_({}) {
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
  width_ = family_columns + static_cast<int>(by_name.size()) + (tells_past_ ? 1 : 0);
  find_levels(family_columns);
  process_ = GaussianProcess(levels_);
  remember(past);
}

void SurrogateModel::find_levels(int family_columns) {
  levels_.assign(static_cast<size_t>(width_), {});
  for (int c = 0; c < family_columns; ++c) levels_[static_cast<size_t>(c)] = {0.0F, 1.0F};
  for (size_t f = 0; f < columns_.size(); ++f)
    for (size_t i = 0; i < columns_[f].size(); ++i) {
      auto& levels = levels_[static_cast<size_t>(columns_[f][i])];
      levels.insert(levels.end(), encoded_[f][i].begin(), encoded_[f][i].end());
    }
  const size_t named = levels_.size() - (tells_past_ ? 1 : 0);
  for (size_t c = static_cast<size_t>(family_columns); c < named; ++c)
    for (const auto& of_family : columns_)
      if (std::find(of_family.begin(), of_family.end(), static_cast<int>(c)) == of_family.end())
        levels_[c].push_back(-1.0F);
  if (tells_past_) levels_.back() = {kHere, kThere};
  for (auto& levels : levels_) {
    std::sort(levels.begin(), levels.end());
    levels.erase(std::unique(levels.begin(), levels.end()), levels.end());
  }
}

void SurrogateModel::remember(std::span<const PastResult> past) {
  for (const PastResult& r : past) {
    past_.push_back({r.candidate, std::log(r.cost), {}, 0});
  }
  std::stable_sort(past_.begin(), past_.end(),
                   [](const Past& a, const Past& b) { return a.log_cost < b.log_cost; });
}

SurrogateModel::Features SurrogateModel::features(const FamilyPoint& c) const {
  Features f;
  f.values.assign(static_cast<size_t>(width_), -1.0F);
  const auto family = static_cast<size_t>(c.family);
  if (families_ > 1)
    for (int i = 0; i < families_; ++i) f.values[static_cast<size_t>(i)] = i == c.family ? 1.0F : 0.0F;
  for (size_t i = 0; i < c.point.size(); ++i)
    f.values[static_cast<size_t>(columns_[family][i])] = encoded_[family][i][static_cast<size_t>(c.point[i])];
  if (tells_past_) f.values.back() = kHere;
  for (size_t d = 0; d < f.values.size(); ++d)
    f.levels.push_back(static_cast<uint8_t>(
        std::lower_bound(levels_[d].begin(), levels_[d].end(), f.values[d]) - levels_[d].begin()));
  return f;
}

// What to add to the past's log costs: by the points that both sessions tried, else by their best.
double SurrogateModel::shift_of_past(const Tree& tree, Kernels& kernels) const {
  double sum = 0;
  int common = 0;
  std::map<uint64_t, double> here;
  for (int id = 0; id < tree.size(); ++id)
    if (tree.node(id).outcome == Outcome::kValid)
      here.emplace(kernels.number(tree.node(id).candidate), std::log(tree.node(id).cost));
  for (const Past& p : past_)
    if (const auto it = here.find(p.kernel); it != here.end()) sum += it->second - p.log_cost, ++common;
  if (common > 0) return sum / common;
  return tree.best() == kNoNode || past_.empty() ? 0 : std::log(tree.node(tree.best()).cost) - past_best();
}

void SurrogateModel::fit(const Tree& tree, Rng& rng, Kernels& kernels) {
  for (Past& p : past_) {
    p.kernel = kernels.number(p.candidate);
    p.features = features(kernels.representative(p.candidate));
    p.features.values.back() = kThere;
    p.features.levels.back() = 1;
  }
  std::vector<float> time_rows, all_rows;
  std::vector<double> log_costs, passed;
  std::vector<int> valid;
  for (int id = 0; id < tree.size(); ++id) {
    const Node& n = tree.node(id);
    if (n.outcome == Outcome::kInFlight) continue;
    const std::vector<float> row = features(kernels.representative(n.candidate)).values;
    all_rows.insert(all_rows.end(), row.begin(), row.end());
    passed.push_back(n.outcome == Outcome::kValid ? 1 : 0);
    if (n.outcome != Outcome::kValid) continue;
    time_rows.insert(time_rows.end(), row.begin(), row.end());
    log_costs.push_back(std::log(n.cost));
    valid.push_back(id);
  }
  const double shift = shift_of_past(tree, kernels);
  // Trees cannot tell how far to believe the past (one split in many asks which session a sample is of): they have it only
  // while there is little else. The process weighs it for itself.
  if (valid.size() < kTreesAlone)
    for (const Past& p : past_) {
      time_rows.insert(time_rows.end(), p.features.values.begin(), p.features.values.end());
      log_costs.push_back(p.log_cost + shift);
    }
  any_failed_ = tree.failed_count() > 0;
  time_.fit(time_rows, width_, log_costs, rng);
  if (any_failed_) validity_.fit(all_rows, width_, passed, rng);
  if (!valid.empty() || !past_.empty()) fit_process(tree, valid, shift, kernels);
}

void SurrogateModel::fit_process(const Tree& tree, std::span<const int> valid, double shift,
                                 Kernels& kernels) {
  std::vector<int> chosen = tree.elites(static_cast<int>(kProcessBest));
  for (size_t i = valid.size(); i-- > 0 && chosen.size() < kProcessSamples;)
    if (std::find(chosen.begin(), chosen.end(), valid[i]) == chosen.end()) chosen.push_back(valid[i]);
  const double best = valid.empty() ? past_best() + shift : std::log(tree.node(tree.best()).cost);
  std::vector<uint8_t> rows;
  std::vector<double> targets;
  const auto add = [&](const std::vector<uint8_t>& row, double log_cost) {
    rows.insert(rows.end(), row.begin(), row.end());
    targets.push_back(std::min(log_cost, best + kWorstLogCost));
  };
  for (int id : chosen)
    add(features(kernels.representative(tree.node(id).candidate)).levels, std::log(tree.node(id).cost));
  const size_t from_past = std::min(kProcessPast, past_.size()), top = std::min(kProcessPastBest, from_past);
  for (size_t i = 0; i < from_past; ++i) {
    const size_t at = i < top ? i : top + (i - top) * (past_.size() - top) / (from_past - top);
    add(past_[at].features.levels, past_[at].log_cost + shift);
  }
  // The weights move slowly: between two ascents only the samples are new.
  const bool ascend = process_.empty() || targets.size() >= ascended_at_ + kSamplesAnAscent;
  process_.fit(rows, targets, process_.empty() ? kFirstSweeps : ascend ? 1 : 0);
  if (ascend) ascended_at_ = targets.size();
}

SurrogateModel::Belief SurrogateModel::rough(const Features& f) const {
  const Forest::Prediction p = time_.predict(f.values);
  const double mean = process_.empty() ? p.mean : (p.mean + process_.mean(f.levels)) / 2;
  return {mean, p.deviation, any_failed_ ? validity_.predict(f.values).mean : 1, {}};
}

SurrogateModel::Belief SurrogateModel::belief(const Features& f) const {
  const Forest::Prediction t = time_.predict(f.values);
  GaussianProcess::Prediction p = process_.predict(f.levels);
  const double apart = (t.mean - p.mean) / 2;
  const double deviation =
      std::sqrt((t.deviation * t.deviation + p.deviation * p.deviation) / 2 + apart * apart);
  const double p_valid = any_failed_ ? validity_.predict(f.values).mean : 1;
  return {(t.mean + p.mean) / 2, deviation, p_valid, std::move(p)};
}

double merit(const SurrogateModel::Belief& b, double incumbent, double kappa) {
  const double gain = incumbent - (b.mean - kappa * b.deviation);
  // Softplus with a knee of 2 %: near misses keep an order, and validity scales a number that is never negative.
  constexpr double kKnee = 0.02;
  const double soft = gain > 30 * kKnee ? gain : kKnee * std::log1p(std::exp(gain / kKnee));
  return soft * b.p_valid;
}

}  // namespace niche::evolve::search
