// RetryPlan and CircuitBreaker: when to ask a model's service again, and when to leave it alone for a while.
// The only layer of retries there is: two of them multiply (OpenEvolve #297: workers stuck in 429 loops).
//
// Pure state machines: time and chance are handed in. Thread-safety: one owner.
#pragma once

#include <algorithm>
#include <cmath>

namespace niche::evolve::proposer {

class RetryPlan {
 public:
  static constexpr int kTriesMax = 5;
  static constexpr double kFirstSeconds = 1, kLongestSeconds = 60;

  // `seconds_max`: for all tries together, waits included.
  RetryPlan(double seconds_max, double first_seconds = kFirstSeconds)
      : seconds_max_(seconds_max), first_seconds_(first_seconds) {}

  // How long to wait before the next try; below 0: there is none. `retry_after`: what the service asked for,
  // 0: nothing. `chance`: uniform in [0, 1), for full jitter.
  double next_wait(double elapsed, double retry_after, double chance) {
    if (++tries_ >= kTriesMax) return -1;
    const double backoff = std::min(kLongestSeconds, first_seconds_ * std::exp2(tries_ - 1));
    const double wait = std::max(retry_after, backoff * chance);
    return elapsed + wait < seconds_max_ ? wait : -1;
  }
  int tries() const { return tries_; }

 private:
  double seconds_max_, first_seconds_;
  int tries_ = 0;
};

// Opens after five failures in a row, or at once after one that time does not heal (a wrong key, no credit);
// then every call is refused. Half a minute later, doubling up to an hour, one call may try.
class CircuitBreaker {
 public:
  static constexpr int kFailuresMax = 5;
  static constexpr double kFirstSeconds = 30, kLongestSeconds = 3600;

  bool open(double now) const { return now < open_until_; }
  double seconds_left(double now) const { return std::max(0.0, open_until_ - now); }
  void succeeded() {
    failures_ = 0;
    pause_ = kFirstSeconds;
  }
  void failed(double now, bool lasting) {
    if (++failures_ < kFailuresMax && !lasting) return;
    if (lasting) pause_ = kLongestSeconds;
    open_until_ = now + pause_;
    pause_ = std::min(kLongestSeconds, 2 * pause_);
    failures_ = kFailuresMax - 1;  // the one call that may try decides
  }

 private:
  int failures_ = 0;
  double open_until_ = -1e300, pause_ = kFirstSeconds;
};

}  // namespace niche::evolve::proposer
