#include "evolve/session/warm_start.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "evolve/definition_json.h"
#include "evolve/session/candidate_source.h"
#include "evolve/session/session_json.h"

namespace niche::evolve {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double log_distance(int64_t a, int64_t b) {
  return std::abs(std::log(static_cast<double>(std::max<int64_t>(a, 1))) -
                  std::log(static_cast<double>(std::max<int64_t>(b, 1))));
}

// Mean square distance of each problem of `a`, by weight, to its nearest of `b`; per axis.
double variable_distance(const std::vector<SeenProblem>& a, const std::vector<SeenProblem>& b) {
  double sum = 0, weights = 0;
  for (const SeenProblem& p : a) {
    double nearest = kInfinity;
    for (const SeenProblem& q : b) {
      if (p.var_axes.size() != q.var_axes.size()) return kInfinity;
      double d = 0;
      for (size_t i = 0; i < p.var_axes.size(); ++i)
        d += std::pow(log_distance(p.var_axes[i], q.var_axes[i]), 2);
      nearest = std::min(nearest, p.var_axes.empty() ? 0 : d / static_cast<double>(p.var_axes.size()));
    }
    const double weight = p.weight > 0 ? p.weight : 1e-9;
    sum += weight * nearest;
    weights += weight;
  }
  return weights > 0 ? sum / weights : kInfinity;
}

// Sessions by their distance, nearest first, newest of equal ones first.
std::vector<std::pair<double, std::string>> by_distance(const std::string& definition_json,
                                                        const std::vector<SeenProblem>& problems,
                                                        const std::vector<store::PastBest>& past) {
  std::vector<std::pair<double, std::string>> order;
  std::set<std::string> known;
  for (const store::PastBest& p : past) {
    if (!known.insert(p.session).second) continue;
    const auto theirs = problems_from_json(p.problems_json);
    if (!theirs.ok()) continue;
    const double d = problem_distance(definition_json, problems, p.definition_json, *theirs);
    if (d < kInfinity) order.emplace_back(d, p.session);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return order;
}

}  // namespace

double problem_distance(const std::string& definition_a, const std::vector<SeenProblem>& problems_a,
                        const std::string& definition_b, const std::vector<SeenProblem>& problems_b) {
  const auto a = parse_definition_document(definition_a), b = parse_definition_document(definition_b);
  if (!a.ok() || !b.ok() || a->op_type != b->op_type) return kInfinity;
  double squares = variable_distance(problems_a, problems_b);
  int terms = 1;
  for (const auto& axis : a->axes) {
    if (!axis.value) continue;
    const auto other =
        std::find_if(b->axes.begin(), b->axes.end(), [&](const auto& x) { return x.name == axis.name; });
    if (other == b->axes.end() || !other->value) return kInfinity;
    squares += std::pow(log_distance(*axis.value, *other->value), 2);
    ++terms;
  }
  double different = 0;
  for (const auto& [name, value] : a->attrs) {
    const auto other =
        std::find_if(b->attrs.begin(), b->attrs.end(), [&](const auto& x) { return x.first == name; });
    if (other == b->attrs.end() || other->second != value) ++different;
  }
  return std::sqrt(squares / terms) + different;
}

std::vector<search::FamilyPoint> warm_start(const search::SearchSpace& space,
                                            const std::string& definition_json,
                                            const std::vector<SeenProblem>& problems,
                                            const std::vector<store::PastBest>& past,
                                            const WarmStartOptions& options) {
  const auto order = by_distance(definition_json, problems, past);
  std::vector<search::FamilyPoint> points;
  std::set<std::string> sources;  // several points of a grid may be one source
  int sessions = 0;
  for (const auto& [d, session] : order) {
    int taken = 0;
    for (const store::PastBest& p : past) {
      if (p.session != session || taken >= options.per_session) continue;
      if (static_cast<int>(points.size()) >= options.points_max) return points;
      const auto at = point_from_json(space, p.family, p.point_json);
      if (!at || !space.valid(*at) || std::find(points.begin(), points.end(), *at) != points.end()) continue;
      if (!p.source_hash.empty() && !sources.insert(p.source_hash).second) continue;
      points.push_back(*at);
      ++taken;
    }
    if (taken > 0 && ++sessions >= options.sessions) break;
  }
  return points;
}

std::string nearest_session(const std::string& definition_json, const std::vector<SeenProblem>& problems,
                            const std::vector<store::PastBest>& past) {
  const auto order = by_distance(definition_json, problems, past);
  return order.empty() || order.front().first > kNearEnough ? "" : order.front().second;
}

}  // namespace niche::evolve
