// What sessions cost the requests that are served beside them: windows of the same requests with sessions paused
// and not, in quads "off on on off", so that what drifts evenly over a quad falls out.
//
// Thread-safety: begin() and summary() from the demo's thread, add() from any client thread. Cost: a few doubles
// a request; summary() sorts all of them some hundred times.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

namespace ranker {

// p99 of all requests with sessions over that of all without. The interval is a bootstrap over quads, 95 %.
struct TuningCost {
  int quads = 0;
  int64_t requests_off = 0, requests_on = 0;  // that count
  double p50_off_ms = 0, p50_on_ms = 0, p99_off_ms = 0, p99_on_ms = 0;
  double p50_ratio = 0, p99_ratio = 0, p99_ratio_low = 0, p99_ratio_high = 0;  // 0: nothing was measured
};

class TuningCostMeter {
 public:
  static constexpr int kWindows = 4;
  static constexpr std::array<bool, kWindows> kOn{false, true, true, false};
  // A session stands still, or goes on, by the second tick (50 ms each) after it was told to.
  static constexpr double kSettleSeconds = 0.25;

  // The requests from now on belong to window `at` of quad `quad`.
  void begin(int quad, int at);
  // `scheduled_s`: on its window's clock. `tuning`: a session was running when the request was answered. What came
  // before kSettleSeconds, or does not fit its window, does not count.
  void add(double scheduled_s, double latency_ms, bool tuning);
  TuningCost summary() const;

 private:
  struct Quad {
    std::vector<double> off, on;  // ms
  };
  mutable std::mutex mutex_;
  std::vector<Quad> quads_;
  bool on_ = false;
};

}  // namespace ranker
