// The cycle counter: what one call in N is timed by.
//
// Thread-safety: stateless but for CycleClock, which is immutable after calibration. Cost: cycles() 8–20 ns
// (rdtsc under KVM included); it is not ordered against the work it brackets, which is right for calls of 100
// ns and more.
#pragma once

#include <cstdint>

#include "dispatch/base/clock.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#elif !defined(__aarch64__)
#include <ctime>
#endif

namespace niche::dispatch {

inline uint64_t cycles() {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  uint64_t v;
  asm volatile("mrs %0, cntvct_el0" : "=r"(v));
  return v;
#else
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
#endif
}

class CycleClock {
 public:
  // Compares the counter with `clock` over about `window_ns` of waiting. Invariant counters (constant_tsc)
  // need it once.
  static CycleClock calibrate(const Clock& clock, int64_t window_ns = 10'000'000);
  explicit CycleClock(double ns_per_cycle) : ns_per_cycle_(ns_per_cycle) {}
  double ns(uint64_t ticks) const { return static_cast<double>(ticks) * ns_per_cycle_; }
  double ns_per_cycle() const { return ns_per_cycle_; }

 private:
  double ns_per_cycle_;
};

}  // namespace niche::dispatch
