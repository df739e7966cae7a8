// When tuning may have more of a device, and when it must have less.
#include "evolve/probe/duty_governor.h"

#include <gtest/gtest.h>

#include <random>

namespace niche::evolve {
namespace {

constexpr double kP99 = 3e6;

class DutyGovernorTest : public ::testing::Test {
 protected:
  DutyGovernor governor{{.floor = 0.02, .ceiling = 0.1}};
  int64_t now = 0;
  // `n` requests, 400 a second, of which every `every`-th is slow; 0: none.
  void requests(int n, int every) {
    for (int i = 1; i <= n; ++i) {
      now += 2'500'000;
      governor.add(every != 0 && i % every == 0 ? 2 * kP99 : kP99 / 2, kP99, now);
    }
  }
};

TEST_F(DutyGovernorTest, RisesByStepsToTheCeilingAndNoFurther) {
  requests(299, 0);
  EXPECT_DOUBLE_EQ(governor.duty(), 0.02);
  requests(1, 0);
  EXPECT_DOUBLE_EQ(governor.duty(), 0.03);
  requests(3000, 0);
  EXPECT_DOUBLE_EQ(governor.duty(), 0.1);
  EXPECT_EQ(governor.falls(), 0u);
}

TEST_F(DutyGovernorTest, FallsToTheFloorWithinAFewDozenSlowRequests) {
  requests(3000, 0);
  requests(60, 10);  // one in ten above the p99, where one in a hundred is due
  EXPECT_DOUBLE_EQ(governor.duty(), 0.02);
  EXPECT_EQ(governor.falls(), 1u);
}

TEST_F(DutyGovernorTest, TheDutyThatHarmedIsNotTriedAgainForAWhile) {
  requests(3000, 0);
  requests(60, 10);
  requests(3000, 0);  // 7.5 s
  EXPECT_DOUBLE_EQ(governor.duty(), 0.1 / 1.5);
  requests(6000, 0);
  EXPECT_DOUBLE_EQ(governor.duty(), 0.1);
}

TEST_F(DutyGovernorTest, StaysWhereItIsWhileSlightlyMoreAreSlowThanMayBe) {
  requests(3000, 60);
  EXPECT_DOUBLE_EQ(governor.duty(), 0.02);
  EXPECT_EQ(governor.falls(), 0u);
}

TEST_F(DutyGovernorTest, JustAboveTheSlackIsSlowAndJustBelowIsNot) {
  for (int i = 0; i < 300; ++i) governor.add(kP99 * 1.029, kP99, now);
  EXPECT_DOUBLE_EQ(governor.duty(), 0.03);
  for (int i = 0; i < 5; ++i) governor.add(kP99 * 1.031, kP99, now);
  EXPECT_EQ(governor.falls(), 1u);
  EXPECT_DOUBLE_EQ(governor.duty(), 0.02);
}

TEST_F(DutyGovernorTest, NoYardstickAndNoRoomLeaveItAlone) {
  for (int i = 0; i < 1000; ++i) governor.add(kP99, 0, now);
  EXPECT_DOUBLE_EQ(governor.duty(), 0.02);
  DutyGovernor fixed({.floor = 0.02, .ceiling = 0.02});
  for (int i = 0; i < 1000; ++i) fixed.add(kP99 * 2, kP99, now);
  EXPECT_DOUBLE_EQ(fixed.duty(), 0.02);
  EXPECT_EQ(fixed.falls(), 0u);
}

// One request in a hundred above the yardstick is what it says: falls must be rare then.
TEST_F(DutyGovernorTest, FallsAreRareWhereNothingIsWrong) {
  std::mt19937_64 random(5);
  int falls = 0;
  for (int run = 0; run < 20; ++run) {
    DutyGovernor g({.floor = 0.02, .ceiling = 0.1});
    for (int64_t i = 0; i < 10000; ++i) g.add(random() % 1000 < 9 ? 2 * kP99 : kP99 / 2, kP99, i * 2'500'000);
    falls += static_cast<int>(g.falls());
  }
  EXPECT_LE(falls, 20) << "in 200,000 requests";
}

}  // namespace
}  // namespace niche::evolve
