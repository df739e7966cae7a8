#include "evolve/search/kernels.h"

#include <tuple>

namespace niche::evolve::search {

uint64_t Kernels::number(const FamilyPoint& c) {
  if (numbers_.size() >= kPointsMax) numbers_.clear(), representatives_.clear();
  const auto [it, fresh] = numbers_.emplace(point_key(c), 0);
  if (!fresh) return it->second;
  const uint64_t number = it->second = space_.kernel_number(c);
  FamilyPoint& first = representatives_.emplace(number, c).first->second;
  if (std::tie(c.family, c.point) < std::tie(first.family, first.point)) first = c;
  return number;
}

bool Kernels::contains(const Tree& tree, const FamilyPoint& c) {
  if (tree.size() < seen_of_tree_) in_tree_.clear(), seen_of_tree_ = 0;  // another tree
  for (; seen_of_tree_ < tree.size(); ++seen_of_tree_)
    in_tree_.insert(number(tree.node(seen_of_tree_).candidate));
  return in_tree_.contains(number(c));
}

const FamilyPoint& Kernels::representative(const FamilyPoint& c) { return representatives_.at(number(c)); }

}  // namespace niche::evolve::search
