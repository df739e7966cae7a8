// Clock check: what a cell reports of its own times against what the supervisor's clock saw of the same process.
//
// Why a difference: in a block of calls in a row each call carries costs that a report leaves out (inputs are
// touched, outputs freed, the command is sent). They are the same for both sides, so the difference of the two
// sides is free of them: the gain that was reported must be there. Why the least of several blocks: other work
// on the machine makes blocks dearer (caches, memory, a core's clock) and never cheaper, so both sides converge
// from above, and a load, however high, cannot hide a kernel's cost behind the library's. Tried and lost: one
// block of each with a factor of 1.5 over the report. Under a load of 13 the library's block grew by more than
// a cheat had taken from its report, and it passed.
//
// Pure functions. Bounds: a kernel that is in truth as fast as the library can claim at most 1.25x (kSeenShare
// and kNoiseShare), one that is slower by kNoiseShare nothing at all.
#pragma once

namespace niche::evolve::judge {

// Nanoseconds of a call.
struct ClaimedTimes {
  double library_ns = 0, kernel_ns = 0;  // lower quartiles of the pairs
  bool cold = false;
};
struct SeenTimes {
  double library_ns = 0, kernel_ns = 0;  // least of the blocks so far; 0: none yet
  bool died = false;                     // the cell, in a block
};

inline constexpr double kSeenShare = 0.4;
inline constexpr double kNoiseShare = 0.08;
inline constexpr double kNoiseNs = 100;
// In the cold state blocks, which are warm, may only be quicker than the report.
inline constexpr double kColdAllowance = 1.5;
inline constexpr double kColdAllowanceNs = 1000;

bool believable(const ClaimedTimes& claimed, const SeenTimes& seen);

}  // namespace niche::evolve::judge
