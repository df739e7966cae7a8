// random: uniform draws over all valid points, without seeds or warm start: the bar that every other policy
// has to beat, so it must stay free of hints.
#include "evolve/search/moves.h"
#include "evolve/search/policies.h"

namespace niche::evolve::search {
namespace {

class RandomPolicy final : public Policy {
 public:
  RandomPolicy(const SearchSpace& space, const PolicyOptions& options)
      : rng_(options.seed), moves_(space, rng_) {}
  std::string_view name() const override { return "random"; }
  std::vector<Proposal> propose(const Tree& tree, int count) override {
    Batch batch(tree, count, moves_);
    batch.fill_random(moves_, "draw");
    return batch.take();
  }

 private:
  Rng rng_;
  Moves moves_;
};

}  // namespace

std::unique_ptr<Policy> make_random(const SearchSpace& space, const PolicyOptions& options) {
  return std::make_unique<RandomPolicy>(space, options);
}

}  // namespace niche::evolve::search
