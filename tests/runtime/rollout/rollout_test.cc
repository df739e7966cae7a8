#include "runtime/rollout/rollout.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/rollout/flap_guard.h"
#include "runtime/rollout/request_fold.h"
#include "runtime/rollout/shape_predictor.h"

namespace niche::rollout {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// In canary at once, at `calls_per_s`.
Rollout in_canary(double calls_per_s, Policy policy = {}) {
  Rollout r(policy, 0);
  for (int i = 0; i < policy.shadow_matches_min; ++i) r.shadow_match();
  r.tick(calls_per_s, 0);
  return r;
}

// One pair per call; the challenger takes `ratio` times the control's time.
Decision pairs(Rollout& r, int n, double ratio, int64_t now = kSecond) {
  Decision d = r.decision();
  for (int i = 0; i < n; ++i) {
    // Some spread, the same for both.
    const double noise = 0.01 * ((i * 7) % 11 - 5);
    r.observe({Arm::kControl, noise}, now);
    d = r.observe({Arm::kChallenger, noise + std::log(ratio)}, now);
  }
  return d;
}

TEST(Rollout, CanaryNeedsShadowComparisons) {
  Rollout r({}, 0);
  EXPECT_EQ(r.tick(100, kSecond).stage, Stage::kShadow);
  for (int i = 0; i < Policy{}.shadow_matches_min; ++i) r.shadow_match();
  const Decision d = r.tick(100, 2 * kSecond);
  EXPECT_EQ(d.stage, Stage::kCanary);
  EXPECT_TRUE(d.changed);
  EXPECT_FALSE(r.tick(100, 3 * kSecond).changed);
}

TEST(Rollout, WithoutAnyComparisonTheCanaryBeginsAfterAWait) {
  Rollout r({}, 0);
  EXPECT_EQ(r.tick(100, Policy{}.shadow_wait_ns - 1).stage, Stage::kShadow);
  EXPECT_EQ(r.tick(100, Policy{}.shadow_wait_ns).stage, Stage::kCanary);
  Rollout one({}, 0);
  one.shadow_match();  // comparisons are possible: wait for enough of them
  EXPECT_EQ(one.tick(100, 10 * Policy{}.shadow_wait_ns).stage, Stage::kShadow);
}

TEST(Rollout, TheFirstShareFollowsTheTraffic) {
  const struct {
    double calls_per_s, share;
  } rows[] = {{0, 0.10}, {1, 0.10}, {50, 0.10}, {100, 0.05}, {500, 0.01}, {5'000, 0.001}, {100'000, 0.001}};
  for (const auto& row : rows)
    EXPECT_NEAR(in_canary(row.calls_per_s).decision().share, row.share, 1e-12) << row.calls_per_s;
}

TEST(Rollout, TheShareClimbsStepByStepWithEvidence) {
  Rollout r = in_canary(100'000);
  std::vector<double> shares{r.decision().share};
  for (int i = 0; i < 300 && r.decision().stage == Stage::kCanary; ++i) {
    const Decision d = pairs(r, 1, 0.7);
    if (d.changed) shares.push_back(d.share);
  }
  EXPECT_EQ(r.decision().stage, Stage::kIncumbent);
  EXPECT_EQ(shares, (std::vector<double>{0.001, 0.01, 0.10, 0.50, 0}));
}

TEST(Rollout, WithoutEvidenceOnlyPatienceClimbs) {
  Rollout r = in_canary(100'000);
  pairs(r, Policy{}.step_pairs_patient - 1, 1.0);
  EXPECT_EQ(r.decision().share, 0.001);
  pairs(r, 1, 1.0);
  EXPECT_EQ(r.decision().share, 0.01);
}

TEST(Rollout, NothingClimbsWhileItLooksSlower) {
  Rollout r = in_canary(100'000);
  for (int i = 0; i < 60 && r.decision().stage == Stage::kCanary; ++i) {
    pairs(r, 1, i % 5 < 2 ? 0.9 : 1.1);  // three losses to two wins
    if (r.e_slower() >= 2) {
      EXPECT_EQ(r.decision().share, 0.001) << i;
    }
  }
}

TEST(Rollout, PromotionNeedsTheTailsObservations) {
  Rollout r = in_canary(10);
  pairs(r, Policy{}.tail_observations_min - 1, 0.7);
  EXPECT_EQ(r.decision().stage, Stage::kCanary);
  EXPECT_GE(r.e_faster(), 100);
  EXPECT_NE(r.explain().find("waits for observations of p99"), std::string::npos) << r.explain();
  EXPECT_EQ(pairs(r, 1, 0.7).stage, Stage::kIncumbent);
}

TEST(Rollout, AQuickKernelWithASlowTailIsNotPromoted) {
  // Quicker in 19 of 20 calls, three times as slow in the twentieth: the sign test alone would promote it.
  Policy p;
  p.pairs_max = 2000;
  Rollout r = in_canary(10, p);
  int i = 0;
  while (r.decision().stage == Stage::kCanary) pairs(r, 1, ++i % 20 == 0 ? 3.0 : 0.95);
  EXPECT_GE(r.e_faster(), 100);
  EXPECT_GT(r.mean_ratio(), 1);
  EXPECT_EQ(r.decision().cause, Cause::kNotProven);
  EXPECT_FALSE(r.decision().quarantine);
}

TEST(Rollout, AGoodMeanWithABadP99IsNotPromoted) {
  Policy p;
  p.pairs_max = 2000;
  Rollout r = in_canary(10, p);
  int i = 0;
  while (r.decision().stage == Stage::kCanary) pairs(r, 1, ++i % 50 == 0 ? 1.5 : 0.8);
  EXPECT_LT(r.mean_ratio(), 0.9);
  EXPECT_GT(r.tail_ratio(), 1.05);
  EXPECT_EQ(r.decision().cause, Cause::kNotProven);
}

TEST(Rollout, SlowerIsRolledBackAndQuarantinedWithinFewPairs) {
  Rollout r = in_canary(100);
  int n = 0;
  while (r.decision().stage == Stage::kCanary && n < 100) pairs(r, 1, 1.5), ++n;
  EXPECT_LE(n, 8);
  EXPECT_EQ(r.decision().cause, Cause::kSlower);
  EXPECT_TRUE(r.decision().quarantine);
  EXPECT_EQ(r.decision().share, 0);
  EXPECT_NE(r.explain().find("slower on live traffic; quarantined"), std::string::npos) << r.explain();
}

TEST(Rollout, LessThanTheMarginSlowerIsNotCondemned) {
  Policy p;
  p.pairs_max = 3000;
  Rollout r = in_canary(100, p);
  while (r.decision().stage == Stage::kCanary) pairs(r, 1, 1.009);
  EXPECT_EQ(r.decision().cause, Cause::kNotProven);
}

TEST(Rollout, NothingBringsBackWhatWasRolledBack) {
  Rollout r = in_canary(100);
  const Decision d = pairs(r, 300, 2.0);
  EXPECT_EQ(d.stage, Stage::kRolledBack);
  EXPECT_EQ(d.cause, Cause::kSlower);
  EXPECT_TRUE(d.quarantine);
  EXPECT_EQ(d.share, 0);
  EXPECT_EQ(pairs(r, 300, 0.5).stage, Stage::kRolledBack);
  EXPECT_EQ(r.tick(100, 100 * kSecond).stage, Stage::kRolledBack);
  EXPECT_EQ(r.decision().cause, Cause::kSlower);
}

TEST(Rollout, TimeAndPairsAreBounded) {
  Policy p;
  Rollout r = in_canary(1, p);
  EXPECT_EQ(r.tick(1, p.canary_ns_max - 1).stage, Stage::kCanary);
  EXPECT_EQ(r.tick(1, p.canary_ns_max).cause, Cause::kNotProven);
}

TEST(Rollout, NonsenseObservationsAreIgnored) {
  Rollout r = in_canary(100);
  for (int i = 0; i < 100; ++i) {
    r.observe({Arm::kControl, 0}, kSecond);
    r.observe({Arm::kChallenger, i % 2 == 0 ? NAN : INFINITY}, kSecond);
  }
  EXPECT_EQ(r.pairs(), 0);
  EXPECT_EQ(r.decision().stage, Stage::kCanary);
}

TEST(Rollout, ASuspectIsJudgedHalfAndHalf) {
  Rollout r({}, 0);
  EXPECT_EQ(r.start_in_canary(0).share, 0.5);
  EXPECT_EQ(pairs(r, 300, 0.7).stage, Stage::kIncumbent);
}

TEST(AdjacentPairs, PairsOnlyNeighboursOfDifferentArms) {
  AdjacentPairs p;
  EXPECT_FALSE(p.add({Arm::kControl, 1}));
  EXPECT_FALSE(p.add({Arm::kControl, 2}));  // replaces the older one
  const auto first = p.add({Arm::kChallenger, 3});
  ASSERT_TRUE(first);
  EXPECT_EQ(first->control, 2);
  EXPECT_EQ(first->challenger, 3);
  EXPECT_FALSE(p.add({Arm::kChallenger, 4}));
  const auto second = p.add({Arm::kControl, 5});
  ASSERT_TRUE(second);
  EXPECT_EQ(second->challenger, 4);
  EXPECT_EQ(second->control, 5);
}

TEST(PairEvidence, StaysWithinItsBoundsOverManyPairs) {
  PairEvidence fast, slow, tie;
  for (int i = 0; i < 20'000; ++i) {
    fast.add(std::log(0.5), 0);
    slow.add(std::log(2.0), 0);
    tie.add(0.3, 0.3);
    fast.add(NAN, 0);
  }
  EXPECT_EQ(fast.pairs(), 20'000);
  EXPECT_TRUE(std::isfinite(fast.e_faster()));
  EXPECT_GT(fast.e_faster(), 1e100);
  EXPECT_LT(fast.e_slower(), 1e-100);
  EXPECT_GT(slow.e_slower(), 1e100);
  EXPECT_LT(tie.e_faster(), 1);  // within the margin is evidence for neither
  EXPECT_LT(tie.e_slower(), 1);
}

TEST(PairEvidence, ThinksInRatiosNotInUnits) {
  PairEvidence a, b;
  for (int i = 0; i < 50; ++i) {
    a.add(0.1 * (i % 7) - 0.2, 0.1 * (i % 5));
    b.add(0.1 * (i % 7) - 0.2 + 10, 0.1 * (i % 5) + 10);
  }
  EXPECT_NEAR(a.e_faster(), b.e_faster(), 1e-6 * a.e_faster());
}

TEST(ArmTail, QuantilesToOnePercent) {
  ArmTail t;
  EXPECT_EQ(t.quantile(0.5), 0);
  for (int i = 1; i <= 1000; ++i) t.add(std::log(i / 500.0));
  EXPECT_NEAR(t.quantile(0.5), 1.0, 0.011);
  EXPECT_NEAR(t.quantile(0.99), 1.98, 0.021);
  t.add(100);  // outside: the last bucket, not memory
  t.add(-100);
  EXPECT_EQ(t.count(), 1002);
  EXPECT_NEAR(t.quantile(1), std::exp(5), 1e-6);
}

TEST(MeanBound, OneStallDoesNotDecideATailDoes) {
  MeanBound stall, tail;
  for (int i = 0; i < 400; ++i) {
    stall.add(std::log(i == 100 ? 1e6 : 0.8 + 0.001 * (i % 10)), 0);
    tail.add(std::log(i % 4 == 0 ? 2.5 : 0.8), 0);
  }
  EXPECT_LT(stall.ratio_upper(), 1);
  EXPECT_GT(tail.ratio_upper(), 1);
  EXPECT_NEAR(tail.ratio(), 0.25 * 2.5 + 0.75 * 0.8, 1e-9);
  EXPECT_TRUE(std::isinf(MeanBound().ratio_upper()));
}

TEST(ShapePredictor, ShapesOfDifferentSizeBecomeComparable) {
  ShapePredictor p;
  for (int i = 0; i < 2000; ++i) {
    const double work = 1 << (i % 8);
    p.log_ratio(static_cast<uint64_t>(i % 8), work,
                500 + 10 * work);  // not a power law: each shape has its own mean
  }
  for (int s = 0; s < 8; ++s)
    EXPECT_NEAR(p.log_ratio(static_cast<uint64_t>(s), 1 << s, 500 + 10 * (1 << s)), 0, 1e-6) << s;
  EXPECT_NEAR(p.log_ratio(3, 8, 1.3 * 580), std::log(1.3), 1e-6);
}

TEST(ShapePredictor, ShapesThatNeverRepeatFollowTheLine) {
  ShapePredictor p(16);
  double worst = 0;
  for (int i = 1; i <= 3000; ++i) {
    const double work = 100 + (i * 7919) % 10'000;
    const double ratio = p.log_ratio(static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15ULL, work, 3 * work);
    if (i > 100) worst = std::max(worst, std::abs(ratio));
  }
  EXPECT_LT(worst, 0.02);
  EXPECT_EQ(p.shapes(), 16u);
}

TEST(RequestFold, CallsOfARequestAreOneObservation) {
  RequestFold fold(kSecond, 8);
  std::vector<Observation> out;
  fold.add(7, Arm::kChallenger, std::log(2.0), 200, 0, &out);  // predicted 100
  fold.add(8, Arm::kControl, 0, 50, 0, &out);
  fold.add(7, Arm::kChallenger, std::log(0.5), 150, 10, &out);  // predicted 300
  EXPECT_TRUE(out.empty());
  fold.close(7, &out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].arm, Arm::kChallenger);
  EXPECT_NEAR(out[0].log_ratio, std::log(350.0 / 400.0), 1e-12);
  fold.drain(kSecond - 1, &out);
  EXPECT_EQ(out.size(), 1u);
  fold.drain(kSecond, &out);
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[1].arm, Arm::kControl);
  EXPECT_EQ(fold.open(), 0u);
}

TEST(RequestFold, CallsWithoutARequestStandAlone) {
  RequestFold fold;
  std::vector<Observation> out;
  for (int i = 0; i < 3; ++i) fold.add(0, Arm::kControl, 0.1, 10, 0, &out);
  EXPECT_EQ(out.size(), 3u);
}

TEST(RequestFold, OpenRequestsAreBoundedAndMixedOnesSayNothing) {
  RequestFold fold(kSecond, 4);
  std::vector<Observation> out;
  for (uint64_t id = 1; id <= 10; ++id) fold.add(id, Arm::kControl, 0, 10, 0, &out);
  EXPECT_EQ(fold.open(), 4u);
  EXPECT_EQ(out.size(), 6u);
  out.clear();
  fold.add(10, Arm::kChallenger, 0, 10, 0, &out);
  fold.close(10, &out);
  EXPECT_TRUE(out.empty());
  fold.add(9, Arm::kControl, NAN, 10, 0, &out);
  fold.add(9, Arm::kControl, 0, -1, 0, &out);
  fold.close(9, &out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].log_ratio, 0);
}

TEST(FlapGuard, ANewIncumbentStaysLongerTheMoreItChanged) {
  FlapGuard g;
  int64_t now = 0, last = 0;
  for (uint64_t k = 1; k <= 12; ++k) {
    ASSERT_TRUE(g.may_challenge(k, now).allowed) << k;
    g.promoted(k, now);
    const auto answer = g.may_challenge(k + 1, now);
    ASSERT_FALSE(answer.allowed);
    EXPECT_FALSE(answer.reason.empty());
    const int64_t wait = answer.not_before_ns - now;
    EXPECT_GE(wait, 2 * kSecond);
    EXPECT_LE(wait, 600 * kSecond);
    if (k < 6) {
      EXPECT_GT(wait, last);
    }
    last = wait;
    now = answer.not_before_ns;
  }
  now += 3600 * kSecond;
  EXPECT_EQ(g.dwell_ns(now), 2 * kSecond) << "calm is forgotten flapping";
}

TEST(FlapGuard, AKernelThatWasNotProvenWaitsAndThenNeedsAVerdict) {
  FlapGuard g;
  int64_t now = 0, last = 0;
  for (int attempt = 1; attempt <= FlapGuard::kAttemptsMax; ++attempt) {
    ASSERT_TRUE(g.may_challenge(1, now).allowed);
    g.rolled_back(1, Cause::kNotProven, now);
    const auto answer = g.may_challenge(1, now);
    ASSERT_FALSE(answer.allowed);
    if (attempt == FlapGuard::kAttemptsMax) break;
    EXPECT_GT(answer.not_before_ns - now, last);
    last = answer.not_before_ns - now;
    now = answer.not_before_ns;
    EXPECT_TRUE(g.may_challenge(2, now).allowed) << "others need not wait for it";
  }
  EXPECT_EQ(g.may_challenge(1, now + 1'000'000 * kSecond).not_before_ns, 0);
  g.new_verdict(1);
  EXPECT_TRUE(g.may_challenge(1, now).allowed);
}

TEST(FlapGuard, ADethronedIncumbentDoesNotComeStraightBack) {
  FlapGuard g;
  g.promoted(1, 0);
  g.rolled_back(1, Cause::kWithdrawn, 100 * kSecond);
  EXPECT_FALSE(g.may_challenge(1, 101 * kSecond).allowed);
  EXPECT_TRUE(g.may_challenge(2, 101 * kSecond).allowed);
  EXPECT_TRUE(g.may_challenge(1, 701 * kSecond).allowed);
}

TEST(FlapGuard, MemoryIsBounded) {
  FlapGuard g;
  for (uint64_t k = 1; k <= 3 * FlapGuard::kKernelsMax; ++k)
    g.rolled_back(k, Cause::kNotProven, static_cast<int64_t>(k));
  const int64_t now = 3 * static_cast<int64_t>(FlapGuard::kKernelsMax);
  EXPECT_TRUE(g.may_challenge(1, now).allowed);
  EXPECT_FALSE(g.may_challenge(3 * FlapGuard::kKernelsMax, now).allowed);
}

}  // namespace
}  // namespace niche::rollout
