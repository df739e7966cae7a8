#include "runtime/telemetry/telemetry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace niche::telemetry {
namespace {

using dispatch::FallbackReason;
using dispatch::Rung;

constexpr int64_t kSecond = 1'000'000'000;

Sample sample(uint32_t definition, int64_t axis, double ns, Rung rung = Rung::kFallback,
              FallbackReason reason = FallbackReason::kMiss, int64_t calls = 1) {
  Sample s;
  s.definition = definition;
  s.site = definition;
  s.axes[0] = axis;
  s.rung = rung;
  s.reason = rung == Rung::kFallback ? reason : FallbackReason::kNone;
  s.calls = calls;
  s.ns = ns;
  return s;
}

void feed(Telemetry& t, std::initializer_list<Sample> samples, int64_t now) {
  t.add(std::vector<Sample>(samples), now);
}

TEST(HeavyHitters, BoundsHoldForEveryKeyAndHeavyKeysAreHeld) {
  HeavyHitters<uint64_t, std::hash<uint64_t>, int> hitters(64);
  std::mt19937_64 random(1);
  std::unordered_map<uint64_t, double> truth;
  for (int i = 0; i < 200'000; ++i) {
    // A tenth of the stream goes to 20 keys of rising weight, the rest to keys that hardly repeat.
    const bool heavy = random() % 10 == 0;
    const uint64_t key = heavy ? random() % 20 : 1000 + random() % 100'000;
    const double weight = heavy ? 5.0 * static_cast<double>(key + 1) : 1.0;
    hitters.add(key, weight);
    truth[key] += weight;
  }
  double total = 0;
  for (const auto& [key, weight] : truth) total += weight;
  EXPECT_NEAR(hitters.total(), total, 1e-6 * total);
  ASSERT_EQ(hitters.entries().size(), 64u);
  for (const auto& e : hitters.entries()) {
    EXPECT_LE(e.guaranteed(), truth[e.key] + 1e-6) << e.key;
    EXPECT_GE(e.estimate, truth[e.key] - 1e-6) << e.key;
    EXPECT_LE(e.error, total / 64 + 1e-6);
  }
  for (const auto& [key, weight] : truth) {
    if (weight <= total / 64) continue;
    const bool held = std::any_of(hitters.entries().begin(), hitters.entries().end(),
                                  [&, k = key](const auto& e) { return e.key == k; });
    EXPECT_TRUE(held) << key;
  }
}

TEST(Telemetry, RanksByTimeThatCouldBeSavedNotByTime) {
  const struct {
    const char* what;
    Sample s;
    double saving;  // share of its time
  } rows[] = {
      {"fallback, no kernel yet", sample(1, 8, 1000, Rung::kFallback, FallbackReason::kNoKernel), 0.3},
      {"a niche's kernel on an unseen shape", sample(2, 8, 1000, Rung::kRegion), 0.15},
      {"its own evolved kernel", sample(3, 8, 1000, Rung::kExact), 0.03},
      {"the library by the caller's wish", sample(4, 8, 1000, Rung::kFallback, FallbackReason::kForced), 0},
      {"gradients", sample(5, 8, 1000, Rung::kFallback, FallbackReason::kRequiresGrad), 0},
      {"a strided input", sample(6, 8, 1000, Rung::kFallback, FallbackReason::kLayout), 0},
  };
  for (const auto& row : rows) {
    Telemetry t({});
    feed(t, {row.s}, kSecond);
    const auto ranked = t.ranking(10);
    ASSERT_EQ(ranked.size(), 1u) << row.what;
    EXPECT_NEAR(ranked[0].savable_ns_per_s, row.saving * ranked[0].device_ns_per_s, 1e-9) << row.what;
    EXPECT_NEAR(ranked[0].share, 1, 1e-12) << row.what;
  }
  Telemetry t({});
  feed(t, {sample(1, 8, 100), sample(2, 8, 900, Rung::kExact)}, kSecond);
  const auto ranked = t.ranking(10);
  EXPECT_EQ(ranked[0].definition, 1u);
  EXPECT_NEAR(ranked[0].share, 0.1, 1e-12);
}

TEST(Telemetry, RatesAreRatesOnceTheStreamIsSteady) {
  TelemetryOptions o;
  o.half_life_ns = 10 * kSecond;
  Telemetry t(o);
  for (int i = 0; i < 1500; ++i)  // 150 s, 15 half-lives, every 100 ms: 20 calls of 5 ms each a second
    feed(t, {sample(1, 8, 1e7, Rung::kFallback, FallbackReason::kNoKernel, 2)}, i * kSecond / 10);
  const auto ranked = t.ranking(1);
  EXPECT_NEAR(ranked[0].device_ns_per_s, 1e8, 0.01e8);
  EXPECT_NEAR(ranked[0].calls_per_s, 20, 0.2);
  EXPECT_NEAR(t.total_ns_per_s(), 1e8, 0.01e8);
}

TEST(Telemetry, AMillionDistinctShapesStayBoundedAndTheHotOnesHot) {
  TelemetryOptions o;
  o.problems_max = 1024;
  Telemetry t(o);
  std::mt19937_64 random(7);
  int64_t next_shape = 100;
  std::vector<Sample> batch;
  for (int second = 0; second < 100; ++second) {
    batch.clear();
    for (int i = 0; i < 10'000; ++i) batch.push_back(sample(1, next_shape++, 1000));
    for (int hot = 0; hot < 10; ++hot) batch.push_back(sample(1, hot, 1e5 * (hot + 1)));
    std::shuffle(batch.begin(), batch.end(), random);
    t.add(batch, second * kSecond);
  }
  EXPECT_EQ(next_shape - 100, 1'000'000);
  EXPECT_EQ(t.problems(), 1024u);
  const auto ranked = t.ranking(1);
  ASSERT_LE(ranked[0].problems.size(), o.problems_per_definition);
  std::vector<int64_t> hot_order;
  for (const HotProblem& p : ranked[0].problems)
    if (p.axes[0] < 10) hot_order.push_back(p.axes[0]);
  EXPECT_EQ(hot_order, (std::vector<int64_t>{9, 8, 7, 6, 5, 4, 3, 2, 1, 0}));
  // The hot ten are 5.5 of 15.5 parts; the rest is the tail's, shown by its sample.
  double hot = 0, tail = 0;
  int tail_problems = 0;
  for (const HotProblem& p : ranked[0].problems) {
    (p.axes[0] < 10 ? hot : tail) += p.weight;
    tail_problems += p.axes[0] >= 100;
  }
  EXPECT_NEAR(hot, 5.5 / 15.5, 0.02);
  EXPECT_NEAR(hot + tail, 1, 1e-9);
  EXPECT_NEAR(ranked[0].tail_share, 10 / 15.5, 0.02);
  EXPECT_GE(tail_problems, 8);
}

TEST(Telemetry, TheTailIsShownInProportionToItsTime) {
  // Nothing repeats; three quarters of the time is spent in shapes of 1,000 and more.
  TelemetryOptions o;
  o.problems_max = 64;
  double large = 0, all = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    o.seed = seed;
    Telemetry t(o);
    std::vector<Sample> batch;
    for (int i = 0; i < 4000; ++i)
      batch.push_back(sample(1, i < 2000 ? 10'000 + i : i - 2000, i < 2000 ? 300 : 100));
    std::shuffle(batch.begin(), batch.end(), std::mt19937_64(seed));
    t.add(batch, 0);
    for (const HotProblem& p : t.ranking(1)[0].problems) {
      all += p.weight;
      if (p.axes[0] >= 10'000) large += p.weight;
    }
  }
  EXPECT_NEAR(large / all, 0.75, 0.05);  // 40 times 32 samples: a standard error of 0.012
}

TEST(Telemetry, WhatWasHotIsForgotten) {
  TelemetryOptions o;
  o.half_life_ns = 10 * kSecond;
  Telemetry t(o);
  feed(t, {sample(1, 8, 1e9)}, 0);
  for (int s = 1; s <= 120; ++s) feed(t, {sample(2, 8, 1e7), sample(3, s, 1e5)}, s * kSecond);
  auto ranked = t.ranking(3);
  EXPECT_EQ(ranked[0].definition, 2u);
  // 12 half-lives on, 1e9 is worth 244 thousand.
  const auto old =
      std::find_if(ranked.begin(), ranked.end(), [](const auto& h) { return h.definition == 1; });
  EXPECT_NEAR(old->device_ns_per_s, 1e9 / 4096 * std::log(2.0) / 10, 1e-3);
}

TEST(Telemetry, DecayStaysFiniteOverAYear) {
  TelemetryOptions o;
  o.half_life_ns = 5 * kSecond;
  Telemetry t(o);
  for (int day = 0; day < 365; ++day) {
    const int64_t now = int64_t{day} * 86'400 * kSecond;
    feed(t, {sample(1, 8, 100), sample(2, 9, 300)}, now);
    const auto ranked = t.ranking(2);
    ASSERT_EQ(ranked[0].definition, 2u) << day;
    ASSERT_NEAR(ranked[0].share, 0.75, 1e-6) << day;
    ASSERT_NEAR(ranked[0].problems[0].weight, 1, 1e-9) << day;
  }
}

TEST(Telemetry, TimeThatGoesBackwardsIsTakenAsNow) {
  Telemetry t({});
  feed(t, {sample(1, 8, 100)}, 100 * kSecond);
  feed(t, {sample(2, 8, 100)}, 50 * kSecond);
  const auto ranked = t.ranking(2);
  EXPECT_NEAR(ranked[0].savable_ns_per_s, ranked[1].savable_ns_per_s, 1e-9);
}

TEST(Telemetry, UnseenMeansNoEntryOfItsOwn) {
  const struct {
    Rung rung;
    FallbackReason reason;
    bool unseen;
  } rows[] = {
      {Rung::kFallback, FallbackReason::kMiss, true},
      {Rung::kFallback, FallbackReason::kGuard, true},
      {Rung::kRegion, FallbackReason::kNone, true},
      {Rung::kFallback, FallbackReason::kNoKernel, false},
      {Rung::kExact, FallbackReason::kNone, false},
      {Rung::kControl, FallbackReason::kNone, false},
      {Rung::kFallback, FallbackReason::kRolledBack, false},
  };
  for (const auto& row : rows) {
    Telemetry t({});
    feed(t, {sample(1, 8, 100, row.rung, row.reason)}, 0);
    const auto ranked = t.ranking(1);
    EXPECT_EQ(ranked[0].problems[0].unseen, row.unseen) << dispatch::rung_name(row.rung);
    EXPECT_EQ(ranked[0].unseen_share, row.unseen ? 1 : 0);
  }
}

TEST(Telemetry, ASessionsAnswerActsAtOnce) {
  Telemetry t({});
  feed(t,
       {sample(1, 8, 1000, Rung::kFallback, FallbackReason::kNoKernel),
        sample(2, 8, 500, Rung::kFallback, FallbackReason::kNoKernel)},
       0);
  EXPECT_EQ(t.ranking(2)[0].definition, 1u);
  t.set_saving(1, 0.01, 0.01);  // evolved and found nothing
  const auto ranked = t.ranking(2);
  EXPECT_EQ(ranked[0].definition, 2u);
  EXPECT_NEAR(ranked[1].savable_ns_per_s, 0.01 * ranked[1].device_ns_per_s, 1e-9);
  EXPECT_NEAR(ranked[1].problems[0].weight, 1, 1e-9);
}

TEST(Telemetry, DefinitionsPastTheBoundAreCountedNotLost) {
  TelemetryOptions o;
  o.definitions_max = 3;
  Telemetry t(o);
  for (uint32_t d = 1; d <= 5; ++d) feed(t, {sample(d, 8, 100)}, 0);
  EXPECT_EQ(t.definitions(), 3u);
  EXPECT_EQ(t.untracked_ns(), 200);
  EXPECT_NEAR(t.ranking(1)[0].share, 0.2, 1e-12);  // shares stay shares of everything
}

TEST(Telemetry, NonsenseSamplesAreIgnored) {
  Telemetry t({});
  feed(t,
       {sample(1, 8, NAN), sample(1, 8, -5), sample(1, 8, INFINITY),
        sample(1, 8, 100, Rung::kFallback, FallbackReason::kMiss, 0)},
       0);
  EXPECT_EQ(t.total_ns_per_s(), 0);
  EXPECT_TRUE(t.ranking(3).empty());
}

TEST(Telemetry, ProblemsOfColdSitesAreCold) {
  TelemetryOptions o;
  o.reuse.llc_bytes = 1000;
  Telemetry t(o);
  for (int i = 0; i < 20; ++i) {
    Sample rare = sample(1, 8, 100), often = sample(2, 9, 100, Rung::kFallback, FallbackReason::kMiss, 100);
    rare.bytes = 600;    // once among 3,000 bytes
    often.bytes = 2400;  // each 30 bytes
    feed(t, {rare, often}, i * kSecond);
  }
  for (const HotDefinition& h : t.ranking(2))
    EXPECT_EQ(h.problems[0].cold, h.definition == 1) << h.definition;
}

TEST(ReuseTracker, FollowsAChangeWithHysteresis) {
  ReuseTracker::Options o;
  o.llc_bytes = 100;
  o.half_life_ns = 10 * kSecond;
  ReuseTracker r(o);
  const auto run = [&](int from, int to, double cold_share) {
    for (int s = from; s < to; ++s) {
      r.observe_gap(1, 1000, 10 * cold_share, s * kSecond);
      r.observe_gap(1, 10, 10 * (1 - cold_share), s * kSecond);
    }
    return r.state(1);
  };
  EXPECT_EQ(r.state(1), CacheState::kUnknown);
  r.observe_gap(1, 1000, 1, 0);
  EXPECT_EQ(r.state(1), CacheState::kUnknown) << "one call is no evidence";
  EXPECT_EQ(run(0, 60, 1.0), CacheState::kCold);
  EXPECT_EQ(run(60, 160, 0.5), CacheState::kCold) << "inside the hysteresis nothing changes";
  EXPECT_EQ(run(160, 260, 0.2), CacheState::kWarm);
  EXPECT_EQ(run(260, 360, 0.5), CacheState::kWarm);
  EXPECT_EQ(run(360, 460, 0.8), CacheState::kCold);
}

TEST(ReuseTracker, SitesPastTheBoundStayUnknown) {
  ReuseTracker::Options o;
  o.sites_max = 2;
  ReuseTracker r(o);
  for (uint32_t site = 1; site <= 3; ++site) r.observe_gap(site, 1e9, 100, 0);
  EXPECT_EQ(r.state(2), CacheState::kCold);
  EXPECT_EQ(r.state(3), CacheState::kUnknown);
  EXPECT_EQ(r.sites(), 2u);
  EXPECT_EQ(r.untracked(), 1u);
}

}  // namespace
}  // namespace niche::telemetry
