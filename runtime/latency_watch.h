// LatencyWatch: does tuning cost serving its p99?
//
// The p99 of requests while no session runs is the yardstick (a decayed histogram). While sessions run, each
// request above slack × yardstick adds to a CUSUM and each below takes a little away (Page, 1954): alarm when
// the share of such requests is clearly above the 1 % that the yardstick itself would give. A p99 of the last
// few hundred requests, compared directly, is their second largest value: it cried wolf in every other
// window.
//
// A pause is also a measurement: when p99 stays high, it was the traffic, and the yardstick follows. So that
// a long session cannot live on an old yardstick, it is asked to stand still for a moment now and then.
//
// Pure: time is given. Thread-safety: one owner. Bound: one histogram. Cost: 20 ns a request.
#pragma once

#include <array>
#include <cstdint>

namespace niche {

class LatencyWatch {
 public:
  struct Options {
    double slack = 1.10;  // config p99_slack
    double alarm = 7;     // of the CUSUM, in nats: once in thousands of requests when nothing is wrong
    int quiet_min = 300;  // requests before the yardstick says anything
    int64_t pause_ns_min = 2'000'000'000, pause_ns_max = 60'000'000'000;
    // With a yardstick older than this, sessions pause until quiet_fresh requests, or for measure_ns_max.
    int64_t quiet_age_ns_max = 20'000'000'000, measure_ns_max = 1'500'000'000;
    int quiet_fresh = 100;
  };
  explicit LatencyWatch(const Options& options) : options_(options) {}

  // One request's latency; belongs to the mode of the last advance().
  void add(double ns);
  // `running`: sessions run (unpaused) from now on. Returns true when they should stand still.
  bool advance(bool running, int64_t now_ns);

  // Is there a yardstick, or will none come soon? Until then no session should start: what it costs could not
  // be told. False for at most 3 s after the first request, 1 s where no requests are told of.
  bool ready(int64_t now_ns) const;

  double quiet_p99_ns() const { return yardstick_; }
  // Share of requests above slack × yardstick since sessions last began to run; 0.01 is what the yardstick
  // gives.
  double slow_share() const {
    return tuning_ == 0 ? 0 : static_cast<double>(slow_) / static_cast<double>(tuning_);
  }
  uint64_t pauses() const { return pauses_; }

 private:
  double quantile(double share) const;

  static constexpr int kBuckets = 512;
  const Options options_;
  std::array<double, kBuckets> quiet_{};
  double quiet_total_ = 0, yardstick_ = 0;
  int64_t first_ns_ = 0, first_request_ns_ = 0, now_ns_ = 0;
  bool running_ = false;
  // Since the mode changed last.
  int64_t since_ns_ = 0, fresh_ = 0;
  double cusum_ = 0;
  int64_t tuning_ = 0, slow_ = 0;
  bool seen_any_ = false;
  int64_t quiet_seen_ns_ = 0;  // when quiet requests were last measured
  int64_t paused_until_ns_ = 0, pause_ns_ = 0, calm_since_ns_ = 0;
  int64_t measuring_until_ns_ = 0;
  uint64_t pauses_ = 0;
};

}  // namespace niche
