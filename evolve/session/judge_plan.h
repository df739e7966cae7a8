// JudgePlan: which screened candidate to judge, and when. A judgement costs as much as dozens of screened
// candidates, so it is spent where it would improve what live traffic gets: at each problem the best
// committed kernel serves (the fallback before there is one), and a candidate's gain is how much
// traffic-weighted time it would take off that.
//
//   - The first win is judged at once (gain >= 3 %): a hot operator should be live within seconds.
//   - Later ones need 5 % (a screen is good to some 5 %), and judging takes at most a third of the time.
//   - At the end of a session what is left is judged down to 2 %.
//   - A judgement that found neither way (AMBIGUOUS: too little evidence on a loaded machine) is made anew when nothing else
//     is left to judge at the end and by what it measured it pays as a later one must; kJudgementsMax
//     of a candidate in all, each on fresh data and with its own two tests, so that the bounds of a false FASTER add up (docs/evaluation.md).
//
// A pure state machine: time is handed in. Thread-safety: one owner.
#pragma once

#include <vector>

#include "evolve/judgements.h"

namespace niche::evolve {

class JudgePlan {
 public:
  static constexpr double kFirstGain = 0.03, kLaterGain = 0.05, kLastGain = 0.02;
  static constexpr double kShare = 1.0 / 3;

  // `weights` sum to 1, one a problem. `judge_seconds`: what a judgement is expected to take before one was
  // made.
  JudgePlan(std::vector<double> weights, double judge_seconds);

  // A later screen of a node overrules the earlier.
  void screened(int node, std::vector<double> costs);
  // Is a candidate of these costs worth a judgement, time apart?
  bool worth_judging(const std::vector<double>& costs, bool last_chance) const;
  // After a judgement of `node` that took `seconds`. `committed`: the cost that it now proves at each
  // problem, 1 where it does not serve; empty: nothing was committed.
  void judged(int node, const std::vector<double>& committed, double seconds);
  // After a judgement that timed `node` at these costs and found neither way.
  void undecided(int node, const std::vector<double>& costs, double seconds);

  // The node to judge at `now` seconds since the session began: of the largest gain among those judged least often;
  // -1: none.
  int next(double now, bool last_chance) const;

  double gain(const std::vector<double>& costs) const;
  double judge_seconds() const { return judge_seconds_; }  // expected of the next
  double committed_cost() const {
    return weighted(committed_);
  }  // traffic-weighted, with everything committed
  bool any_committed() const { return any_committed_; }

 private:
  double weighted(const std::vector<double>& costs) const;
  struct Entry {
    int node;
    std::vector<double> costs;
    int judgements = 0;  // that found neither way
  };
  void count(double seconds);
  std::vector<double> weights_, committed_;
  std::vector<Entry> waiting_;
  double judge_seconds_;
  double spent_ = 0;  // in judgements
  bool any_judged_ = false, any_committed_ = false;
};

}  // namespace niche::evolve
