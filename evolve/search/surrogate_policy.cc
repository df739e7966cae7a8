// surrogate: every candidate is chosen by the model (extra-trees, lower confidence bound, kappa 0.7). One half
// of the default portfolio, kept as a policy of its own to show what the other half adds.
#include "evolve/search/opening.h"
#include "evolve/search/policies.h"
#include "evolve/search/screen.h"

namespace niche::evolve::search {
namespace {

class SurrogatePolicy final : public Policy {
 public:
  SurrogatePolicy(const SearchSpace& space, const PolicyOptions& options)
      : rng_(options.seed),
        moves_(space, rng_),
        opening_(options.warm_start, moves_, 8),
        screen_(space, {}) {}
  std::string_view name() const override { return "surrogate"; }

  std::vector<Proposal> propose(const Tree& tree, int count) override {
    Batch batch(tree, count, moves_);
    opening_.fill(batch, moves_);
    if (!opening_.done()) return batch.take();
    while (!batch.full()) {
      const auto p = screen_.pick(tree, moves_, batch);
      if (!p) break;
      batch.add(*p);
    }
    if (!batch.full()) batch.fill_random(moves_, "draw");
    return batch.take();
  }

 private:
  Rng rng_;
  Moves moves_;
  Opening opening_;
  Screen screen_;
};

}  // namespace

std::unique_ptr<Policy> make_surrogate(const SearchSpace& space, const PolicyOptions& options) {
  return std::make_unique<SurrogatePolicy>(space, options);
}

}  // namespace niche::evolve::search
