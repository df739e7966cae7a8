// Opening: a policy's first candidates: what earlier sessions found for the nearest problem, then the
// families' own seeds, then random points, until enough is known to choose by.
#pragma once

#include <vector>

#include "evolve/search/moves.h"

namespace niche::evolve::search {

class Opening {
 public:
  // `random_points` drawn points follow warm start and seeds.
  Opening(const std::vector<FamilyPoint>& warm_start, const Moves& moves, int random_points)
      : warm_(warm_start), seeds_(moves.seeds()), random_left_(random_points) {}

  bool done() const { return warm_at_ >= warm_.size() && seed_at_ >= seeds_.size() && random_left_ <= 0; }
  // Adds what comes next until the batch is full or the opening is done.
  void fill(Batch& batch, Moves& moves) {
    for (; !batch.full() && warm_at_ < warm_.size(); ++warm_at_)
      if (is_of(moves.space(), warm_[warm_at_])) batch.add(warm_[warm_at_], "warm");
    for (; !batch.full() && seed_at_ < seeds_.size(); ++seed_at_) batch.add(seeds_[seed_at_], "seed");
    for (; !batch.full() && random_left_ > 0; --random_left_)
      if (const auto c = moves.draw()) batch.add(*c, "draw");
  }

 private:
  // A warm start comes from a store that other versions wrote: it may name what this space does not have.
  static bool is_of(const SearchSpace& space, const FamilyPoint& c) {
    if (c.family < 0 || c.family >= space.family_count()) return false;
    const auto& params = space.params(c.family);
    if (params.size() != c.point.size()) return false;
    for (size_t i = 0; i < params.size(); ++i)
      if (c.point[i] < 0 || c.point[i] >= static_cast<int>(params[i].values.size())) return false;
    return space.valid(c);
  }

  std::vector<FamilyPoint> warm_, seeds_;
  size_t warm_at_ = 0, seed_at_ = 0;
  int random_left_;
};

}  // namespace niche::evolve::search
