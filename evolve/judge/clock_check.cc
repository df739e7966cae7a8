#include "evolve/judge/clock_check.h"

#include <algorithm>
#include <cassert>

namespace niche::evolve::judge {

bool believable(const ClaimedTimes& claimed, const SeenTimes& seen) {
  if (claimed.cold) {
    const double outside = std::max(0.0, seen.library_ns - claimed.library_ns);
    return seen.kernel_ns <= kColdAllowance * (claimed.kernel_ns + outside) + kColdAllowanceNs;
  }
  const double gain = seen.library_ns - seen.kernel_ns;
  return gain >=
         kSeenShare * (claimed.library_ns - claimed.kernel_ns) - kNoiseShare * seen.library_ns - kNoiseNs;
}

void ClockCheck::claim(const ClaimedTimes& claimed) {
  assert(count_ < kMeasurements);
  measurements_[static_cast<size_t>(count_++)] = {claimed, {}};
  rounds_ = 0;
}

ClockCheck::Next ClockCheck::saw() {
  const Measurement& m = measurements_[static_cast<size_t>(count_ - 1)];
  ++rounds_;
  if (rounds_ >= kRoundsMin[static_cast<size_t>(count_ - 1)] && believable(m.claimed, m.seen))
    return Next::kBelieved;
  if (rounds_ < kRoundsMax) return Next::kBlocks;
  return count_ < kMeasurements ? Next::kMeasureAgain : Next::kRefused;
}

}  // namespace niche::evolve::judge
