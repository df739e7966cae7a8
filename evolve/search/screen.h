// Screen: chooses the most promising of many cheap proposals by a surrogate: mutations and crossings of the
// elites and random points go in, a few come out.
#pragma once

#include "evolve/search/moves.h"
#include "evolve/search/surrogate_model.h"

namespace niche::evolve::search {

struct ScreenOptions {
  int elites = 8;       // parents of the mutations
  int mutations = 160;  // proposals a pick: half with one changed parameter, half with two or three
  int draws = 48;       // random points a pick
  double kappa = 1.0;   // of the lower confidence bound
};

class Screen {
 public:
  Screen(const SearchSpace& space, const ScreenOptions& options) : options_(options), model_(space) {}

  // The best of a fresh pool that is new to tree and batch; nothing while nothing valid is known. Within one
  // batch the model cannot learn; variety comes from a kappa drawn anew for each pick after the first
  // (exponential, mean options.kappa), as in Hutter, Hoos, Leyton-Brown, "Parallel algorithm configuration"
  // (2012).
  std::optional<Proposal> pick(const Tree& tree, Moves& moves, const Batch& batch);

 private:
  std::vector<Proposal> pool(const Tree& tree, Moves& moves, const Batch& batch) const;

  ScreenOptions options_;
  SurrogateModel model_;
  int64_t fitted_revision_ = -1;
};

}  // namespace niche::evolve::search
