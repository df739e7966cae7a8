#include "dispatch/niche_map.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/dispatch/data_plane_fixture.h"

namespace niche::dispatch {
namespace {

Guard batches(int64_t lo, int64_t hi, int64_t multiple_of = 1) {
  Guard g;
  g.var[0] = {lo, hi, multiple_of};
  g.var_count = 1;
  g.alignment_bytes = 16;
  return g;
}
MeasuredPoint at(int64_t b, std::vector<double> ns, double noise = 0) {
  return {{b}, std::move(ns), noise, 1};
}

const NicheCandidate kLibrary{true, {}};

class NicheMapTest : public ::testing::Test {
 protected:
  // Times of later candidates may be left out: not measured.
  NicheMap draw(std::vector<MeasuredPoint> points, const NicheMap* before = nullptr, int axes = 1) {
    for (MeasuredPoint& p : points) p.ns.resize(candidates.size());
    auto m = draw_niches(axes, points, candidates, policy, before);
    EXPECT_TRUE(m.ok()) << m.status().to_string();
    return m.ok() ? *m : NicheMap{};
  }
  int serves(const NicheMap& m, int64_t a, int64_t b = 0) {
    const int64_t axes[kMaxVarAxes] = {a, b};
    return m.at(axes);
  }
  std::vector<NicheCandidate> candidates{kLibrary, {false, batches(1, 4096)}, {false, batches(1, 4096)}};
  NichePolicy policy;
};

// conv1d FP32 as published: kernel A wins at 64, the library at 128 and 256, A again from 512.
TEST_F(NicheMapTest, WinnersThatAreNotMonotoneKeepTheirHoles) {
  const NicheMap m = draw({at(32, {100, 94}), at(64, {200, 190}), at(128, {400, 405}), at(256, {800, 803}),
                           at(512, {1600, 1490}), at(1024, {3200, 3000})});
  for (const int64_t b : {32, 40, 63, 64, 512, 700, 1024}) EXPECT_EQ(serves(m, b), 1) << b;
  for (const int64_t b : {1, 31, 65, 100, 128, 200, 256, 300, 511, 1025}) EXPECT_EQ(serves(m, b), 0) << b;
  EXPECT_EQ(m.winners, (std::vector<int>{1, 1, 0, 0, 1, 1}));
}

TEST_F(NicheMapTest, AWinWithinTheMarginOrTheNoiseIsNoWin) {
  EXPECT_EQ(serves(draw({at(64, {100, 98}), at(128, {100, 98})}), 64), 0) << "2 % where 3 are asked";
  EXPECT_EQ(serves(draw({at(64, {100, 94}), at(128, {100, 94})}), 64), 1);
  EXPECT_EQ(serves(draw({at(64, {100, 94}, 0.021), at(128, {100, 94})}), 64), 0)
      << "6 % are less than three standard errors of 2.1 %";
}

TEST_F(NicheMapTest, NothingIsSaidOfGapsWiderThanTheEvidence) {
  const NicheMap m = draw({at(32, {100, 80}), at(64, {100, 80}), at(200, {100, 80}), at(400, {100, 80})});
  EXPECT_EQ(m.cells, 3);
  EXPECT_EQ(serves(m, 64), 1);
  EXPECT_EQ(serves(m, 65), 0);
  EXPECT_EQ(serves(m, 199), 0);
  EXPECT_EQ(serves(m, 200), 1);
  EXPECT_EQ(serves(m, 401), 0) << "never past the outermost point";
  EXPECT_EQ(m.winners, (std::vector<int>{1, 1, 1, 1})) << "exact entries need no neighbour";
  EXPECT_EQ(serves(draw({at(1, {100, 80}), at(9, {100, 80})}), 5), 1) << "small differences are close";
  EXPECT_EQ(serves(draw({at(1, {100, 80}), at(10, {100, 80})}), 5), 0);
}

// What can happen between two points costs a part of the win, so that a large one carries further.
TEST_F(NicheMapTest, AWideGapIsTakenByAWinThatIsLargeAtBothItsEnds) {
  const NicheMap m = draw({at(32, {100, 60}), at(400, {100, 65})});
  EXPECT_EQ(m.cells_too_wide, 0);
  EXPECT_EQ(serves(m, 100), 1);
  EXPECT_EQ(serves(m, 401), 0);
  EXPECT_EQ(serves(draw({at(32, {100, 60}), at(400, {100, 75})}), 100), 0) << "30 % are asked at each end";
  EXPECT_EQ(serves(draw({at(32, {100, 60}), at(400, {100, 90, 60})}), 100), 0) << "of one kernel";
  const NicheMap too_wide = draw({at(8, {100, 10}), at(129, {100, 10})});
  EXPECT_EQ(too_wide.cells_too_wide, 1) << "past a factor of 16 no win is large enough";
  EXPECT_EQ(serves(too_wide, 64), 0);
  policy.library_regions = true;
  EXPECT_EQ(draw({at(32, {100, 90}), at(400, {100, 90})}).regions.size(), 0u)
      << "nor is it known there that the library is better";
  const NicheMap tie = draw({at(32, {100, 60}), at(400, {100, 99})});
  ASSERT_EQ(tie.regions.size(), 1u) << "a tie at one end: who knows where it begins";
  EXPECT_EQ(tie.regions[0].candidate, 0);
}

TEST_F(NicheMapTest, ALibraryRegionIsDrawnWhereOneIsAskedFor) {
  const std::vector<MeasuredPoint> points{at(32, {100, 90}), at(64, {100, 90}), at(128, {100, 110})};
  EXPECT_EQ(draw(points).regions.size(), 1u);
  policy.library_regions = true;
  const NicheMap m = draw(points);
  ASSERT_EQ(m.regions.size(), 2u);
  EXPECT_EQ(m.regions[0].candidate, 1) << "kernels first";
  EXPECT_EQ(m.regions[1].candidate, 0);
  EXPECT_EQ(m.regions[1].box.var[0].lo, 64);
  EXPECT_EQ(m.regions[1].box.var[0].hi, 128);
}

// Different winners at its two ends: the one that is better than the library at both and loses least.
TEST_F(NicheMapTest, ACellBetweenTwoWinnersGoesToWhoeverLosesLeast) {
  const NicheMap m = draw({at(64, {100, 50, 60}), at(128, {100, 80, 60})});
  EXPECT_EQ(serves(m, 90), 2) << "loses 20 % at 64, where kernel 1 loses 33 % at 128";
  EXPECT_EQ(m.winners, (std::vector<int>{1, 2}));
  const NicheMap n = draw({at(64, {100, 50, 60}), at(128, {100, 101, 99})});
  EXPECT_EQ(serves(n, 90), 0) << "no kernel is good at both";
}

TEST_F(NicheMapTest, HysteresisKeepsWhoServesAndAMarginIsNeededToEnter) {
  policy.margin = 0.04;
  policy.hysteresis = 0.03;
  const auto points = [](double first, double second) {
    return std::vector{at(64, {100, first, second}), at(128, {100, first, second})};
  };
  const NicheMap a = draw(points(90, 92));
  ASSERT_EQ(serves(a, 100), 1);
  EXPECT_EQ(serves(draw(points(92, 90), &a), 100), 1) << "2 % better does not displace";
  EXPECT_EQ(serves(draw(points(95, 90), &a), 100), 2) << "5 % better does";
  EXPECT_EQ(serves(draw(points(98, 99), &a), 100), 1) << "2 % better than the library: may stay";
  EXPECT_EQ(serves(draw(points(98, 99)), 100), 0) << "but could not have entered";
  EXPECT_EQ(serves(draw(points(99.5, 99), &a), 100), 0) << "half a per cent: has to go";
}

// Measured times that wobble by their noise: the map moves no more than it must.
TEST_F(NicheMapTest, NoiseDoesNotMoveTheMap) {
  std::mt19937_64 rng(5);
  std::normal_distribution<double> wobble(1, 0.004);
  NicheMap m;
  int changes = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<MeasuredPoint> points;
    for (int64_t b = 16; b <= 4096; b *= 2)
      points.push_back(at(b, {100 * wobble(rng), 93 * wobble(rng), 93.3 * wobble(rng)}, 0.006));
    const NicheMap next = draw(points, round == 0 ? nullptr : &m);
    for (int64_t b = 16; b <= 4096; b += 16) changes += round != 0 && serves(next, b) != serves(m, b) ? 1 : 0;
    m = next;
  }
  EXPECT_EQ(changes, 0);
}

TEST_F(NicheMapTest, TiesGoToTheKernelThatServesMost) {
  const NicheMap m = draw({at(16, {100, 80, 81}), at(32, {100, 80, 81}), at(64, {100, 81, 80.5}),
                           at(128, {100, 81, 80.5}), at(256, {100, 80, 82})});
  EXPECT_EQ(m.regions.size(), 1u);
  EXPECT_EQ(serves(m, 90), 1);
}

TEST_F(NicheMapTest, AKernelOfMultiplesLeavesTheOthersToTheNextBest) {
  candidates[2].guard = batches(8, 4096, 8);
  const NicheMap m = draw({at(64, {100, 80, 50}), at(128, {100, 80, 50})});
  EXPECT_EQ(serves(m, 72), 2);
  EXPECT_EQ(serves(m, 73), 1);
  for (const NicheRegion& r : m.regions)
    EXPECT_TRUE(guard_inside(r.box, candidates[static_cast<size_t>(r.candidate)].guard));
}

TEST_F(NicheMapTest, AFormOfTheLibraryIsACandidateLikeAnyOther) {
  candidates[1] = kLibrary;
  const NicheMap m = draw({at(64, {100, 70, 69}), at(128, {100, 70, 69})});
  EXPECT_EQ(serves(m, 100), 1) << "the kernel's bar is the best form, and 1.4 % are within the margin";
  const NicheMap n = draw({at(64, {100, 70, 60}), at(128, {100, 70, 60})});
  EXPECT_EQ(serves(n, 100), 2);
}

TEST_F(NicheMapTest, TwoAxes) {
  Guard g = testing::box(1, 64, 1, 4096);
  candidates = {kLibrary, {false, g}};
  std::vector<MeasuredPoint> grid;
  for (const int64_t b : {8, 16, 32})
    for (const int64_t l : {128, 256, 512})
      grid.push_back({{b, l}, {100, b == 32 && l == 512 ? 120.0 : 50.0}, 0, 1});
  const NicheMap m = draw(grid, nullptr, 2);
  EXPECT_EQ(serves(m, 9, 500), 1);
  EXPECT_EQ(serves(m, 31, 255), 1);
  EXPECT_EQ(serves(m, 17, 257), 0) << "the cell of the corner where it loses";
  EXPECT_EQ(serves(m, 7, 200), 0);
  EXPECT_EQ(serves(m, 16, 513), 0);
  EXPECT_EQ(m.regions.size(), 2u) << "three cells of one kernel: an L";
  // Without two of its corners a cell may be as wide only over all axes together.
  const NicheMap diagonal = draw({{{8, 128}, {100, 50}, 0, 1}, {{16, 256}, {100, 50}, 0, 1}}, nullptr, 2);
  EXPECT_EQ(diagonal.cells_too_wide, 0) << "8 to 16 is close";
  EXPECT_EQ(serves(diagonal, 12, 200), 1);
  const NicheMap wide = draw({{{16, 128}, {100, 50}, 0, 1}, {{32, 256}, {100, 50}, 0, 1}}, nullptr, 2);
  EXPECT_EQ(wide.cells_too_wide, 1);
}

// Whatever was measured: a region lies inside its kernel's guard, every measured point that it serves was
// faster than the library by the margin there, and the map says nothing beyond the hull.
TEST_F(NicheMapTest, RandomMeasurementsKeepThePromises) {
  std::mt19937_64 rng(3);
  for (int round = 0; round < 60; ++round) {
    candidates = {kLibrary};
    for (int k = 0; k < 4; ++k) {
      const auto lo = static_cast<int64_t>(1 + rng() % 64);
      candidates.push_back({false, testing::box(lo, lo + 200, 1, 2000, 1 + static_cast<int64_t>(rng() % 3))});
    }
    std::vector<MeasuredPoint> points;
    for (int i = 0; i < 40; ++i) {
      MeasuredPoint p;
      p.axes = {static_cast<int64_t>(1 + rng() % 200), static_cast<int64_t>(1 + rng() % 1500)};
      p.ns = {100};
      for (size_t k = 1; k < candidates.size(); ++k)
        p.ns.push_back(candidates[k].guard.holds_var(p.axes.data()) ? 60 + static_cast<double>(rng() % 80)
                                                                    : 0);
      bool twice = false;
      for (const auto& q : points) twice |= q.axes == p.axes;
      if (!twice) points.push_back(p);
    }
    const NicheMap m = draw(points, nullptr, 2);
    ASSERT_LE(m.regions.size(), 64u);
    for (const NicheRegion& r : m.regions) {
      const auto k = static_cast<size_t>(r.candidate);
      ASSERT_TRUE(guard_inside(r.box, candidates[k].guard));
      ASSERT_GE(r.evidence, 2);
      for (const MeasuredPoint& p : points) {
        if (r.box.holds_var(p.axes.data())) {
          ASSERT_LE(p.ns[k], 97) << r.candidate;
          ASSERT_GT(p.ns[k], 0);
        }
      }
    }
  }
}

TEST_F(NicheMapTest, BadInputIsNamed) {
  const auto code = [&](std::vector<MeasuredPoint> p) {
    return draw_niches(1, p, candidates, policy).status();
  };
  EXPECT_EQ(code({at(64, {100, 90})}).code(), Code::kInvalid);
  EXPECT_NE(code({at(64, {100, 90})}).message().find("[64]"), std::string::npos);
  EXPECT_EQ(code({at(64, {0, 90, 90})}).code(), Code::kInvalid);
  EXPECT_EQ(code({at(5000, {100, 90, 90})}).code(), Code::kInvalid) << "outside the guard";
  EXPECT_EQ(code({at(64, {100, 90, 0}), at(64, {100, 90, 0})}).code(), Code::kInvalid);
  policy.points_max = 1;
  EXPECT_EQ(code({at(64, {100, 90, 0}), at(65, {100, 90, 0})}).code(), Code::kBusy);
  policy = {};
  policy.hysteresis = 1;
  EXPECT_EQ(code({}).code(), Code::kInvalid);
  policy = {};
  candidates[0].library = false;
  EXPECT_EQ(code({}).code(), Code::kInvalid);
}

TEST_F(NicheMapTest, PastTheBoundThoseThatSaveLeastAreDropped) {
  policy.regions_max = 2;
  policy.far_gap_max = 1;  // no cell but those of 8
  std::vector<MeasuredPoint> points;
  for (int64_t b = 32; b <= 2048; b *= 4) {
    points.push_back(at(b, {100, b == 512 ? 20.0 : b == 128 ? 30.0 : 90.0}));
    points.push_back(at(b + 8, {100, b == 512 ? 20.0 : b == 128 ? 30.0 : 90.0}));
  }
  candidates.pop_back();
  const NicheMap m = draw(points);
  EXPECT_EQ(m.regions_dropped, 2);
  EXPECT_EQ(serves(m, 516), 1);
  EXPECT_EQ(serves(m, 130), 1);
  EXPECT_EQ(serves(m, 36), 0);
}

// Published, the regions serve each shape as the map says.
class NichesServed : public testing::DataPlane {};

TEST_F(NichesServed, TheTableServesWhatTheMapSays) {
  std::mt19937_64 rng(9);
  for (int round = 0; round < 10; ++round) {
    std::vector<NicheCandidate> candidates{kLibrary};
    std::vector<std::shared_ptr<Route>> routes{nullptr};
    for (int k = 1; k <= 3; ++k) {
      const Guard g = testing::box(1, 64, 1, 600, k == 3 ? 8 : 1);
      candidates.push_back({false, g});
      routes.push_back(route(testing::toy_kernel(definition, k, g)));
    }
    std::vector<MeasuredPoint> points;
    for (const int64_t b : {8, 12, 16})
      for (const int64_t l : {100, 104, 200, 256, 400, 512}) {
        MeasuredPoint p;
        p.axes = {b, l};
        p.ns = {100};
        for (size_t k = 1; k <= 3; ++k)
          p.ns.push_back(candidates[k].guard.holds_var(p.axes.data()) ? 70 + static_cast<double>(rng() % 40)
                                                                      : 0);
        points.push_back(p);
      }
    const auto map = draw_niches(2, points, candidates, {});
    ASSERT_TRUE(map.ok());
    std::vector<uint64_t> ids;
    for (const NicheRegion& r : map->regions) {
      const auto id = d->publisher().put_region(
          {site.prefix(), r.box, routes[static_cast<size_t>(r.candidate)], r.priority});
      ASSERT_TRUE(id.ok()) << id.status().to_string();
      ids.push_back(*id);
    }
    ASSERT_TRUE(d->publisher().commit().ok());
    for (int64_t b = 7; b <= 17; ++b)
      for (int64_t l = 95; l < 520; l += 3) {
        const int64_t axes[kMaxVarAxes] = {b, l};
        const Decision dec = decide(b, l);
        ASSERT_EQ(dec.kernel->is_fallback() ? 0 : dec.kernel->phase_count, map->at(axes)) << b << " " << l;
      }
    for (const uint64_t id : ids) ASSERT_TRUE(d->publisher().erase_region(id).ok());
  }
}

}  // namespace
}  // namespace niche::dispatch
