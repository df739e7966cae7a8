// SurrogateModel: what a search believes about candidates it has not tried: a forest over log(cost) of those
// that passed their gates, and a second one over whether they pass. Failure is modelled apart, because a
// fifth and more of a space may fail (Hvarfner et al., BaCO, 2212.11142), and a made-up cost for it would
// bend the first.
//
// Features: one column a family (1 or 0), one a parameter *name* (log2 of the value; -1 where the family has
// no such parameter), so that families learn from each other where they speak of the same thing.
// Thread-safety: one owner.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "evolve/search/forest.h"
#include "evolve/search/tree.h"

namespace niche::evolve::search {

class SurrogateModel {
 public:
  explicit SurrogateModel(const SearchSpace& space);

  // Learns from all outcomes in the tree. Milliseconds for a few hundred nodes.
  void fit(const Tree& tree, Rng& rng);
  bool ready() const { return !time_.empty(); }

  // Lower bound of log(cost), mean - kappa * deviation, without regard to validity. 0 unless ready.
  double lower_bound(const FamilyPoint& c, double kappa) const;
  double p_valid(const FamilyPoint& c) const;  // 1 while nothing has failed
  // How much better than `incumbent_log_cost` the candidate may be, times the probability that it passes;
  // larger is better, never negative. A candidate that is not expected to be better still ranks by how near
  // it comes.
  double merit(const FamilyPoint& c, double incumbent_log_cost, double kappa) const;

 private:
  void features(const FamilyPoint& c, std::vector<float>& row) const;

  int families_;
  int width_;
  std::vector<std::vector<int>> columns_;                 // [family][parameter] -> column
  std::vector<std::vector<std::vector<float>>> encoded_;  // [family][parameter][value index]
  Forest time_, validity_;
  bool any_failed_ = false;
  mutable std::vector<float> row_;
};

}  // namespace niche::evolve::search
