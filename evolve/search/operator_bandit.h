// OperatorBandit: which operator earns the next evaluation. Score = area under the curve of its recent
// successes plus an exploration bonus, as OpenTuner's AUC bandit (Ansel et al., 2014;
// opentuner/search/bandittechniques.py): with uses 1..n of the operator in the window, oldest first, auc = 2
// * sum(i : use i gave a new best) / (n (n + 1)), and bonus = C * sqrt(2 log2(window) / n). C = 0.05 and a
// window of 200 uses.
//
// Thread-safety: one owner. Deterministic; the first of equal scores wins.
#pragma once

#include <cmath>
#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

namespace niche::evolve::search {

class OperatorBandit {
 public:
  explicit OperatorBandit(int operators) : pending_(static_cast<size_t>(operators), 0) {}

  // The operator to use next. Choices not yet credited count as failed uses, so that a batch spreads.
  int choose() {
    int best = 0;
    double best_score = -1;
    for (int k = 0; k < static_cast<int>(pending_.size()); ++k) {
      const double s = score(k);
      if (s > best_score) best_score = s, best = k;
    }
    ++pending_[static_cast<size_t>(best)];
    return best;
  }
  // A chosen operator could not propose anything: forget the choice.
  void cancel(int k) { release(k); }
  void credit(int k, bool new_best) {
    release(k);
    uses_.emplace_back(k, new_best);
    if (uses_.size() > kWindow) uses_.pop_front();
  }
  double score(int k) const {
    double n = 0, sum = 0;
    for (const auto& [op, good] : uses_) {
      if (op != k) continue;
      ++n;
      if (good) sum += n;
    }
    n += pending_[static_cast<size_t>(k)];
    if (n == 0) return 1e9;
    const double h = static_cast<double>(uses_.size()) + 2;
    return 2 * sum / (n * (n + 1)) + kExplore * std::sqrt(2 * std::log2(h) / n);
  }

 private:
  static constexpr size_t kWindow = 200;
  static constexpr double kExplore = 0.05;
  void release(int k) {
    int& p = pending_[static_cast<size_t>(k)];
    if (p > 0) --p;
  }

  std::deque<std::pair<int, bool>> uses_;
  std::vector<int> pending_;
};

}  // namespace niche::evolve::search
