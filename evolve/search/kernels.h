// Kernels: what a policy needs to know of candidates that are one kernel (SearchSpace::kernel_number): whether a
// tree has measured it under another name, and one point that stands for it, so that a parameter that makes no
// difference here is none to a model either.
//
// Numbers are asked for once a point. Memory: 150 bytes a point asked about, at most kPointsMax of them.
// Thread-safety: one owner.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "evolve/search/tree.h"

namespace niche::evolve::search {

class Kernels {
 public:
  static constexpr size_t kPointsMax = size_t{1} << 17;  // then the numbers are asked for anew

  explicit Kernels(const SearchSpace& space) : space_(space) {}

  // Requires: the space has the point.
  uint64_t number(const FamilyPoint& c);
  // Does `tree` hold a candidate of this kernel? What was read of it is remembered: it only grows.
  bool contains(const Tree& tree, const FamilyPoint& c);
  // Of the points of this kernel that were asked about the first in the grids' order.
  const FamilyPoint& representative(const FamilyPoint& c);

 private:
  const SearchSpace& space_;
  std::unordered_map<std::string, uint64_t> numbers_;  // by point key
  std::unordered_map<uint64_t, FamilyPoint> representatives_;
  std::unordered_set<uint64_t> in_tree_;
  int seen_of_tree_ = 0;
};

}  // namespace niche::evolve::search
