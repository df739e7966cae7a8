// Moves: the elementary steps that policies are made of: draw, mutate, perturb, cross; and Batch, which
// collects a proposal without repeating itself or the tree.
//
// Thread-safety: one owner. All draws are bounded: a move that finds nothing new says so.
#pragma once

#include <optional>
#include <unordered_set>
#include <vector>

#include "evolve/search/kernels.h"
#include "evolve/search/policy.h"
#include "evolve/search/rng.h"

namespace niche::evolve::search {

class Moves {
 public:
  Moves(const SearchSpace& space, Rng& rng) : space_(space), rng_(rng), kernels_(space) {}

  // A valid point, uniform over all grids (families by the size of their grid) or over one family's.
  std::optional<FamilyPoint> draw();
  std::optional<FamilyPoint> draw(int family);
  // Changes one parameter to another value; `adjacent`: to a neighbouring one.
  std::optional<FamilyPoint> mutate(const FamilyPoint& from, bool adjacent = false);
  std::optional<FamilyPoint> mutate_parameter(const FamilyPoint& from, int parameter);
  // Changes each parameter with probability `share`, at least one.
  std::optional<FamilyPoint> perturb(const FamilyPoint& from, double share);
  // Each parameter from either parent. Of two families: parameters of `a`'s family, those that `b` shares by
  // name and value taken from it by coin.
  std::optional<FamilyPoint> cross(const FamilyPoint& a, const FamilyPoint& b);
  // All valid candidates that differ from `from` in one parameter, in the grid's order.
  std::vector<FamilyPoint> neighbours(const FamilyPoint& from) const;
  // Seeds of all families, interleaved: first of each, second of each, ...; valid ones only.
  std::vector<FamilyPoint> seeds() const;

  const SearchSpace& space() const { return space_; }
  Rng& rng() { return rng_; }
  Kernels& kernels() { return kernels_; }

 private:
  const SearchSpace& space_;
  Rng& rng_;
  Kernels kernels_;
};

// A proposal under construction. No two candidates of it and of the tree are one kernel.
class Batch {
 public:
  Batch(const Tree& tree, int count, Moves& moves) : tree_(tree), count_(count), kernels_(moves.kernels()) {}
  bool full() const { return static_cast<int>(proposals_.size()) >= count_; }
  int size() const { return static_cast<int>(proposals_.size()); }
  // Requires: the space has the point.
  bool is_new(const FamilyPoint& c) const {
    return !tree_.contains(c) && !kernels_.contains(tree_, c) && !numbers_.contains(kernels_.number(c));
  }
  // False: full, or known already.
  bool add(const FamilyPoint& c, std::string_view made_by, int parent = kNoNode, int second_parent = kNoNode);
  bool add(const Proposal& p) { return add(p.candidate, p.made_by, p.parent, p.second_parent); }
  // Draws until the batch is full or the space seems exhausted; then looks at the whole grid once (grids of
  // at most 2^20 points), so that "empty" means that nothing is left.
  void fill_random(Moves& moves, std::string_view made_by);
  const std::vector<Proposal>& proposals() const { return proposals_; }
  std::vector<Proposal> take() { return std::move(proposals_); }

 private:
  const Tree& tree_;
  int count_;
  std::vector<Proposal> proposals_;
  Kernels& kernels_;
  std::unordered_set<uint64_t> numbers_;
};

}  // namespace niche::evolve::search
