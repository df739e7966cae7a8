#include "dispatch/base/clock.h"

#include <ctime>

namespace niche::dispatch {
namespace {
int64_t read_ns(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}
}  // namespace

int64_t SystemClock::now_ns() const { return read_ns(CLOCK_MONOTONIC); }
int64_t SystemClock::unix_time_ns() const { return read_ns(CLOCK_REALTIME); }

}  // namespace niche::dispatch
