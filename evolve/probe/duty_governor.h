// DutyGovernor: how much of a serving device's time tuning may have: from a floor that is always its own up to a
// ceiling, by what the server's requests say.
//
// The yardstick is the p99 of requests while nothing is tuned. While tuning goes on, at most one request in a hundred
// may take longer than slack times that. A window in which no more did lets the duty rise by a step; a CUSUM of the
// slow ones (Page, 1954: 3 % against 1 %, as runtime/latency_watch.h) lets it fall to the floor at once, and the duty at
// which that happened is not tried again for a while.
// The yardstick comes from a histogram with steps of 4.4 %, so a slack of 3 % is 1 to 5.
//
// Pure: time is given. Thread-safety: one owner. Cost: some 5 ns a request.
#pragma once

#include <cstdint>

namespace niche::evolve {

class DutyGovernor {
 public:
  struct Options {
    double floor = 0.01, ceiling = 0.01;
    double slack = 1.03;
    double rise = 1.5;       // a step
    int window = 300;        // requests of one
    double slow_max = 0.01;  // of a window that lets the duty rise
    double alarm = 5;        // of the CUSUM, in nats: once in some 15,000 requests when nothing is wrong
    int64_t cap_ns = 20'000'000'000;
  };
  explicit DutyGovernor(const Options& options)
      : options_(options), duty_(options.floor), cap_(options.ceiling) {}

  // A request that ended while something was tuned.
  void add(double ns, double quiet_p99_ns, int64_t now_ns);
  double duty() const { return duty_; }
  uint64_t falls() const { return falls_; }

 private:
  const Options options_;
  double duty_, cap_, cusum_ = 0;
  int requests_ = 0, slow_ = 0;
  int64_t capped_at_ns_ = 0;
  uint64_t falls_ = 0;
};

}  // namespace niche::evolve
