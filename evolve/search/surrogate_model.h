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
// thing. Where the evaluations of a session on a near problem are given, one more column tells its samples from this
// session's: the process finds out how much the one problem says of the other (a task kernel; Bonilla, Chai,
// Williams, "Multi-task Gaussian Process Prediction", 2007). Their costs are shifted by the mean difference of the points
// that both sessions tried. Thread-safety: one owner.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "evolve/search/forest.h"
#include "evolve/search/gaussian_process.h"
#include "evolve/search/kernels.h"
#include "evolve/search/policy.h"

namespace niche::evolve::search {

class SurrogateModel {
 public:
  struct Features {
    std::vector<float> values;    // what the trees see
    std::vector<uint8_t> levels;  // of each value its number in the column: what the process sees
  };
  struct Belief {
    double mean = 0, deviation = 0;  // of log(cost)
    double p_valid = 1;
    GaussianProcess::Prediction process;
  };

  // `past`: of points that the space has and that passed.
  explicit SurrogateModel(const SearchSpace& space, std::span<const PastResult> past = {});

  // Learns from all outcomes in the tree, and from the past. Some 20 ms for a hundred nodes.
  // A candidate counts as the point that stands for its kernel.
  void fit(const Tree& tree, Rng& rng, Kernels& kernels);
  bool ready() const { return !time_.empty(); }
  bool has_past() const { return !past_.empty(); }
  double past_best() const { return past_.front().log_cost; }  // requires has_past()

  Features features(const FamilyPoint& c) const;
  // Some µs: without the process' deviation, `process` is empty.
  Belief rough(const Features& features) const;
  // Some 10 µs.
  Belief belief(const Features& features) const;
  // GaussianProcess::likeness of two candidates.
  double likeness(const Features& a, const Belief& of_a, const Features& b, const Belief& of_b) const {
    return process_.likeness(a.levels, of_a.process, b.levels, of_b.process);
  }

 private:
  struct Past {
    FamilyPoint candidate;
    double log_cost = 0;
    Features features;  // as `kernels` stood at the last fit
    uint64_t kernel = 0;
  };
  void find_levels(int family_columns);
  void remember(std::span<const PastResult> past);
  double shift_of_past(const Tree& tree, Kernels& kernels) const;
  void fit_process(const Tree& tree, std::span<const int> valid, double shift, Kernels& kernels);

  int families_;
  int width_ = 0;
  bool tells_past_;                                       // there is a last column
  std::vector<std::vector<int>> columns_;                 // [family][parameter] -> column
  std::vector<std::vector<std::vector<float>>> encoded_;  // [family][parameter][value index]
  std::vector<std::vector<float>> levels_;                // [column]: its values, rising
  std::vector<Past> past_;                                // those that passed, best first
  Forest time_, validity_;
  GaussianProcess process_;
  bool any_failed_ = false;
  size_t ascended_at_ = 0;  // samples when the process last chose its weights
};

// How much better than `incumbent` (log cost) a candidate may be, times the probability that it passes; larger is
// better, never negative. One that is not expected to be better still ranks by how near it comes.
double merit(const SurrogateModel::Belief& b, double incumbent, double kappa);

}  // namespace niche::evolve::search
