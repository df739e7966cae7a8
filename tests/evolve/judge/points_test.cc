#include "evolve/judge/points.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "test_ops.h"

namespace niche::evolve::judge {
namespace {

using test_ops::NormOp;

dispatch::Guard box(std::vector<dispatch::Guard::Range> ranges) {
  dispatch::Guard g;
  g.var_count = static_cast<int>(ranges.size());
  std::copy(ranges.begin(), ranges.end(), g.var.begin());
  return g;
}

// NormOp with a second variable axis.
class TwoAxes final : public NormOp {
 public:
  TwoAxes() {
    auto s = std::make_shared<dispatch::OpSchema>(*schema_);
    s->axes[1].kind = dispatch::AxisKind::kVar;
    schema_ = s;
  }
};

struct Fixture {
  TwoAxes op;
  std::shared_ptr<const dispatch::Definition> definition =
      *dispatch::Definition::make(op.schema(), dispatch::kF32, {});
};

TEST(CorrectnessPoints, HoldCornersTilesAndThirtyTwoInteriorPoints) {
  Fixture f;
  dispatch::LaunchPlan plan;
  plan.phases = {{"k", {{0, 6}}, 1}};
  const auto g = box({{2, 500, 1}, {16, 4096, 8}});
  const auto points = correctness_points(f.op, f.definition, plan, g, 9);
  std::set<VarAxes> all(points.begin(), points.end());
  EXPECT_EQ(all.size(), points.size()) << "no repeats";
  for (const VarAxes& corner : {VarAxes{2, 16}, VarAxes{2, 4096}, VarAxes{500, 16}, VarAxes{500, 4096}})
    EXPECT_TRUE(all.count(corner)) << corner[0] << "," << corner[1];
  int around[3] = {};
  for (const VarAxes& p : points) {
    EXPECT_TRUE(guard_holds(g, p));
    for (int d : {-1, 0, 1}) around[d + 1] += (p[0] - d) % 6 == 0;
  }
  for (int count : around) EXPECT_GT(count, 0);
  EXPECT_GE(points.size(), 4u + 32u);
  EXPECT_EQ(points.front(), (VarAxes{2, 16})) << "smallest first";
  EXPECT_EQ(points, correctness_points(f.op, f.definition, plan, g, 9));
  EXPECT_NE(points, correctness_points(f.op, f.definition, plan, g, 10)) << "the seed is secret for a reason";
}

TEST(CorrectnessPoints, InteriorPointsAreTheSameForPlansOfOtherTiles) {
  Fixture f;
  dispatch::LaunchPlan sixes, forties;
  sixes.phases = {{"k", {{0, 6}}, 1}};
  forties.phases = {{"k", {{0, 40}, {1, 64}}, 1}};
  const auto g = box({{2, 500, 1}, {16, 4096, 8}});
  const auto a = correctness_points(f.op, f.definition, sixes, g, 9),
             b = correctness_points(f.op, f.definition, forties, g, 9);
  const std::set<VarAxes> other(b.begin(), b.end());
  const auto shared =
      std::count_if(a.begin(), a.end(), [&](const VarAxes& p) { return other.count(p) != 0; });
  EXPECT_GE(shared, 4 + 32) << "corners and interior: their references are computed once";
}

TEST(CorrectnessPoints, SmallBoxIsTestedWhole) {
  Fixture f;
  const auto points = correctness_points(f.op, f.definition, {}, box({{3, 9, 1}, {8, 24, 8}}), 1);
  EXPECT_EQ(points.size(), 7u * 3u);
}

TEST(CorrectnessPoints, EmptyBoxGivesNone) {
  Fixture f;
  EXPECT_TRUE(correctness_points(f.op, f.definition, {}, box({{5, 4, 1}, {1, 2, 1}}), 1).empty());
  EXPECT_TRUE(correctness_points(f.op, f.definition, {}, box({{5, 7, 8}, {1, 2, 1}}), 1).empty());
}

TEST(Hull, LeavesOutWhatTheLimitsDoNotHold) {
  const std::vector<VarAxes> seen = {{4, 16}, {9, 64}, {1000, 32}};
  const auto g = hull(seen, box({{1, 500, 1}, {1, 4096, 16}}));
  EXPECT_EQ(g.var[0].lo, 4);
  EXPECT_EQ(g.var[0].hi, 9);
  EXPECT_EQ(g.var[1].lo, 16);
  EXPECT_EQ(g.var[1].hi, 64);
  EXPECT_EQ(g.var[1].multiple_of, 16);
  EXPECT_FALSE(guard_holds(hull({}, g), VarAxes{4, 16}));
}

TEST(BestBox, IsTheHeaviestOneWithoutALoser) {
  const auto limits = box({{1, 10000, 1}});
  const std::vector<JudgedPoint> points = {
      {{1}, 1, VerdictStatus::kFaster},     {{8}, 2, VerdictStatus::kFaster},
      {{16}, 1, VerdictStatus::kNotFaster}, {{32}, 2, VerdictStatus::kFaster},
      {{64}, 2, VerdictStatus::kFaster},    {{100}, 5, VerdictStatus::kAmbiguous}};
  const auto g = best_box(points, limits);
  EXPECT_EQ(g.var[0].lo, 32);
  EXPECT_EQ(g.var[0].hi, 64);
}

TEST(BestBox, WithoutAWinnerHoldsNothing) {
  const auto g = best_box(std::vector<JudgedPoint>{{{4}, 1, VerdictStatus::kAmbiguous}}, box({{1, 100, 1}}));
  EXPECT_FALSE(guard_holds(g, VarAxes{4}));
}

// conv1d of the ranker: a session on small batches, then one on the batch that was left to the library.
TEST(BestBoxWith, AnEarlierJudgementOfTheSameSourceStays) {
  const auto limits = box({{1, 64, 1}, {1, 4096, 1}});
  const auto timed = [](std::vector<std::pair<VarAxes, VerdictStatus>> list) {
    Verdict v;
    v.guard = box({{1, 7, 1}, {24, 400, 1}});
    for (auto& [axes, status] : list) {
      PointTiming t;
      t.var_axes = axes;
      t.status = status;
      v.timing.push_back(t);
    }
    return v;
  };
  const Verdict earlier = timed({{{7, 221}, VerdictStatus::kFaster},
                                 {{1, 400}, VerdictStatus::kFaster},
                                 {{3, 24}, VerdictStatus::kFaster}});
  const std::vector<JudgedPoint> now = {{{8, 214}, 0.6, VerdictStatus::kFaster},
                                        {{8, 295}, 0.2, VerdictStatus::kFaster},
                                        {{7, 221}, 0.2, VerdictStatus::kFaster}};
  std::vector<VarAxes> seen = {{8, 214}, {8, 295}, {7, 221}};
  add_corners(earlier, limits, &seen);
  const dispatch::Guard verified = hull(seen, limits);
  EXPECT_TRUE(guard_holds(verified, VarAxes{1, 400}) && guard_holds(verified, VarAxes{1, 24}));
  const dispatch::Guard alone = best_box_with(now, nullptr, verified, limits);
  EXPECT_FALSE(guard_holds(alone, VarAxes{3, 24}));
  const dispatch::Guard both = best_box_with(now, &earlier, verified, limits);
  for (const VarAxes& p : {VarAxes{8, 214}, VarAxes{8, 295}, VarAxes{3, 24}, VarAxes{1, 400}})
    EXPECT_TRUE(guard_holds(both, p));

  // A loser keeps the boxes apart, whenever it was timed; what was just judged FASTER is in what comes out.
  const Verdict with_loser = timed({{{1, 400}, VerdictStatus::kFaster},
                                    {{3, 24}, VerdictStatus::kFaster},
                                    {{5, 214}, VerdictStatus::kNotFaster}});
  const dispatch::Guard apart = best_box_with(now, &with_loser, verified, limits);
  EXPECT_FALSE(guard_holds(apart, VarAxes{5, 214}));
  EXPECT_TRUE(guard_holds(apart, VarAxes{8, 214}));
  // Of one problem the later word counts, unless it is none.
  const Verdict stale = timed({{{8, 214}, VerdictStatus::kNotFaster}});
  EXPECT_TRUE(guard_holds(best_box_with(now, &stale, verified, limits), VarAxes{8, 214}));
  const std::vector<JudgedPoint> undecided = {{{8, 214}, 0.6, VerdictStatus::kAmbiguous},
                                              {{8, 295}, 0.2, VerdictStatus::kFaster},
                                              {{7, 200}, 0.2, VerdictStatus::kFaster}};
  EXPECT_FALSE(guard_holds(best_box_with(undecided, &stale, verified, limits), VarAxes{8, 214}));
  // What was not verified now is no part of it.
  const Verdict far = timed({{{60, 4000}, VerdictStatus::kFaster}});
  EXPECT_FALSE(guard_holds(best_box_with(now, &far, verified, limits), VarAxes{60, 4000}));
}

TEST(Representative, KeepsTheHeaviestAndTheExtremes) {
  std::vector<VarAxes> points;
  std::vector<double> weights;
  for (int64_t i = 1; i <= 40; ++i) points.push_back({i, 100 - i}), weights.push_back(i == 20 ? 9 : 1);
  const auto chosen = representative(points, weights, 6);
  EXPECT_EQ(chosen.size(), 6u);
  EXPECT_EQ(chosen[0], 19u);
  EXPECT_TRUE(std::find(chosen.begin(), chosen.end(), 0u) != chosen.end());
  EXPECT_TRUE(std::find(chosen.begin(), chosen.end(), 39u) != chosen.end());
  EXPECT_EQ(representative(points, weights, 64).size(), 40u);
}

}  // namespace
}  // namespace niche::evolve::judge
