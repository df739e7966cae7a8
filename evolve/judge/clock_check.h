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
// Why two measurements: pairs and blocks are taken one after the other. Where the machine was slow in the pairs and quick in
// the blocks an honest report is not borne out: on a Xeon the library's pairs took 132 us and its blocks 33, with two shared
// cores of Zen 3 45 and 23 (a neighbour's work; the kernel's loop out of the first cache hardly felt it). So a report that
// is not borne out is made again, in a new process on fresh values, and only the second refuses. A liar gets a second
// chance too: there all rounds of blocks are taken before it is believed, not half of them.
//
// Pure: no clock and no process. Bounds: a kernel that is in truth as fast as the library can claim at most 1.25x (kSeenShare
// and kNoiseShare), one that is slower by kNoiseShare nothing at all.
#pragma once

#include <array>
#include <cstddef>

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

// One report of a candidate at one problem, measured twice at most: what is to be done next.
// Thread-safety: one owner.
class ClockCheck {
 public:
  static constexpr int kMeasurements = 2;
  // Rounds of blocks at most until a measurement is not borne out, and at least until it is: beside a load of ten, the
  // library's blocks were once all dear in the first, and a cheat was believed.
  static constexpr int kRoundsMax = 4;
  static constexpr std::array<int, kMeasurements> kRoundsMin = {2, kRoundsMax};

  enum class Next {
    kBlocks,        // another round of blocks, then saw()
    kBelieved,      // the report stands
    kMeasureAgain,  // in a new process, on fresh values; then claim()
    kRefused,
  };
  struct Measurement {
    ClaimedTimes claimed;
    SeenTimes seen;
  };

  // A measurement begins; its blocks follow. At most kMeasurements times.
  void claim(const ClaimedTimes& claimed);
  // A round of blocks has gone into seen().
  Next saw();
  SeenTimes& seen() { return measurements_[static_cast<size_t>(count_ - 1)].seen; }
  const Measurement& measurement(int i) const { return measurements_[static_cast<size_t>(i)]; }
  int measurements() const { return count_; }

 private:
  std::array<Measurement, kMeasurements> measurements_{};
  int count_ = 0;   // begun
  int rounds_ = 0;  // of the last one
};

}  // namespace niche::evolve::judge
