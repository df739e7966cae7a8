// evolutionary: steady state over the ten best; parents by tournament of two, crossover half of the time,
// then mutation of one parameter with probability 0.6. Elitist by construction: the ten best never leave. A
// population of ten because budgets are some hundred evaluations: Kernel Tuner's 26 with mutation 1/55 ended
// 3 to 12 points behind at 50 evaluations (measured on three GEMM spaces).
#include <algorithm>

#include "evolve/search/opening.h"
#include "evolve/search/policies.h"

namespace niche::evolve::search {
namespace {

constexpr int kPopulation = 10;
constexpr double kCross = 0.5;
constexpr double kMutate = 0.6;

class EvolutionaryPolicy final : public Policy {
 public:
  EvolutionaryPolicy(const SearchSpace& space, const PolicyOptions& options)
      : rng_(options.seed), moves_(space, rng_), opening_(options.warm_start, moves_, kPopulation) {}
  std::string_view name() const override { return "evolutionary"; }

  std::vector<Proposal> propose(const Tree& tree, int count) override {
    Batch batch(tree, count, moves_);
    opening_.fill(batch, moves_);
    if (!opening_.done()) return batch.take();
    const std::vector<int> population = tree.elites(kPopulation);
    for (int tries = 0; !population.empty() && !batch.full() && tries < 16 * count; ++tries) {
      const int a = pick(population), b = pick(population);
      const FamilyPoint* child = &tree.node(a).candidate;
      std::optional<FamilyPoint> crossed, mutated;
      if (a != b && rng_.chance(kCross) && (crossed = moves_.cross(*child, tree.node(b).candidate)))
        child = &*crossed;
      if ((!crossed || rng_.chance(kMutate)) && (mutated = moves_.mutate(*child))) child = &*mutated;
      batch.add(*child, crossed ? "cross" : "mutate", a, crossed ? b : kNoNode);
    }
    if (!batch.full()) batch.fill_random(moves_, "draw");
    return batch.take();
  }

 private:
  // The population is sorted, best first: the smaller of two positions wins.
  int pick(const std::vector<int>& population) {
    return population[std::min(rng_.below(population.size()), rng_.below(population.size()))];
  }

  Rng rng_;
  Moves moves_;
  Opening opening_;
};

}  // namespace

std::unique_ptr<Policy> make_evolutionary(const SearchSpace& space, const PolicyOptions& options) {
  return std::make_unique<EvolutionaryPolicy>(space, options);
}

}  // namespace niche::evolve::search
