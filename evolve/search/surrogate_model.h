// SurrogateModel: what a search believes about candidates it has not tried: log(cost) of those that pass their
// gates, and whether they pass. Failure is modelled apart, because a fifth and more of a space may fail
// (Hvarfner et al., BaCO, 2212.11142), and a made-up cost for it would bend the first.
//
// log(cost) is what a Gaussian process and extremely randomised trees say together: the process learns from a few
// dozen samples which parameters matter, the trees find the cliffs (a spilled register tile) that it smooths over.
// Each alone needed more evaluations on the tuning spaces (docs/evolution.md).
//
// Features: one column a family (1 or 0), one a parameter *name* (log2 of the value, over the name's range; -1
// where the family has no such parameter), so that families learn from each other where they speak of the same
// thing. Thread-safety: one owner.
#pragma once

#include <string>
#include <vector>

#include "evolve/search/forest.h"
#include "evolve/search/gaussian_process.h"
#include "evolve/search/tree.h"

namespace niche::evolve::search {

class SurrogateModel {
 public:
  struct Belief {
    double mean = 0, deviation = 0;  // of log(cost)
    double p_valid = 1;
  };

  explicit SurrogateModel(const SearchSpace& space);

  // Learns from all outcomes in the tree. Some 20 ms for a hundred nodes.
  void fit(const Tree& tree, Rng& rng);
  bool ready() const { return !time_.empty(); }

  std::vector<float> features(const FamilyPoint& c) const;
  // By the trees alone, about 1 µs; by both, some 10 µs.
  Belief rough(const std::vector<float>& features) const;
  Belief belief(const std::vector<float>& features) const;
  // How alike the process thinks two candidates to be, 0 to 1.
  double likeness(const std::vector<float>& a, const std::vector<float>& b) const;

 private:
  int families_;
  int width_;
  std::vector<std::vector<int>> columns_;                 // [family][parameter] -> column
  std::vector<std::vector<std::vector<float>>> encoded_;  // [family][parameter][value index]
  Forest time_, validity_;
  GaussianProcess process_;
  bool any_failed_ = false;
  size_t ascended_at_ = 0;  // samples when the process last chose its weights
};

// How much better than `incumbent` (log cost) a candidate may be, times the probability that it passes; larger is
// better, never negative. One that is not expected to be better still ranks by how near it comes.
double merit(const SurrogateModel::Belief& b, double incumbent, double kappa);

}  // namespace niche::evolve::search
