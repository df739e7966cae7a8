// greedy: iterated local search over Hamming neighbours, moving on the first improvement; when a
// neighbourhood holds none, 30 % of the incumbent's parameters are redrawn; after 50 evaluations without a
// new best, a random restart. Constants: Kernel Tuner's defaults (strategies/greedy_ils), measured in
// docs/evolution.md.
#include "evolve/search/opening.h"
#include "evolve/search/policies.h"

namespace niche::evolve::search {
namespace {

constexpr double kPerturbShare = 0.3;
constexpr int kRestartAfter = 50;

class GreedyPolicy final : public Policy {
 public:
  GreedyPolicy(const SearchSpace& space, const PolicyOptions& options)
      : rng_(options.seed), moves_(space, rng_), opening_(options.warm_start, moves_, 4) {}
  std::string_view name() const override { return "greedy"; }

  std::vector<Proposal> propose(const Tree& tree, int count) override {
    Batch batch(tree, count, moves_);
    opening_.fill(batch, moves_);
    for (int tries = 0; !batch.full() && opening_.done() && tries < 4 * count; ++tries) {
      if (here_ == kNoNode) here_ = tree.best();
      if (here_ == kNoNode) break;
      if (queue_.empty()) refill(tree);
      if (queue_.empty() || idle_ >= kRestartAfter) {
        jump(tree, batch);
        continue;
      }
      batch.add(queue_.back(), "neighbour", here_);
      queue_.pop_back();
    }
    if (!batch.full() && opening_.done()) batch.fill_random(moves_, "draw");
    return batch.take();
  }

  void observed(const Tree& tree, int id) override {
    const Node& n = tree.node(id);
    idle_ = tree.best() == id ? 0 : idle_ + 1;
    if (n.outcome != Outcome::kValid) return;
    const bool jumped = n.made_by == "perturb" || n.made_by == "restart";
    if (!jumped && here_ != kNoNode && n.cost >= tree.node(here_).cost) return;
    here_ = id;
    queue_.clear();
  }

 private:
  void refill(const Tree& tree) {
    for (FamilyPoint& c : moves_.neighbours(tree.node(here_).candidate))
      if (!tree.contains(c)) queue_.push_back(std::move(c));
    rng_.shuffle(queue_);
  }
  void jump(const Tree& tree, Batch& batch) {
    const bool far = idle_ >= kRestartAfter;
    const int from = tree.best();
    const auto c = far ? moves_.draw() : moves_.perturb(tree.node(from).candidate, kPerturbShare);
    if (far) idle_ = 0;
    queue_.clear();
    if (c) batch.add(*c, far ? "restart" : "perturb", far ? kNoNode : from);
  }

  Rng rng_;
  Moves moves_;
  Opening opening_;
  int here_ = kNoNode;
  int idle_ = 0;  // evaluations since the last new best
  std::vector<FamilyPoint> queue_;
};

}  // namespace

std::unique_ptr<Policy> make_greedy(const SearchSpace& space, const PolicyOptions& options) {
  return std::make_unique<GreedyPolicy>(space, options);
}

}  // namespace niche::evolve::search
