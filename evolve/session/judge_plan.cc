#include "evolve/session/judge_plan.h"

#include <algorithm>

namespace niche::evolve {

JudgePlan::JudgePlan(std::vector<double> weights, double judge_seconds)
    : weights_(std::move(weights)), committed_(weights_.size(), 1.0), judge_seconds_(judge_seconds) {}

double JudgePlan::weighted(const std::vector<double>& costs) const {
  double sum = 0;
  for (size_t p = 0; p < weights_.size(); ++p) sum += weights_[p] * costs[p];
  return sum;
}

double JudgePlan::gain(const std::vector<double>& costs) const {
  double saved = 0;
  for (size_t p = 0; p < weights_.size(); ++p) saved += weights_[p] * std::max(0.0, committed_[p] - costs[p]);
  return saved / weighted(committed_);
}

void JudgePlan::screened(int node, std::vector<double> costs) {
  std::erase_if(waiting_, [node](const Entry& e) { return e.node == node; });
  // What cannot gain the least that is ever judged will not gain it later: committed costs only fall.
  if (gain(costs) >= kLastGain) waiting_.push_back({node, std::move(costs), 0});
}

bool JudgePlan::worth_judging(const std::vector<double>& costs, bool last_chance) const {
  return gain(costs) >= (last_chance ? kLastGain : any_committed_ ? kLaterGain : kFirstGain);
}

void JudgePlan::count(double seconds) {
  spent_ += seconds;
  judge_seconds_ = any_judged_ ? 0.5 * (judge_seconds_ + seconds) : seconds;
  any_judged_ = true;
}

void JudgePlan::undecided(int node, const std::vector<double>& costs, double seconds) {
  count(seconds);
  std::erase_if(waiting_, [&](Entry& e) {
    if (e.node != node) return false;
    e.costs = costs;
    return ++e.judgements >= kJudgementsMax || gain(costs) < kLastGain;
  });
}

void JudgePlan::judged(int node, const std::vector<double>& committed, double seconds) {
  count(seconds);
  std::erase_if(waiting_, [node](const Entry& e) { return e.node == node; });
  for (size_t p = 0; p < committed.size(); ++p) committed_[p] = std::min(committed_[p], committed[p]);
  any_committed_ |= !committed.empty();
  std::erase_if(waiting_, [this](const Entry& e) { return gain(e.costs) < kLastGain; });
}

int JudgePlan::next(double now, bool last_chance) const {
  const Entry* best = nullptr;
  double best_gain = 0;
  for (const Entry& e : waiting_) {
    if (e.judgements > 0 && !(last_chance && worth_judging(e.costs, false))) continue;
    const double g = gain(e.costs);
    if (best == nullptr || e.judgements < best->judgements ||
        (e.judgements == best->judgements && g > best_gain))
      best = &e, best_gain = g;
  }
  if (best == nullptr || !worth_judging(best->costs, last_chance)) return -1;
  if (!last_chance && any_judged_ && spent_ + judge_seconds_ > kShare * (now + judge_seconds_)) return -1;
  return best->node;
}

}  // namespace niche::evolve
