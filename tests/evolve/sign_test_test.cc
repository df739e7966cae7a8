#include "evolve/sign_test.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace niche::evolve {
namespace {

// Runs a pair stream of true ratio `speedup` with heavy-tailed noise. Returns the final test, stopped at
// `stop`.
SignTest run(double speedup, uint64_t seed, int pairs, double stop) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> noise(0, 0.01);
  std::bernoulli_distribution outlier(0.03);
  SignTest test(0.01);
  double wander = 0;
  for (int i = 0; i < pairs && test.e_faster() < stop && test.e_slower() < stop; ++i) {
    wander = 0.9 * wander + noise(random);
    const auto sample = [&](double base) {
      return base * std::exp(wander + noise(random)) * (outlier(random) ? 1.5 : 1.0);
    };
    const double a = sample(100), b = sample(100 / speedup);
    test.add(a, b);
  }
  return test;
}

TEST(SignTest, EqualTimesAreDeclaredFasterAtMostAsOftenAsAlpha) {
  int faster = 0, slower = 0;
  constexpr int kRuns = 1000;
  for (uint64_t seed = 0; seed < kRuns; ++seed) {
    const SignTest t = run(1.0, seed, 300, 100);
    faster += t.e_faster() >= 100;
    slower += t.e_slower() >= 100;
  }
  EXPECT_LE(faster, kRuns / 100 * 2);
  EXPECT_LE(slower, kRuns / 100 * 2);
}

TEST(SignTest, FivePercentIsFoundWithinFewPairsAndHasTheRightSign) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const SignTest fast = run(1.05, seed, 400, 100);
    EXPECT_GE(fast.e_faster(), 100) << seed;
    EXPECT_LT(fast.pairs(), 100) << seed;
    EXPECT_LT(fast.e_slower(), 1);
    const SignTest slow = run(1 / 1.05, seed, 400, 100);
    EXPECT_GE(slow.e_slower(), 100) << seed;
    EXPECT_LT(slow.e_faster(), 1);
  }
}

TEST(SignTest, DifferenceBelowTheMarginIsNoWin) {
  SignTest t(0.01);
  for (int i = 0; i < 200; ++i) t.add(100.5, 100);
  EXPECT_EQ(t.wins(), 0);
  EXPECT_LT(t.e_faster(), 1e-3);
}

TEST(SignTest, TenClearWinsAreEnoughForOnePercentError) {
  SignTest t(0.01);
  int n = 0;
  while (t.e_faster() < 100) t.add(200, 100), ++n;
  EXPECT_LE(n, 10);
}

TEST(SignTest, LongOneSidedStreamsStayFinite) {
  SignTest t(0.01);
  for (int i = 0; i < 100000; ++i) t.add(200, 100);
  EXPECT_TRUE(std::isfinite(t.e_faster()));
  EXPECT_GE(t.e_slower(), 0);
  EXPECT_EQ(t.e_faster_max(), t.e_faster());
}

TEST(SignTest, UnusableTimesAreIgnored) {
  SignTest t;
  t.add(0, 1), t.add(1, NAN), t.add(INFINITY, 1), t.add(-1, 1);
  EXPECT_EQ(t.pairs(), 0);
}

TEST(SignTest, ExpectedPairsAgreesWithTheStream) {
  // p = .75: simulate and compare with the planning formula within a factor of two.
  std::mt19937_64 random(7);
  std::bernoulli_distribution win(0.75);
  double total = 0;
  for (int r = 0; r < 300; ++r) {
    SignTest t;
    while (t.e_faster() < 100) win(random) ? t.add(2, 1) : t.add(1, 2);
    total += static_cast<double>(t.pairs());
  }
  const double expected = sign_test_expected_pairs(0.75, 0.01);
  EXPECT_GT(total / 300, expected / 2);
  EXPECT_LT(total / 300, expected * 2);
  EXPECT_TRUE(std::isinf(sign_test_expected_pairs(0.5, 0.01)));
}

TEST(BootstrapRatio, IntervalCoversTheTrueRatioAndIsReproducible) {
  std::mt19937_64 random(3);
  std::lognormal_distribution<double> noise(0, 0.05);
  std::vector<double> a, b;
  for (int i = 0; i < 101; ++i) a.push_back(130 * noise(random)), b.push_back(100 * noise(random));
  const RatioInterval r = bootstrap_ratio(a, b, 11);
  EXPECT_LT(r.low, 1.3);
  EXPECT_GT(r.high, 1.3);
  EXPECT_LT(r.high - r.low, 0.1);
  const RatioInterval again = bootstrap_ratio(a, b, 11);
  EXPECT_EQ(r.low, again.low);
  EXPECT_EQ(r.high, again.high);
}

TEST(BootstrapRatio, NoPairGivesOne) {
  const RatioInterval r = bootstrap_ratio({}, {}, 1);
  EXPECT_EQ(r.median, 1);
  EXPECT_EQ(r.low, 1);
  EXPECT_EQ(r.high, 1);
}

}  // namespace
}  // namespace niche::evolve
