// WallMeter: wall time in which this process itself was running or waiting, not stopped.
//
// A session is paused by SIGSTOP of its whole process group for as long as serving wants the machine. What it
// was doing must not be found late when it goes on: each look at the meter counts at most `kGapSeconds` since
// the last one, so a stop of any length counts little. Look at it more often than that. Thread-safety: one
// owner thread. Cost: one clock read.
#pragma once

#include <algorithm>
#include <chrono>

namespace niche::evolve {

class WallMeter {
 public:
  static constexpr double kGapSeconds = 2;

  double seconds() {
    const auto now = std::chrono::steady_clock::now();
    seconds_ += std::min(kGapSeconds, std::chrono::duration<double>(now - last_).count());
    last_ = now;
    return seconds_;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  double seconds_ = 0;
};

}  // namespace niche::evolve
