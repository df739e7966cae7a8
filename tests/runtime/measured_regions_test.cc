// From verdicts to regions, and what unseen shapes then get.
#include "runtime/measured_regions.h"

#include "runtime/route_board.h"
#include "tests/dispatch/data_plane_fixture.h"

namespace niche::core {
namespace {

using dispatch::Decision;
using dispatch::Guard;
using dispatch::Rung;
using dispatch::testing::box;
using dispatch::testing::toy_kernel;

class MeasuredRegions : public dispatch::testing::DataPlane {
 protected:
  struct At {
    int64_t b, l;
    double speedup, half_width = 0;
  };
  std::shared_ptr<const ResidentKernel> kernel(int tag, std::vector<At> measured,
                                               Guard guard = box(1, 4096, 1, 64)) {
    auto k = std::make_shared<ResidentKernel>();
    k->kernel = toy_kernel(definition, tag, guard);
    k->ref.kernel = k->kernel->name;
    k->definition = number;
    k->fallback_ns = 2000;
    k->kernel_ns = 1000;
    for (const At& m : measured) {
      evolve::PointTiming t;
      t.var_axes = {m.b, m.l};
      t.speedup = m.speedup;
      t.ci_low = m.speedup - m.half_width;
      t.ci_high = m.speedup + m.half_width;
      k->timing.push_back(t);
    }
    return k;
  }
  // 0: the library.
  int serves(int64_t b, int64_t l = 8) {
    const Decision dec = decide(b, l);
    return dec.kernel->is_fallback() ? 0 : dec.kernel->phase_count;
  }
};

// Published figures of one convolution: the kernel wins at 64, the library at 128 and 256, the kernel again
// from 512 on.
TEST_F(MeasuredRegions, WinnersThatAreNotMonotoneAreServedWhereTheyWin) {
  RouteBoard board(*d, number, 1);
  board.add_serving(kernel(
      1, {{48, 8, 1.06}, {64, 8, 1.07}, {128, 8, 0.97}, {256, 8, 0.96}, {512, 8, 1.05}, {768, 8, 1.06}}));
  ASSERT_TRUE(board.publish().ok());
  EXPECT_EQ(serves(56), 1);
  EXPECT_EQ(serves(100), 0) << "between a win and a loss";
  EXPECT_EQ(serves(200), 0);
  EXPECT_EQ(serves(400), 0);
  EXPECT_EQ(serves(600), 1);
  EXPECT_EQ(decide(600, 8).rung, Rung::kRegion);
  EXPECT_EQ(serves(3000), 0) << "nothing was measured there, and such gains do not reach far";
  EXPECT_EQ(serves(200, 64), 0) << "another length: nothing was measured there either";
}

TEST_F(MeasuredRegions, OnlyALargeGainCountsWhereNothingWasMeasured) {
  RouteBoard board(*d, number, 1);
  board.add_serving(kernel(1, {{64, 8, 1.35}}));
  ASSERT_TRUE(board.publish().ok());
  EXPECT_EQ(serves(3000), 1) << "in its Guard";
  EXPECT_EQ(serves(5000), 0) << "outside it";
  ASSERT_TRUE(board.withdraw(board.serving()[0]->id()).ok());
  board.add_serving(kernel(1, {{64, 8, 1.25}}));
  ASSERT_TRUE(board.publish().ok());
  EXPECT_EQ(serves(3000), 0);
  EXPECT_EQ(serves(65), 0) << "not even close by, until it is seen";
  for (const int64_t b : {64, 65, 128, 129, 3000}) board.see(problem(b, 8), 1);
  ASSERT_TRUE(board.publish().ok());
  EXPECT_EQ(serves(64), 1);
  EXPECT_EQ(serves(65), 1);
  EXPECT_EQ(serves(128), 1);
  EXPECT_EQ(serves(129), 0) << "further off than a factor of two";
  EXPECT_EQ(serves(3000), 0);
}

// A decode product's kernel: 1.32 times the library for one token, level with it for 16, slower for those between.
TEST_F(MeasuredRegions, ASeenProblemBetweenAWinAndATieIsTheLibrarysUntilItIsTimed) {
  RouteBoard board(*d, number, 1);
  board.add_serving(kernel(1, {{1, 8, 1.32}, {16, 8, 1.01}}));
  for (const int64_t b : {1, 2, 9}) board.see(problem(b, 8), 1);
  ASSERT_TRUE(board.publish().ok());
  EXPECT_EQ(serves(1), 1);
  EXPECT_EQ(serves(2), 0);
  EXPECT_EQ(serves(9), 0);
}

TEST_F(MeasuredRegions, OfTwoKernelsEachServesWhereItWasMeasuredToBeBetter) {
  RouteBoard board(*d, number, 1);
  board.add_serving(kernel(1, {{8, 8, 2.0}, {16, 8, 2.0}, {32, 8, 1.2}, {64, 8, 1.2}}));
  board.add_serving(kernel(2, {{8, 8, 1.3}, {16, 8, 1.3}, {32, 8, 1.9}, {64, 8, 1.9}}));
  ASSERT_TRUE(board.publish().ok());
  EXPECT_EQ(serves(12), 1);
  EXPECT_EQ(serves(48), 2);
  // One goes: the other answers what it can.
  const uint64_t second =
      board.serving()[1]->kernel->phase_count == 2 ? board.serving()[1]->id() : board.serving()[0]->id();
  ASSERT_TRUE(board.withdraw(second).ok());
  EXPECT_EQ(serves(12), 1);
  EXPECT_EQ(serves(48), 1);
}

TEST_F(MeasuredRegions, AGainWithinTheNoiseIsNone) {
  const auto noisy = kernel(1, {{8, 8, 1.06, 0.06}, {16, 8, 1.06, 0.06}});
  const auto sure = kernel(1, {{8, 8, 1.06, 0.01}, {16, 8, 1.06, 0.01}});
  const auto of = [](const std::shared_ptr<const ResidentKernel>& k) {
    return draw_measured_regions(std::span(&k, 1), 2);
  };
  ASSERT_EQ(of(noisy).size(), 1u);
  EXPECT_EQ(of(noisy)[0].kernel, nullptr);
  ASSERT_EQ(of(sure).size(), 1u);
  EXPECT_EQ(of(sure)[0].kernel, sure);
}

TEST_F(MeasuredRegions, WhatCannotBeCarriedIsLeftToTheGuards) {
  const auto of = [](const std::shared_ptr<const ResidentKernel>& k) {
    return draw_measured_regions(std::span(&k, 1), 2).size();
  };
  EXPECT_EQ(of(kernel(1, {})), 0u);
  EXPECT_EQ(of(kernel(1, {{64, 8, 2}})), 0u) << "one point";
  EXPECT_EQ(of(kernel(1, {{16, 8, 1.2}, {256, 8, 1.2}})), 0u) << "too far apart for such a gain";
  EXPECT_EQ(of(kernel(1, {{16, 8, 2}, {256, 8, 2}})), 1u);
  EXPECT_EQ(of(kernel(1, {{64, 8, 2}, {100, 8, 2}}, box(1, 80, 1, 64))), 0u) << "outside its Guard";
  std::vector<At> many;
  for (int64_t b = 16; b < 3000; ++b) many.push_back({b, 8, b % 2 == 0 ? 2.0 : 0.5});
  EXPECT_LE(of(kernel(1, many)), static_cast<size_t>(kMeasuredRegionsMax))
      << "bounded, whatever was measured";
}

}  // namespace
}  // namespace niche::core
