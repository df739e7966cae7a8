// ProblemCosts: one candidate's cost at each of a session's problems, and their traffic-weighted sum, which
// is what the search minimises: kernel time / fallback time, so 1 is the fallback and 0.5 is twice as fast.
//
// Thread-safety: values and pure functions.
#pragma once

#include <optional>
#include <vector>

#include "evolve/evaluator.h"

namespace niche::evolve {

class ProblemCosts {
 public:
  // Weights are made to sum to 1; a set without any weight counts all problems alike.
  explicit ProblemCosts(const std::vector<SeenProblem>& problems);

  int count() const { return static_cast<int>(weights_.size()); }
  const std::vector<double>& weights() const { return weights_; }

  // The costs that a Verdict's timing states. An evaluator times the heaviest problems only; the others are
  // taken to cost the weighted mean of those. Nothing: it times none, or states a time that is no positive
  // number.
  std::optional<std::vector<double>> of(const Verdict& verdict) const;
  // What a commit is worth: 1 (the fallback goes on serving) at a problem outside the Guard, or whose own
  // evidence is not FASTER; at one that was not timed, the weighted mean of those that were.
  std::vector<double> proven(const Verdict& verdict) const;
  double weighted(const std::vector<double>& costs) const;

 private:
  std::vector<double> fill(const std::vector<double>& timed) const;
  std::vector<std::vector<int64_t>> axes_;
  std::vector<double> weights_;
};

}  // namespace niche::evolve
