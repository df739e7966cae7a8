#include "runtime/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/latency_watch.h"

namespace niche {
namespace {

using testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;

telemetry::HotDefinition hot(uint32_t definition, double core_share) {
  telemetry::HotDefinition h;
  h.definition = definition;
  h.device_ns_per_s = core_share * 1e9;
  h.savable_ns_per_s = 0.3 * h.device_ns_per_s;
  h.problems.push_back({{16}, 1.0, false, true});
  return h;
}

class PlannerTest : public testing::Test {
 protected:
  PlannerTest() : planner(PlannerOptions{}) {}
  const telemetry::HotDefinition* next(const std::vector<telemetry::HotDefinition>& ranking, double at_s,
                                       int running = 0) {
    now.now_ns = static_cast<int64_t>(at_s * 1e9) + 1;
    now.running = running;
    return planner.next(ranking, now, &why);
  }
  std::string pause(double at_s) {
    now.now_ns = static_cast<int64_t>(at_s * 1e9) + 1;
    return planner.pause_reason(now);
  }
  Planner planner;
  Conditions now;
  std::string why;
};

TEST_F(PlannerTest, WaitsUntilADefinitionWasHotForLongEnough) {
  const std::vector ranking{hot(1, 0.2)};
  EXPECT_EQ(next(ranking, 0), nullptr);
  EXPECT_EQ(next(ranking, 0.4), nullptr);
  ASSERT_NE(next(ranking, 0.6), nullptr);
  EXPECT_EQ(next({}, 0.6), nullptr);
  EXPECT_EQ(why, "nothing is hot");
}

TEST_F(PlannerTest, StartsNoSessionBeforeP99WithoutSessionsIsKnown) {
  const std::vector ranking{hot(1, 0.2)};
  now.p99_known = false;
  EXPECT_EQ(next(ranking, 0), nullptr);
  EXPECT_EQ(next(ranking, 1), nullptr);
  EXPECT_THAT(why, HasSubstr("p99"));
  now.p99_known = true;
  EXPECT_NE(next(ranking, 1.1), nullptr) << "it was hot all along";
}

TEST_F(PlannerTest, IgnoresWhatTakesTooLittleOfACore) {
  const std::vector ranking{hot(1, 0.001)};
  EXPECT_EQ(next(ranking, 0), nullptr);
  EXPECT_EQ(next(ranking, 10), nullptr);
  EXPECT_EQ(planner.describe(1, 10 * kSecond), "none: not hot");
}

TEST_F(PlannerTest, TakesTheMostSavableAndOneAtATime) {
  const std::vector ranking{hot(2, 0.5), hot(1, 0.2)};
  (void)next(ranking, 0);
  const auto* first = next(ranking, 1);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->definition, 2);
  planner.session_started(2);
  EXPECT_EQ(next(ranking, 2, 1), nullptr);
  EXPECT_THAT(why, HasSubstr("sessions_max"));
  planner.session_ended(2, Planner::Outcome::kGained, 3 * kSecond);
  EXPECT_EQ(next(ranking, 3.5), nullptr) << "a gap between sessions";
  const auto* second = next(ranking, 4.5);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->definition, 1) << "2 rests";
}

TEST_F(PlannerTest, SessionsWithoutGainAreRepeatedEverMoreRarely) {
  const std::vector ranking{hot(1, 0.2)};
  (void)next(ranking, 0);
  double at = 1;
  std::vector<double> rests;
  for (int i = 0; i < 4; ++i) {
    ASSERT_NE(next(ranking, at), nullptr);
    planner.session_started(1);
    planner.session_ended(1, Planner::Outcome::kNothing, static_cast<int64_t>(at * 1e9));
    double rest = 1;
    while (next(ranking, at + rest) == nullptr) rest += 1;
    rests.push_back(rest);
    at += rest;
  }
  EXPECT_EQ(rests, (std::vector<double>{20, 40, 80, 160}));
}

TEST_F(PlannerTest, WhatAWorkerRefusedIsLeftAloneForAnHour) {
  const std::vector ranking{hot(1, 0.2)};
  (void)next(ranking, 0);
  planner.session_started(1);
  planner.session_ended(1, Planner::Outcome::kRefused, 2 * kSecond);
  EXPECT_EQ(next(ranking, 3000), nullptr);
  EXPECT_THAT(planner.describe(1, 10 * kSecond), HasSubstr("the worker refused"));
  EXPECT_NE(next(ranking, 3700), nullptr);
}

