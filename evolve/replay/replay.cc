#include "evolve/replay/replay.h"

#include <algorithm>

#include "evolve/search/stagnation.h"

namespace niche::evolve::replay {

using search::Outcome;

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
  auto policy = search::make_policy(options.policy, space, {options.seed, options.warm_start});
  if (!policy.ok()) return policy.status();
  search::Tree tree;
  search::Stagnation stagnation;
  ReplayResult result;
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
      const double best = tree.best() == search::kNoNode ? 0 : tree.node(tree.best()).cost;
      result.best.push_back(best);
      // A session would stop after two restarts; a replay shows what more evaluations would bring.
      if (stagnation.observe(best) != search::Stagnation::Advice::kGoOn) (*policy)->restart(tree);
      if (options.stop_within > 0 && best > 0 && best <= options.stop_within * space.optimum()) return result;
    }
  }
  return result;
}

}  // namespace niche::evolve::replay
