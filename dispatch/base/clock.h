// Clock: the time, injected. runtime/ builds one SystemClock; tests move a ManualClock by hand.
//
// Thread-safety: all methods may be called from several threads. Cost: SystemClock about 20 ns (vDSO). Not
// for the hot path: calls are timed there by devices/cpu/cycle_clock.h, and only one in N of them.
#pragma once

#include <atomic>
#include <cstdint>

namespace niche::dispatch {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t now_ns() const = 0;        // monotonic; zero is arbitrary
  virtual int64_t unix_time_ns() const = 0;  // wall clock, for records and logs
};

class SystemClock final : public Clock {
 public:
  int64_t now_ns() const override;
  int64_t unix_time_ns() const override;
};

// Stands still until moved.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(int64_t start_ns = 0) : now_ns_(start_ns) {}
  int64_t now_ns() const override { return now_ns_.load(std::memory_order_relaxed); }
  int64_t unix_time_ns() const override { return now_ns(); }
  void advance_ns(int64_t by) { now_ns_.fetch_add(by, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> now_ns_;
};

}  // namespace niche::dispatch
