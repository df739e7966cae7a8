// LatencyWatch: does tuning cost serving its p99? Compares windows in which sessions ran with windows in
// which none did.
//
// Pure: time is given. Thread-safety: one owner. Bound: one histogram of 512 buckets a window.
//
// Why not simply a threshold on p99: load changes too. A pause is also a measurement: when p99 stays high
// while sessions are paused, it was the traffic, and the quiet value follows.
#pragma once

#include <array>
#include <cstdint>

namespace niche {

class LatencyWatch {
 public:
  struct Options {
    double slack = 1.10;                    // config p99_slack
    int samples_min = 200;                  // a window lasts until it has so many requests ...
    int64_t window_ns_min = 1'000'000'000;  // ... and so long
    int64_t pause_ns_min = 2'000'000'000, pause_ns_max = 60'000'000'000;
    double quiet_weight = 0.3;  // of the newest quiet window
  };
  explicit LatencyWatch(const Options& options) : options_(options) {}

  void add(double ns);
  // `running`: sessions ran (unpaused) since the last call. Returns true when sessions should stand still
  // now.
  bool advance(bool running, int64_t now_ns);

  double quiet_p99_ns() const { return quiet_; }
  double tuning_p99_ns() const { return tuning_; }
  bool pausing() const { return paused_until_ns_ != 0; }
  uint64_t pauses() const { return pauses_; }

  // The value below which `share` of what was added to the current window lies (within 3 %); 0: empty.
  double quantile(double share) const;

 private:
  void close_window(bool running, int64_t now_ns);

  static constexpr int kBuckets = 512;
  const Options options_;
  std::array<uint32_t, kBuckets> window_{};
  int64_t samples_ = 0, window_start_ns_ = 0;
  bool mixed_ = false, window_running_ = false;
  double quiet_ = 0, tuning_ = 0;
  int slow_windows_ = 0;
  int64_t paused_until_ns_ = 0, pause_ns_ = 0;
  uint64_t pauses_ = 0;
};

}  // namespace niche
