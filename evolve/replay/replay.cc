#include "evolve/replay/replay.h"

#include <algorithm>

#include "evolve/search/stagnation.h"

namespace niche::evolve::replay {

using search::Outcome;

namespace {

constexpr int kElites = 8;

class WithoutSeeds final : public search::SearchSpace {
 public:
  explicit WithoutSeeds(const search::SearchSpace& space) : space_(space) {}
  int family_count() const override { return space_.family_count(); }
  const std::string& family_name(int family) const override { return space_.family_name(family); }
  const std::vector<Param>& params(int family) const override { return space_.params(family); }
  bool valid(const search::FamilyPoint& c) const override { return space_.valid(c); }
  std::vector<Point> seeds(int) const override { return {}; }
  uint64_t kernel_number(const search::FamilyPoint& c) const override { return space_.kernel_number(c); }

 private:
  const search::SearchSpace& space_;
};

}  // namespace

int ReplayResult::evaluations_to(double factor, double optimum, int censored) const {
  for (size_t i = 0; i < best.size(); ++i)
    if (best[i] > 0 && best[i] <= factor * optimum) return static_cast<int>(i) + 1;
  return censored;
}

double ReplayResult::slowdown_after(int evaluations, double optimum, double none_passed) const {
  if (best.empty()) return none_passed;
  const double b = best[std::min(best.size(), static_cast<size_t>(evaluations)) - 1];
  return b > 0 ? b / optimum : none_passed;
}

dispatch::Result<ReplayResult> replay(const RecordedSpace& space, const ReplayOptions& options) {
  const WithoutSeeds unseeded(space);
  const search::SearchSpace& seen =
      options.use_seeds ? static_cast<const search::SearchSpace&>(space) : unseeded;
  auto policy = search::make_policy(options.policy, seen, {options.seed, options.warm_start, options.past});
  if (!policy.ok()) return policy.status();
  search::Tree tree;
  search::Stagnation stagnation;
  ReplayResult result;
  const auto finish = [&]() -> ReplayResult {
    for (int id : tree.elites(kElites))
      result.elites.emplace_back(tree.node(id).cost, tree.node(id).candidate);
    return std::move(result);
  };
  for (int batch = 0; tree.size() < options.evaluations; ++batch) {
    const auto proposals =
        (*policy)->propose(tree, std::min(options.batch, options.evaluations - tree.size()));
    if (proposals.empty()) break;
    const int first = tree.size();
    for (const search::Proposal& p : proposals)
      tree.add({p.parent, p.second_parent, batch, p.made_by, p.candidate});
    for (int id = first; id < tree.size(); ++id) {
      const double cost = space.cost(tree.node(id).candidate);
      tree.set_outcome(id, cost > 0 ? Outcome::kValid : Outcome::kFailed, cost);
      (*policy)->observed(tree, id);
      result.evaluated.push_back({tree.node(id).candidate, cost});
      const double best = tree.best() == search::kNoNode ? 0 : tree.node(tree.best()).cost;
      result.best.push_back(best);
      // A session would stop after two restarts; a replay shows what more evaluations would bring.
      if (stagnation.observe(best) != search::Stagnation::Advice::kGoOn) (*policy)->restart(tree);
      if (options.stop_within > 0 && best > 0 && best <= options.stop_within * space.optimum())
        return finish();
    }
  }
  return finish();
}

}  // namespace niche::evolve::replay
