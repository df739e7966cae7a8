#include "evolve/judge/clock_check.h"

#include <gtest/gtest.h>

namespace niche::evolve::judge {
namespace {

struct Row {
  const char* what;
  ClaimedTimes claimed;
  SeenTimes seen;
  bool believed;
};

// Nanoseconds of a call: what the cell says of library and kernel, what blocks of both took outside of it.
const Row kRows[] = {
    {"an honest tenfold", {10'000, 1'000, false}, {10'000, 1'000}, true},
    {"the same behind calls that cost as much again outside the timed part",
     {10'000, 1'000, false},
     {20'500, 11'300},
     true},
    {"an honest 1.05x in noise", {10'000, 9'520, false}, {10'100, 9'900}, true},
    {"an honest 1.05x whose blocks look slower by less than noise",
     {10'000, 9'520, false},
     {10'000, 10'300},
     true},
    {"as fast as the library, claims twice that", {10'000, 5'000, false}, {10'000, 10'000}, false},
    {"the same while every block costs twice as much", {10'000, 5'000, false}, {20'000, 20'000}, false},
    {"slower by a tenth, claims a tenth", {10'000, 9'000, false}, {10'000, 11'000}, false},
    {"twelve times slower, claims ten times faster", {10'000, 1'000, false}, {10'000, 120'000}, false},
    {"a real 1.2x told as 4x", {10'000, 2'500, false}, {10'000, 8'300}, false},
    {"calls of a tenth of a microsecond are below the clock", {150, 90, false}, {180, 190}, true},
    // Blocks are warm: the cold library is much slower than they show.
    {"cold: four times faster, warm blocks show less", {40'000, 10'000, true}, {12'000, 7'000}, true},
    {"cold: the kernel takes in warm blocks three times what it claims",
     {40'000, 2'000, true},
     {12'000, 8'000},
     false},
};

TEST(ClockCheck, BelievesAGainThatTheSystemsClockBearsOut) {
  for (const Row& r : kRows) EXPECT_EQ(believable(r.claimed, r.seen), r.believed) << r.what;
}

// The stated bounds of what a stamp-moving kernel gains at most.
TEST(ClockCheck, AKernelAsFastAsTheLibraryCanClaimOneAndAQuarter) {
  const double library = 1e6;  // kNoiseNs is nothing beside it
  double most = 1;
  for (double claim = 1; claim < 4; claim += 0.01)
    if (believable({library, library / claim, false}, {library, library})) most = claim;
  EXPECT_NEAR(most, 1.25, 0.02);
  for (double claim = 1; claim < 4; claim += 0.01)
    EXPECT_FALSE(believable({library, library / claim, false}, {library, library * (1.001 + kNoiseShare)}))
        << claim;
}

}  // namespace
}  // namespace niche::evolve::judge
