// uct: tree search over lineages. A node is selected from the root down by
//   U(child) = best reward in its subtree + c * sqrt(ln n(parent) / n(child)),
// where the reward is the rank among all valid results so far, in [0, 1] (no scale to set), backed up by
// maximum, and n counts proposed nodes, those in flight included (virtual loss: a subtree that is being tried
// looks used, not worse). A node may have max(2, 2 sqrt(n)) children before the walk goes through it
// (progressive widening).
//
// c = 0.1: the textbook's sqrt(2) with mean backup lost to random search at 50 to 300 evaluations on all
// three GEMM spaces measured; rank reward with c = 0.1 was the best of thirteen settings.
#include <algorithm>
#include <cmath>

#include "evolve/search/opening.h"
#include "evolve/search/policies.h"

namespace niche::evolve::search {
namespace {

constexpr double kExplore = 0.1;
constexpr double kAdjacent = 0.3;  // of mutations go to a neighbouring value

// The statistics of every subtree, the virtual root last.
struct Statistics {
  std::vector<double> best;  // largest reward in the subtree; 0 where nothing is valid
  std::vector<int> count;    // nodes in the subtree
  std::vector<std::vector<int>> children;
};

class UctPolicy final : public Policy {
 public:
  UctPolicy(const SearchSpace& space, const PolicyOptions& options)
      : rng_(options.seed), moves_(space, rng_), opening_(options.warm_start, moves_, 8) {}
  std::string_view name() const override { return "uct"; }

  std::vector<Proposal> propose(const Tree& tree, int count) override {
    Batch batch(tree, count, moves_);
    opening_.fill(batch, moves_);
    if (!opening_.done()) return batch.take();
    Statistics s = statistics(tree);
    for (int tries = 0; !batch.full() && tries < 8 * count; ++tries) {
      const int at = select(s);
      const bool draft = at == tree.size();
      const auto c = draft ? moves_.draw() : moves_.mutate(tree.node(at).candidate, rng_.chance(kAdjacent));
      // A node whose move gave nothing new is charged too, so that the walk leaves exhausted corners.
      charge(tree, s, at);
      if (c) batch.add(*c, draft ? "draw" : "mutate", draft ? kNoNode : at);
    }
    if (!batch.full()) batch.fill_random(moves_, "draw");
    return batch.take();
  }

 private:
  static Statistics statistics(const Tree& tree) {
    const auto n = static_cast<size_t>(tree.size());
    Statistics s;
    s.best.assign(n + 1, 0);
    s.count.assign(n + 1, 1);
    s.children.resize(n + 1);
    const std::vector<int> order = tree.elites(tree.size());
    const auto valid = static_cast<double>(order.size());
    for (size_t rank = 0; rank < order.size(); ++rank)
      s.best[static_cast<size_t>(order[rank])] = 1.0 - static_cast<double>(rank) / valid;
    for (size_t i = n; i-- > 0;) {  // children before parents
      const int parent = tree.node(static_cast<int>(i)).parent;
      const size_t p = parent == kNoNode ? n : static_cast<size_t>(parent);
      s.best[p] = std::max(s.best[p], s.best[i]);
      s.count[p] += s.count[i];
      s.children[p].push_back(static_cast<int>(i));
    }
    return s;
  }

  int select(const Statistics& s) const {
    size_t at = s.count.size() - 1;
    for (;;) {
      const auto& children = s.children[at];
      const double width = std::max(2.0, std::floor(2 * std::sqrt(static_cast<double>(s.count[at]))));
      if (static_cast<double>(children.size()) < width) return static_cast<int>(at);
      size_t best = 0;
      double best_u = -1;
      for (int child : children) {
        const auto c = static_cast<size_t>(child);
        const double u = s.best[c] + kExplore * std::sqrt(std::log(s.count[at]) / s.count[c]);
        if (u > best_u) best_u = u, best = c;
      }
      at = best;
    }
  }

  static void charge(const Tree& tree, Statistics& s, int at) {
    const auto root = static_cast<size_t>(tree.size());
    for (size_t i = static_cast<size_t>(at); i != root;) {
      ++s.count[i];
      const int parent = tree.node(static_cast<int>(i)).parent;
      i = parent == kNoNode ? root : static_cast<size_t>(parent);
    }
    ++s.count[root];
  }

  Rng rng_;
  Moves moves_;
  Opening opening_;
};

}  // namespace

std::unique_ptr<Policy> make_uct(const SearchSpace& space, const PolicyOptions& options) {
  return std::make_unique<UctPolicy>(space, options);
}

}  // namespace niche::evolve::search
