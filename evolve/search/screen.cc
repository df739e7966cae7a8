#include "evolve/search/screen.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

namespace niche::evolve::search {
namespace {

constexpr int64_t kGridMax = int64_t{1} << 20;  // grids that are walked through to list their valid points

}  // namespace

// One point of each kernel, or none where the valid points are too many. Costs what the numbers of all kernels do: the
// texts of 4,500 points are generated and hashed in 0.1 s, once a session.
void Screen::list(Kernels& kernels) {
  asked_for_list_ = true;
  std::vector<FamilyPoint> points;
  int64_t grids = 0;
  for (int f = 0; f < space_.family_count(); ++f) grids += space_.grid_size(f);
  if (grids > kGridMax) return;
  for (int f = 0; f < space_.family_count(); ++f) {
    const auto& params = space_.params(f);
    FamilyPoint c{f, Point(params.size(), 0)};
    do {
      if (space_.valid(c)) points.push_back(c);
      if (static_cast<int64_t>(points.size()) > options_.listed_max) return;
    } while (next_point(params, &c.point));
  }
  for (const FamilyPoint& c : points) kernels.number(c);
  for (const FamilyPoint& c : points)
    if (kernels.representative(c) == c) all_.push_back(entry(c, kNoNode));
}

// Of finalists that are one kernel the best, and none that the tree has.
void Screen::keep_one_a_kernel(const Tree& tree, Kernels& kernels) {
  std::unordered_set<uint64_t> seen;
  std::erase_if(finalists_, [&](const Entry& e) {
    return kernels.contains(tree, e.candidate) || !seen.insert(kernels.number(e.candidate)).second;
  });
}

Screen::Entry Screen::entry(const FamilyPoint& c, int parent) const {
  Entry e;
  e.candidate = c;
  e.parent = parent;
  e.features = model_.features(c);
  return e;
}

double Screen::incumbent(const Tree& tree) const {
  return tree.best() == kNoNode ? model_.past_best() : std::log(tree.node(tree.best()).cost);
}

void Screen::refresh(const Tree& tree, Moves& moves) {
  if (!asked_for_list_) list(moves.kernels());
  model_.fit(tree, moves.rng(), moves.kernels());
  fitted_revision_ = tree.revision();
  finalists_.clear();
  if (!all_.empty()) {
    for (const Entry& e : all_)
      if (!moves.kernels().contains(tree, e.candidate)) finalists_.push_back(e);
  } else {
    std::unordered_set<std::string> seen;
    const auto fresh = [&](const std::optional<FamilyPoint>& c, int parent) {
      if (c && !tree.contains(*c) && seen.insert(point_key(*c)).second)
        finalists_.push_back(entry(*c, parent));
    };
    const std::vector<int> elites = tree.elites(options_.elites);
    for (int i = 0; i < options_.mutations && !elites.empty(); ++i) {
      // The better an elite, the more of the mutations start from it.
      const size_t rank = std::min(moves.rng().below(elites.size()), moves.rng().below(elites.size()));
      auto c = moves.mutate(tree.node(elites[rank]).candidate);
      for (int extra = i % 8 == 7 ? 2 : i % 2; c && extra > 0; --extra)
        if (auto further = moves.mutate(*c)) c = further;
      fresh(c, elites[rank]);
    }
    for (int i = 0; i < options_.draws; ++i) fresh(moves.draw(), kNoNode);
  }
  const double best = incumbent(tree);
  for (Entry& e : finalists_) e.rough_merit = merit(model_.rough(e.features), best, 2 * options_.kappa);
  const auto keep = std::min(finalists_.size(), static_cast<size_t>(options_.finalists));
  std::partial_sort(finalists_.begin(), finalists_.begin() + static_cast<std::ptrdiff_t>(keep),
                    finalists_.end(),
                    [](const Entry& a, const Entry& b) { return a.rough_merit > b.rough_merit; });
  finalists_.resize(keep);
  if (all_.empty()) keep_one_a_kernel(tree, moves.kernels());
  for (Entry& e : finalists_) e.belief = model_.belief(e.features);
}

std::optional<Proposal> Screen::pick(const Tree& tree, Moves& moves, const Batch& batch) {
  if (tree.best() == kNoNode && !model_.has_past()) return std::nullopt;
  if (tree.revision() != fitted_revision_) refresh(tree, moves);
  const double so_far = incumbent(tree);
  const double kappa =
      batch.size() == 0 ? options_.kappa : -options_.kappa * std::log(1.0 - moves.rng().uniform());
  std::vector<std::pair<SurrogateModel::Features, SurrogateModel::Belief>> taken;
  for (const Proposal& p : batch.proposals()) {
    const SurrogateModel::Features f = model_.features(moves.kernels().representative(p.candidate));
    taken.emplace_back(f, model_.belief(f));
  }
  const Entry* best = nullptr;
  double best_merit = -1;
  for (const Entry& e : finalists_) {
    if (!batch.is_new(e.candidate)) continue;
    double left = 1;
    for (const auto& [features, belief] : taken) {
      const double r = model_.likeness(e.features, e.belief, features, belief);
      left *= std::sqrt(std::max(0.0, 1 - r * r));
    }
    const double m = merit({e.belief.mean, e.belief.deviation * left, e.belief.p_valid, {}}, so_far, kappa);
    if (m > best_merit) best_merit = m, best = &e;
  }
  if (best == nullptr) return std::nullopt;
  return Proposal{best->candidate, "model", best->parent, kNoNode};
}

}  // namespace niche::evolve::search
