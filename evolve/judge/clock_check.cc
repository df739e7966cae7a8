#include "evolve/judge/clock_check.h"

#include <algorithm>

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

}  // namespace niche::evolve::judge
