#include "dispatch/devices/cpu/cycle_clock.h"

namespace niche::dispatch {

CycleClock CycleClock::calibrate(const Clock& clock, int64_t window_ns) {
  const int64_t t0 = clock.now_ns();
  const uint64_t c0 = cycles();
  int64_t t1 = t0;
  // Bounded by the window; a clock that stands still (a test's) ends it after a fixed number of reads.
  for (int reads = 0; t1 - t0 < window_ns && reads < 100'000'000; ++reads) {
    t1 = clock.now_ns();
    if (reads == 1'000'000 && t1 == t0) break;
  }
  const uint64_t c1 = cycles();
  return CycleClock(t1 > t0 && c1 > c0 ? static_cast<double>(t1 - t0) / static_cast<double>(c1 - c0) : 1.0);
}

}  // namespace niche::dispatch
