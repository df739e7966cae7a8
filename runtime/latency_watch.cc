#include "runtime/latency_watch.h"

#include <algorithm>
#include <cmath>

namespace niche {
namespace {

// Sixteen buckets an octave from 64 ns: 4.4 % apart, up to about 275 s.
constexpr double kPerOctave = 16, kFirstNs = 64;
constexpr int kSlowWindows = 2;  // one slow window may be a hiccup of the machine

}  // namespace

void LatencyWatch::add(double ns) {
  const double at = std::log2(std::max(ns, kFirstNs) / kFirstNs) * kPerOctave;
  ++window_[static_cast<size_t>(std::min<double>(at, kBuckets - 1))];
  ++samples_;
}

double LatencyWatch::quantile(double share) const {
  const auto target = static_cast<int64_t>(std::ceil(share * static_cast<double>(samples_)));
  int64_t seen = 0;
  for (size_t i = 0; i < window_.size(); ++i) {
    seen += window_[i];
    if (seen >= target && seen > 0) return kFirstNs * std::exp2((static_cast<double>(i) + 0.5) / kPerOctave);
  }
  return 0;
}

void LatencyWatch::close_window(bool running, int64_t now_ns) {
  const double p99 = quantile(0.99);
  if (!mixed_ && samples_ >= options_.samples_min) {
    if (!running) {
      quiet_ = quiet_ == 0 ? p99 : quiet_ + options_.quiet_weight * (p99 - quiet_);
    } else {
      tuning_ = p99;
      const bool slow = quiet_ > 0 && p99 > options_.slack * quiet_;
      slow_windows_ = slow ? slow_windows_ + 1 : 0;
      if (!slow) pause_ns_ /= 2;
      if (slow_windows_ >= kSlowWindows) {
        slow_windows_ = 0;
        pause_ns_ = std::clamp(pause_ns_ * 2, options_.pause_ns_min, options_.pause_ns_max);
        paused_until_ns_ = now_ns + pause_ns_;
        ++pauses_;
      }
    }
  }
  window_.fill(0);
  samples_ = 0;
  mixed_ = false;
  window_start_ns_ = now_ns;
}

bool LatencyWatch::advance(bool running, int64_t now_ns) {
  if (window_start_ns_ == 0) {
    window_start_ns_ = now_ns;
    window_running_ = running;
  }
  if (running != window_running_) {
    // What was gathered belongs to neither: a window is one or the other.
    mixed_ = true;
    close_window(window_running_, now_ns);
    window_running_ = running;
  }
  if (samples_ >= options_.samples_min && now_ns - window_start_ns_ >= options_.window_ns_min)
    close_window(running, now_ns);
  if (paused_until_ns_ != 0 && now_ns >= paused_until_ns_) paused_until_ns_ = 0;
  return paused_until_ns_ != 0;
}

}  // namespace niche
