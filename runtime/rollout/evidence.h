// PairEvidence: e-values for FASTER and SLOWER from live pairs, valid at every look, whatever the noise.
//
// Under "no difference" the two halves of a pair are exchangeable, so their difference d of log times is
// symmetric around 0, given everything before (pairing.h sees to that). Then every bet 1 + lambda g(d) with
// an odd g within [-1, 1] and lambda below 1 is fair, its running product is a martingale, and a mixture over
// several lambdas is an e-process (Ville: it ever reaches 1/alpha with probability at most alpha). The
// laboratory's sign test (evolve/sign_test.h) is the case g = sign. Here g is the difference clipped at the
// median size of earlier differences: on live noise (20 % a call) the sign alone, with its smallest bet at p
// = .6, cannot see an edge below 55 : 45 at all. Simulated (tests/runtime/rollout): a kernel 5 % slower is
// caught in 26 of 90 rollouts by the sign test, in all of them by this. The margin is taken off the
// difference first, so that a kernel slower by less than it is no evidence of SLOWER.
//
// Thread-safety: one owner. Cost: 300 ns a pair, no allocation. Bound: 700 bytes.
#pragma once

#include <array>
#include <cstdint>

namespace niche::rollout {

class PairEvidence {
 public:
  explicit PairEvidence(double margin = 0.01);

  // Log times (or log ratios to equal predictions) of challenger and control.
  void add(double challenger, double control);

  double e_faster() const { return e_value(faster_); }
  double e_slower() const { return e_value(slower_); }
  int64_t pairs() const { return pairs_; }

 private:
  static constexpr int kBets = 6;
  using Logs = std::array<double, kBets>;
  static double e_value(const Logs& logs);
  static void bet(Logs& logs, double g);

  double margin_;
  Logs faster_{}, slower_{};
  int64_t pairs_ = 0;
  double scale_;  // running median of |d|, moved towards each new one by a step
};

}  // namespace niche::rollout