TEST_F(PlannerTest, PausesForMemoryThrottlingLatencyAndItsOwner) {
  EXPECT_EQ(pause(0), "");
  now.memory_share = 0.9;
  EXPECT_THAT(pause(1), HasSubstr("memory"));
  now.memory_share = 0.5;
  now.throttled = 10;
  EXPECT_EQ(pause(2), "");
  now.throttled = 11;
  EXPECT_THAT(pause(3), HasSubstr("throttled"));
  EXPECT_THAT(pause(4), HasSubstr("throttled"));
  EXPECT_EQ(pause(6), "");
  now.p99_suffers = true;
  EXPECT_THAT(pause(7), HasSubstr("p99"));
  now.paused_by_owner = true;
  EXPECT_THAT(pause(8), HasSubstr("owner"));
}

TEST_F(PlannerTest, ADefinitionThatNeverHadASessionGoesFirst) {
  const std::vector ranking{hot(1, 0.5), hot(2, 0.2)};
  (void)next(ranking, 0);
  planner.session_started(1);
  planner.session_ended(1, Planner::Outcome::kGained, 2 * kSecond);
  ASSERT_NE(next(ranking, 30), nullptr);
  EXPECT_EQ(next(ranking, 30)->definition, 2u);
  planner.session_started(2);
  planner.session_ended(2, Planner::Outcome::kGained, 31 * kSecond);
  EXPECT_EQ(next(ranking, 60)->definition, 1u) << "then the most savable";
}

TEST_F(PlannerTest, ASessionYieldsToADefinitionThatNeverHadOne) {
  const std::vector ranking{hot(1, 0.5), hot(2, 0.2)};
  (void)next(ranking, 0);
  ASSERT_NE(next(ranking, 1), nullptr);
  planner.session_started(1);
  const auto yields = [&](const Planner::Progress& p) {
    return planner.should_yield(p, ranking, 2 * kSecond);
  };
  EXPECT_FALSE(yields({1, 0, 4, 2.0})) << "its first kernel is near";
  EXPECT_FALSE(yields({1, 0, Planner::kFruitless, 1.5})) << "something faster was seen";
  EXPECT_TRUE(yields({1, 0, Planner::kFruitless, 1.0}));
  EXPECT_TRUE(yields({1, 1, 4, 2.0}));
  planner.session_started(2);
  EXPECT_FALSE(yields({1, 1, 4, 2.0})) << "all had a session";
}

TEST_F(PlannerTest, ASessionDoesNotYieldToWhatIsHardlyHot) {
  (void)next({hot(1, 0.5), hot(2, 0.001)}, 0);
  planner.session_started(1);
  EXPECT_FALSE(planner.should_yield({1, 1, 4, 2.0}, {hot(1, 0.5), hot(2, 0.001)}, 9 * kSecond));
}

TEST(PlannerBudget, LongSessionsAreHeldToTheirShareOfCpu) {
  PlannerOptions o;
  o.cpu_share = 0.25;
  o.cpu_window_seconds = 20;  // a bucket of 5 CPU seconds
  Planner planner(o);
  Conditions now;
  double cpu = 0, wall = 0, paused = 0;
  for (int i = 0; i < 4000; ++i) {
    now.now_ns = 1 + static_cast<int64_t>(wall * 1e9);
    now.session_cpu_seconds = cpu;
    const bool pause = !planner.pause_reason(now).empty();
    wall += 0.1;
    if (pause) {
      paused += 0.1;
    } else {
      cpu += 0.1;  // a core to itself
    }
  }
  EXPECT_GT(paused, 0);
  EXPECT_LE(cpu, o.cpu_share * wall + 5.5);
  EXPECT_GE(cpu, o.cpu_share * wall * 0.9) << "the budget is there to be used";
}

// Requests of one second; `slow` of each hundred take ten times as long. Returns what advance() says at its
// end.
bool second_of(LatencyWatch& watch, double ms, int slow, bool running, int64_t* now_ns) {
  (void)watch.advance(running, *now_ns);
  for (int i = 0; i < 300; ++i) watch.add((i % 100 < slow ? 10 : 1) * ms * 1e6 * (1 + (i % 7) * 0.001));
  *now_ns += kSecond;
  return watch.advance(running, *now_ns);
}

class LatencyWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 5; ++i) EXPECT_FALSE(second_of(watch, 10, 0, false, &now));
    EXPECT_NEAR(watch.quiet_p99_ns(), 10e6, 0.6e6);
  }
  LatencyWatch watch{LatencyWatch::Options{}};
  int64_t now = 1;
};

TEST_F(LatencyWatchTest, PausesSessionsThatCostServingItsP99AndComesBack) {
  bool paused = false;
  int seconds = 0;
  while (!paused && seconds < 10) paused = second_of(watch, 10, 8, true, &now), ++seconds;
  EXPECT_TRUE(paused);
  EXPECT_LE(seconds, 2);
  EXPECT_NEAR(watch.slow_share(), 0.08, 0.01);
  while (paused && seconds < 60) paused = second_of(watch, 10, 0, false, &now), ++seconds;
  EXPECT_FALSE(paused);
  EXPECT_EQ(watch.pauses(), 1);
}

TEST_F(LatencyWatchTest, SessionsThatCostNothingRunOn) {
  for (int i = 0; i < 15; ++i) EXPECT_FALSE(second_of(watch, 10.2, 0, true, &now)) << i;
  EXPECT_EQ(watch.pauses(), 0);
}

TEST_F(LatencyWatchTest, APauseIsLongerEachTimeItWasInVain) {
  std::vector<int> pauses;
  for (int round = 0; round < 4; ++round) {
    while (!second_of(watch, 10, 8, true, &now)) {
    }
    int seconds = 0;
    while (second_of(watch, 10, 0, false, &now)) ++seconds;
    pauses.push_back(seconds + 1);
  }
  for (size_t i = 1; i < pauses.size(); ++i) EXPECT_GE(pauses[i], 2 * pauses[i - 1] - 1) << i;
}

TEST_F(LatencyWatchTest, TrafficThatGotSlowerByItselfDoesNotKeepSessionsStill) {
  // From here on every request takes 20 ms, sessions or not.
  int paused_seconds = 0;
  bool paused = false;
  for (int i = 0; i < 300; ++i) {
    paused = second_of(watch, 20, 0, !paused, &now);
    if (i >= 200) paused_seconds += paused;
  }
  EXPECT_NEAR(watch.quiet_p99_ns(), 20e6, 2e6);
  EXPECT_LE(paused_seconds, 15) << "but for the moments that keep the yardstick fresh";
}

TEST_F(LatencyWatchTest, AnOldYardstickIsMeasuredAnew) {
  int seconds = 0;
  while (!second_of(watch, 10, 0, true, &now) && seconds < 60) ++seconds;
  EXPECT_GE(seconds, 15);
  EXPECT_LE(seconds, 25);
  EXPECT_EQ(watch.pauses(), 0) << "a measurement is no pause for cause";
  EXPECT_FALSE(second_of(watch, 10, 0, false, &now));
}

TEST(LatencyWatch, WithoutRequestScopesNothingPausesAndNobodyWaitsForLong) {
  LatencyWatch watch{LatencyWatch::Options{}};
  int64_t now = 1;
  EXPECT_FALSE(watch.advance(false, now));
  EXPECT_FALSE(watch.ready(now + kSecond / 2));
  EXPECT_TRUE(watch.ready(now + 2 * kSecond));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(watch.advance(true, now += kSecond));
}

TEST(LatencyWatch, FirstSessionsWaitForEnoughRequestsOrThreeSeconds) {
  LatencyWatch busy{LatencyWatch::Options{}}, slow{LatencyWatch::Options{}};
  int64_t now = 1000 * kSecond;  // both servers were idle for long before their first request
  for (LatencyWatch* w : {&busy, &slow}) {
    (void)w->advance(false, 1);
    (void)w->advance(false, now);
  }
  for (int i = 0; i < LatencyWatch::Options{}.quiet_min; ++i) busy.add(1e7);
  slow.add(1e7);
  for (LatencyWatch* w : {&busy, &slow}) (void)w->advance(false, now);
  EXPECT_TRUE(busy.ready(now));
  EXPECT_FALSE(slow.ready(now + 2 * kSecond));
  EXPECT_TRUE(slow.ready(now + 4 * kSecond));
}

}  // namespace
}  // namespace niche
