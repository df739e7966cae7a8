#include "runtime/latency_watch.h"

#include <algorithm>
#include <cmath>

namespace niche {
namespace {

// Sixteen buckets an octave from 64 ns: 4.4 % apart, up to about 275 s.
constexpr double kPerOctave = 16, kFirstNs = 64;
constexpr double kQuietMemory = 4000;        // requests that the yardstick remembers, about
constexpr double kSlowUp = 1.0986122886681;  // log(3 % / 1 %)
constexpr double kSlowDown = 0.0204089;      // log(99 % / 97 %)
constexpr int64_t kWaitForYardstickNs = 3'000'000'000, kWaitForRequestsNs = 1'000'000'000;
// Sessions that ran so long without an alarm halve the next pause.
constexpr int64_t kCalmNs = 10'000'000'000;

}  // namespace

void LatencyWatch::add(double ns) {
  seen_any_ = true;
  ++fresh_;
  if (running_) {
    if (yardstick_ == 0) return;
    ++tuning_;
    const bool slow = ns > options_.slack * yardstick_;
    slow_ += slow;
    cusum_ = std::max(0.0, cusum_ + (slow ? kSlowUp : -kSlowDown));
    return;
  }
  const double at = std::log2(std::max(ns, kFirstNs) / kFirstNs) * kPerOctave;
  quiet_[static_cast<size_t>(std::min<double>(at, kBuckets - 1))] += 1;
  quiet_total_ += 1;
  quiet_seen_ns_ = now_ns_;
}

double LatencyWatch::quantile(double share) const {
  const double target = share * quiet_total_;
  double seen = 0;
  for (size_t i = 0; i < quiet_.size(); ++i) {
    seen += quiet_[i];
    if (seen >= target && seen > 0) return kFirstNs * std::exp2((static_cast<double>(i) + 0.5) / kPerOctave);
  }
  return 0;
}

bool LatencyWatch::ready(int64_t now_ns) const {
  if (yardstick_ > 0) return true;
  if (first_request_ns_ != 0) return now_ns - first_request_ns_ > kWaitForYardstickNs;
  return first_ns_ != 0 && now_ns - first_ns_ > kWaitForRequestsNs;
}

bool LatencyWatch::advance(bool running, int64_t now_ns) {
  now_ns_ = now_ns;
  if (first_ns_ == 0) first_ns_ = since_ns_ = now_ns;
  if (seen_any_ && first_request_ns_ == 0) first_request_ns_ = now_ns;
  if (!running_) {
    if (quiet_total_ >= options_.quiet_min) yardstick_ = quantile(0.99);
    if (quiet_total_ > kQuietMemory) {
      for (double& n : quiet_) n /= 2;
      quiet_total_ /= 2;
    }
  } else if (cusum_ >= options_.alarm) {
    pause_ns_ = std::clamp(2 * pause_ns_, options_.pause_ns_min, options_.pause_ns_max);
    paused_until_ns_ = now_ns + pause_ns_;
    cusum_ = 0;
    ++pauses_;
  } else if (now_ns - since_ns_ > kCalmNs) {
    if (now_ns - std::max(since_ns_, calm_since_ns_) > kCalmNs) {
      pause_ns_ /= 2;
      calm_since_ns_ = now_ns;
    }
    if (seen_any_ && measuring_until_ns_ == 0 && now_ns - quiet_seen_ns_ > options_.quiet_age_ns_max)
      measuring_until_ns_ = now_ns + options_.measure_ns_max;
  }
  if (running != running_) {
    running_ = running;
    since_ns_ = now_ns;
    fresh_ = 0;
    cusum_ = 0;
    tuning_ = slow_ = 0;
  }
  if (paused_until_ns_ != 0 && now_ns >= paused_until_ns_) paused_until_ns_ = 0;
  if (measuring_until_ns_ != 0 &&
      (now_ns >= measuring_until_ns_ || (!running_ && fresh_ >= options_.quiet_fresh)))
    measuring_until_ns_ = 0;
  return paused_until_ns_ != 0 || measuring_until_ns_ != 0;
}

}  // namespace niche
