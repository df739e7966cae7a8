// Objective: which number the search minimises at present. A session begins with the traffic-weighted cost;
// when that stagnates, it looks for specialists: each of the heaviest problems in turn becomes the only one
// that counts, because a table holds a kernel for every niche, and what is best on average may be best
// nowhere. Then the weighted cost again.
//
// A pure state machine. Thread-safety: one owner.
#pragma once

#include <cstddef>
#include <vector>

namespace niche::evolve {

class Objective {
 public:
  static constexpr int kFocusesMax = 3;            // an evaluator's screen times so many problems
  static constexpr double kFocusWeightMin = 0.05;  // of the traffic; less is not worth a search of its own

  // `weights` sum to 1.
  explicit Objective(std::vector<double> weights);

  double of(const std::vector<double>& costs) const;
  // The next focus. False: all had their turn; the weighted cost counts again.
  bool advance();
  int focus() const { return focus_; }  // a problem's index; -1: all of them

 private:
  std::vector<double> weights_;
  std::vector<int> turns_;  // problems that get a focus, in order
  size_t next_ = 0;
  int focus_ = -1;
};

}  // namespace niche::evolve
