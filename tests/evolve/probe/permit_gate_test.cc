// When a tuning process may use the device that serves, without a clock or a device.
#include "evolve/probe/permit_gate.h"

#include <gtest/gtest.h>

namespace niche::evolve {
namespace {

constexpr int64_t kUs = 1000, kMs = 1000 * kUs;

class PermitGateTest : public ::testing::Test {
 protected:
  dispatch::ManualClock clock{1'000'000'000};
  Traffic traffic;
  PermitGate gate{{.burst_ns = 300 * kUs, .duty = 0.01}, clock, [this] { return traffic; }};

  // A burst of `ns`, if there is a permit for it.
  bool burst(int64_t ns) {
    const Permit p = gate.ask(ns);
    if (!p) return false;
    clock.advance_ns(ns);
    gate.give_back(p);
    return true;
  }
};

TEST_F(PermitGateTest, NothingIsGivenWhileARequestIsInFlight) {
  traffic.opened = 5, traffic.closed = 4;
  const Permit p = gate.ask(100 * kUs);
  EXPECT_FALSE(p);
  EXPECT_GT(p.retry_after_ns, 0);
  EXPECT_EQ(gate.counts().busy, 1u);
  traffic.closed = 5;
  EXPECT_TRUE(gate.ask(100 * kUs));
}

TEST_F(PermitGateTest, OneIsOutAtATimeAndNoneIsLongerThanABurst) {
  const Permit p = gate.ask(10 * kMs);
  ASSERT_TRUE(p);
  EXPECT_EQ(p.burst_ns, 300 * kUs);
  EXPECT_FALSE(gate.ask(1));
  gate.give_back({p.id + 1, 0, 0});  // somebody else's
  EXPECT_FALSE(gate.ask(1));
  gate.give_back(p);
  EXPECT_TRUE(gate.ask(1));
}

TEST_F(PermitGateTest, DutyHoldsOverAnyStretchOfTime) {
  int bursts = 0;
  const int64_t start = clock.now_ns();
  while (clock.now_ns() - start < 10'000 * kMs) {
    if (burst(300 * kUs))
      ++bursts;
    else
      clock.advance_ns(100 * kUs);
  }
  // One percent of ten seconds is 333 bursts of 300 us, and the first one is there at once.
  EXPECT_GE(bursts, 320);
  EXPECT_LE(bursts, 335);
  EXPECT_GT(gate.counts().throttled, 0u);
  EXPECT_EQ(gate.counts().used_ns, bursts * 300 * kUs);
}

TEST_F(PermitGateTest, RetryTimeIsWhenThePermitIsThere) {
  ASSERT_TRUE(burst(300 * kUs));
  const Permit p = gate.ask(200 * kUs);
  ASSERT_FALSE(p);
  clock.advance_ns(p.retry_after_ns - 1 * kUs);
  EXPECT_FALSE(gate.ask(200 * kUs));
  clock.advance_ns(2 * kUs);
  EXPECT_TRUE(gate.ask(200 * kUs));
}

TEST_F(PermitGateTest, HangIsPaidForBeforeTheNextBurst) {
  const Permit p = gate.ask(300 * kUs);
  clock.advance_ns(60 * kMs);  // killed after its permit
  gate.revoke(p);
  EXPECT_EQ(gate.counts().revoked, 1u);
  EXPECT_EQ(gate.counts().used_ns, 60 * kMs);
  clock.advance_ns(5'000 * kMs);
  EXPECT_FALSE(gate.ask(300 * kUs)) << "60 ms at one percent are six seconds";
  clock.advance_ns(1'100 * kMs);
  EXPECT_TRUE(gate.ask(300 * kUs));
}

TEST_F(PermitGateTest, RequestsThatArriveDuringABurstAreCounted) {
  const Permit p = gate.ask(300 * kUs);
  traffic.opened += 3, traffic.closed += 2;
  gate.give_back(p);
  EXPECT_EQ(gate.counts().disturbed, 3u);
  EXPECT_EQ(gate.counts().overrun, 0u);
  traffic.closed += 1;
  clock.advance_ns(1'000 * kMs);
  const Permit late = gate.ask(300 * kUs);
  clock.advance_ns(301 * kUs);
  gate.give_back(late);
  EXPECT_EQ(gate.counts().overrun, 1u);
}

TEST_F(PermitGateTest, WhatTheHolderSaysCountsAndNeverMoreThanTheWhole) {
  Permit p = gate.ask(300 * kUs);
  clock.advance_ns(500 * kUs);  // messages
  p.used_ns = 200 * kUs;
  gate.give_back(p);
  EXPECT_EQ(gate.counts().used_ns, 200 * kUs);
  EXPECT_EQ(gate.counts().overrun, 0u);
  clock.advance_ns(1'000 * kMs);
  p = gate.ask(300 * kUs);
  clock.advance_ns(100 * kUs);
  p.used_ns = 900 * kUs;
  gate.give_back(p);
  EXPECT_EQ(gate.counts().used_ns, 300 * kUs);
  clock.advance_ns(1'000 * kMs);
  p = gate.ask(300 * kUs);
  clock.advance_ns(50 * kMs);
  p.used_ns = 1;
  gate.revoke(p);
  EXPECT_EQ(gate.counts().used_ns, 300 * kUs + 50 * kMs) << "who had to be killed says nothing";
}

TEST_F(PermitGateTest, ABusyStretchIsSavedForTheNextGapUpToFourBursts) {
  traffic.opened = 1;
  clock.advance_ns(10'000 * kMs);
  EXPECT_FALSE(gate.ask(300 * kUs));
  traffic.closed = 1;
  int bursts = 0;
  while (burst(300 * kUs)) ++bursts;
  EXPECT_EQ(bursts, 4);
}

TEST(PermitGateDuty, RisesWhileRequestsAreQuickAndFallsWhenTheyAreNot) {
  dispatch::ManualClock clock{1'000'000'000};
  PermitLimits limits;
  limits.duty = 0.02, limits.duty_max = 0.1;
  PermitGate gate(limits, clock, [] { return Traffic(); });
  const auto second = [&](double ns) {
    int64_t used = 0;
    for (int i = 0; i < 1000; ++i) {
      if (const Permit p = gate.ask(300 * kUs)) {
        clock.advance_ns(300 * kUs);
        gate.give_back(p);
        used += 300 * kUs;
      }
      clock.advance_ns(1 * kMs);
      gate.request_took(ns, 3e6);
    }
    return static_cast<double>(used) / 1e9;
  };
  (void)second(2e6);
  (void)second(2e6);
  const double risen = second(2e6);
  EXPECT_DOUBLE_EQ(gate.counts().duty, 0.1);
  EXPECT_NEAR(risen, 0.1, 0.02);
  (void)second(4e6);
  EXPECT_NEAR(second(4e6), 0.02, 0.01) << "all are slow: the floor";
  // Requests that nobody's bursts could have met say nothing.
  clock.advance_ns(5'000 * kMs);
  const double before = gate.counts().duty;
  for (int i = 0; i < 2000; ++i) gate.request_took(2e6, 3e6);
  EXPECT_DOUBLE_EQ(gate.counts().duty, before);
}

}  // namespace
}  // namespace niche::evolve
