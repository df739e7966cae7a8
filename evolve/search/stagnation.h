// Stagnation: when a search has run dry. No improvement beyond the noise for max(20, a quarter of the
// evaluations spent) calls for one restart without memory; after two restarts in a row that brought nothing,
// the search ends.
//
// A pure state machine. Thread-safety: one owner.
#pragma once

#include <algorithm>

namespace niche::evolve::search {

class Stagnation {
 public:
  enum class Advice { kGoOn, kRestart, kStop };
  // An improvement below `noise` (relative) does not count: screens repeat to about 1 %.
  explicit Stagnation(double noise = 0.01) : noise_(noise) {}

  // To be called after each evaluation; `best_cost` is the smallest so far, 0 while nothing is valid.
  Advice observe(double best_cost) {
    ++spent_;
    if (best_cost > 0 && (mark_ == 0 || best_cost < mark_ * (1 - noise_))) {
      mark_ = best_cost;
      since_ = spent_;
      restarts_ = 0;
      return Advice::kGoOn;
    }
    if (spent_ - since_ < std::max(kPatience, since_ / 4)) return Advice::kGoOn;
    since_ = spent_;
    return ++restarts_ > kRestarts ? Advice::kStop : Advice::kRestart;
  }
  int restarts() const { return restarts_; }

 private:
  static constexpr int kPatience = 20;
  static constexpr int kRestarts = 2;
  double noise_;
  double mark_ = 0;  // the cost that the last improvement reached
  int spent_ = 0, since_ = 0, restarts_ = 0;
};

}  // namespace niche::evolve::search
