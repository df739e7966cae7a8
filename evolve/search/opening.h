// Opening: a policy's first candidates: what earlier sessions found for the nearest problem, then the
// families' own seeds, then random points, until enough is known to choose by. A policy that knows what such a session
// evaluated needs neither seeds nor random points.
#pragma once

#include <vector>

#include "evolve/search/moves.h"

namespace niche::evolve::search {

class Opening {
 public:
  // `random_points` drawn points follow warm start and seeds.
  Opening(const std::vector<FamilyPoint>& warm_start, const Moves& moves, int random_points)
      : warm_(warm_start), seeds_(moves.seeds()), random_left_(random_points) {}
  explicit Opening(const std::vector<FamilyPoint>& warm_start) : warm_(warm_start) {}

  bool done() const { return warm_at_ >= warm_.size() && seed_at_ >= seeds_.size() && random_left_ <= 0; }
  // Adds what comes next until the batch is full or the opening is done.
  void fill(Batch& batch, Moves& moves) {
    for (; !batch.full() && warm_at_ < warm_.size(); ++warm_at_)
      if (is_point_of(moves.space(), warm_[warm_at_])) batch.add(warm_[warm_at_], "warm");
    for (; !batch.full() && seed_at_ < seeds_.size(); ++seed_at_) batch.add(seeds_[seed_at_], "seed");
    for (; !batch.full() && random_left_ > 0; --random_left_)
      if (const auto c = moves.draw()) batch.add(*c, "draw");
  }

 private:
  std::vector<FamilyPoint> warm_, seeds_;
  size_t warm_at_ = 0, seed_at_ = 0;
  int random_left_ = 0;
};

// Of an earlier session's evaluations those that passed and that the space has; none where they are too few to go by.
inline std::vector<PastResult> usable_past(const SearchSpace& space, std::vector<PastResult> past) {
  constexpr size_t kFewest = 8;
  std::erase_if(past, [&](const PastResult& r) { return !(r.cost > 0) || !is_point_of(space, r.candidate); });
  if (past.size() < kFewest) past.clear();
  return past;
}

}  // namespace niche::evolve::search
