#include "evolve/search/screen.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

namespace niche::evolve::search {

std::vector<Proposal> Screen::pool(const Tree& tree, Moves& moves, const Batch& batch) const {
  std::vector<Proposal> pool;
  std::unordered_set<std::string> seen;
  const auto offer = [&](const std::optional<FamilyPoint>& c, int parent) {
    if (c && batch.is_new(*c) && seen.insert(point_key(*c)).second)
      pool.push_back({*c, "model", parent, kNoNode});
  };
  const std::vector<int> elites = tree.elites(options_.elites);
  for (int i = 0; i < options_.mutations; ++i) {
    // The better an elite, the more of the mutations start from it.
    const size_t rank = std::min(moves.rng().below(elites.size()), moves.rng().below(elites.size()));
    const int parent = elites[rank];
    auto c = moves.mutate(tree.node(parent).candidate);
    for (int extra = i % 8 == 7 ? 2 : i % 2; c && extra > 0; --extra) {
      auto further = moves.mutate(*c);
      if (further) c = further;
    }
    offer(c, parent);
  }
  for (int i = 0; i < options_.draws; ++i) offer(moves.draw(), kNoNode);
  return pool;
}

std::optional<Proposal> Screen::pick(const Tree& tree, Moves& moves, const Batch& batch) {
  if (tree.best() == kNoNode) return std::nullopt;
  if (tree.revision() != fitted_revision_) {
    model_.fit(tree, moves.rng());
    fitted_revision_ = tree.revision();
  }
  const double incumbent = std::log(tree.node(tree.best()).cost);
  const double kappa =
      batch.size() == 0 ? options_.kappa : -options_.kappa * std::log(1.0 - moves.rng().uniform());
  std::vector<Proposal> entries = pool(tree, moves, batch);
  const Proposal* best = nullptr;
  double best_merit = -1;
  for (const Proposal& entry : entries) {
    const double merit = model_.merit(entry.candidate, incumbent, kappa);
    if (merit > best_merit) best_merit = merit, best = &entry;
  }
  if (best == nullptr) return std::nullopt;
  return *best;
}

}  // namespace niche::evolve::search
