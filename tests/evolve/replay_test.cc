#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "evolve/definition_json.h"
#include "evolve/replay/recorded_space.h"
#include "evolve/replay/replay.h"
#include "evolve/replay/space_recorder.h"
#include "tests/evolve/fake_evaluator.h"
#include "tests/evolve/model_space.h"
#include "tests/evolve/temp_dir.h"
#include "tests/evolve/toy_family.h"
#include "tests/evolve/toy_op.h"

namespace niche::evolve::replay {
namespace {

using dispatch::Code;
using search::FamilyPoint;

// A recorded copy of an analytic space.
RecordedSpace record(const search::ModelSpace& model) {
  std::string text = recorded_header(model, "model", "analytic");
  model.for_each([&](const FamilyPoint& p) { text += recorded_line(p, model.cost(p)); });
  auto s = RecordedSpace::parse(text, "test");
  EXPECT_TRUE(s.ok()) << s.status().to_string();
  return std::move(*s);
}

TEST(RecordedSpace, HoldsWhatWasWritten) {
  const search::ModelSpace model(3);
  const RecordedSpace s = record(model);
  EXPECT_EQ(s.points(), model.valid_points());
  EXPECT_EQ(s.passing_points(), model.passing_points());
  EXPECT_NEAR(s.optimum(), model.optimum(), 1e-4 * model.optimum());
  EXPECT_EQ(s.note(), "analytic");
  for (int f = 0; f < model.family_count(); ++f) {
    EXPECT_EQ(s.family_name(f), model.family_name(f));
    EXPECT_EQ(s.params(f).size(), model.params(f).size());
    EXPECT_EQ(s.seeds(f), model.seeds(f));
  }
  model.for_each([&](const FamilyPoint& p) {
    ASSERT_TRUE(s.valid(p));
    ASSERT_NEAR(s.cost(p), model.cost(p), 1e-4 * model.cost(p));
  });
  EXPECT_FALSE(s.valid({0, {9, 0, 0, 0, 0, 0}}));
  EXPECT_FALSE(s.valid({7, {}}));
}

constexpr const char* kHeader =
    R"({"space":"x","families":[{"name":"f","params":[{"name":"a","values":[1,2]},{"name":"b","values":[0,1]}],"seeds":[[0,0],[1,1]]}]})"
    "\n";

TEST(RecordedSpace, KnowsWhichPointsAreOneKernel) {
  const auto s = RecordedSpace::parse(
      std::string(kHeader) + "0 0 0 0.5 7\n0 0 1 0.7 7\n0 1 0 0.6 7\n0 1 1 0.4 8\n", "t");
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  EXPECT_EQ(s->points(), 4);
  EXPECT_EQ(s->kernels(), 2);
  EXPECT_EQ(s->kernel_number({0, {0, 0}}), s->kernel_number({0, {1, 0}}));
  EXPECT_NE(s->kernel_number({0, {0, 0}}), s->kernel_number({0, {1, 1}}));
  // One kernel has one cost: the median of what was measured of it.
  for (const Point& p : {Point{0, 0}, Point{0, 1}, Point{1, 0}}) EXPECT_NEAR(s->cost({0, p}), 0.6, 1e-6);
  EXPECT_EQ(RecordedSpace::parse(std::string(kHeader) + "0 0 0 0.5 7\n0 0 1 0.7\n", "t").status().code(),
            Code::kCorrupt);
  EXPECT_EQ(RecordedSpace::parse(std::string(kHeader) + "0 0 0 0.5 -2\n", "t").status().code(),
            Code::kCorrupt);
}

TEST(RecordedSpace, SeveralMeasurementsCountByTheirMedian) {
  const auto s = RecordedSpace::parse(
      std::string(kHeader) +
          "0 0 0 0.5\n0 0 0 0.9\n0 0 0 0.6\n0 0 1 0\n0 0 1 0\n0 0 1 0.4\n0 1 0 0\n0 1 0 0.7\n0 1 0 0.8\n",
      "t");
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  EXPECT_FLOAT_EQ(static_cast<float>(s->cost({0, {0, 0}})), 0.6F);
  EXPECT_EQ(s->cost({0, {0, 1}}), 0);  // failed two times of three
  EXPECT_FLOAT_EQ(static_cast<float>(s->cost({0, {1, 0}})), 0.7F);
  EXPECT_EQ(s->points(), 3);
  EXPECT_EQ(s->passing_points(), 2);
  EXPECT_EQ(s->within(1.01), 1);
  EXPECT_EQ(s->within(1.5), 2);
  EXPECT_EQ(s->seeds(0), std::vector<Point>{(Point{0, 0})});  // the other seed was not recorded
}

TEST(RecordedSpace, DefectsNameTheirLine) {
  const struct {
    std::string text, says;
  } cases[] = {
      {"", "no header"},
      {"{}\n", "header"},
      {"[1\n", "header"},
      {std::string(kHeader) + "0 0 0 0.5\n1 0 0 0.5\n", "line 3"},
      {std::string(kHeader) + "0 0 2 0.5\n", "line 2"},
      {std::string(kHeader) + "0 0 0 -1\n", "line 2"},
      {std::string(kHeader) + "0 0 0 nan\n", "line 2"},
      {std::string(kHeader) + "0 0\n", "line 2"},
  };
  for (const auto& c : cases) {
    const auto s = RecordedSpace::parse(c.text, "file.space");
    ASSERT_FALSE(s.ok()) << c.text;
    EXPECT_EQ(s.status().code(), Code::kCorrupt);
    EXPECT_NE(s.status().message().find(c.says), std::string::npos) << s.status().to_string();
    EXPECT_NE(s.status().message().find("file.space"), std::string::npos);
  }
  EXPECT_EQ(RecordedSpace::load("/no/such.space").status().code(), Code::kNotFound);
}

TEST(Replay, IsRepeatableAndMonotone) {
  const RecordedSpace s = record(search::ModelSpace(4));
  ReplayOptions o;
  o.evaluations = 120;
  const auto a = replay(s, o), b = replay(s, o);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->best, b->best);
  ASSERT_EQ(a->best.size(), 120u);
  for (size_t i = 1; i < a->best.size(); ++i)
    if (a->best[i - 1] > 0) {
      EXPECT_LE(a->best[i], a->best[i - 1]);
    }
  EXPECT_GE(a->slowdown_after(120, s.optimum(), 9), 1.0);
  EXPECT_LE(a->slowdown_after(120, s.optimum(), 9), a->slowdown_after(20, s.optimum(), 9));
  EXPECT_EQ(a->evaluations_to(0.5, s.optimum(), 777), 777);  // better than the best: never
  o.policy = "nothing";
  EXPECT_EQ(replay(s, o).status().code(), Code::kNotFound);
}

TEST(Replay, KnowsItsBestPointsAndCanDoWithoutSeeds) {
  const RecordedSpace s = record(search::ModelSpace(4));
  ReplayOptions o;
  o.evaluations = 60;
  const auto with = replay(s, o);
  ASSERT_EQ(with->elites.size(), 8U);
  EXPECT_NEAR(with->elites.front().first, with->best.back(), 1e-9);
  EXPECT_NEAR(s.cost(with->elites.front().second), with->best.back(), 1e-6);
  o.use_seeds = false;
  const auto without = replay(s, o);
  EXPECT_EQ(without->best.size(), 60U);
  EXPECT_NE(without->best, with->best);
}

// The promise of reuse: a start from the best points of a neighbouring landscape reaches 1.05 in a tenth.
TEST(Replay, AWarmStartReachesInATenthWhatAColdOneDoes) {
  const search::ModelSpace model(12);
  const RecordedSpace s = record(model);
  double cold = 0, warm = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    ReplayOptions o;
    o.seed = seed;
    o.evaluations = 1500;
    o.stop_within = 1.05;
    cold += replay(s, o)->evaluations_to(1.05, s.optimum(), 1500);
    o.warm_start = {model.best()};
    warm += replay(s, o)->evaluations_to(1.05, s.optimum(), 1500);
  }
  EXPECT_GE(cold, 10 * warm);
}

TEST(SpaceRecorder, RecordsEveryPointOnceARoundAndRestartsWhereItEnded) {
  const TempDir dir;
  testing_ops::ToyOp op;
  const testing_ops::ToyFamily family;
  const auto definition = *dispatch::Definition::make(op.schema(), dispatch::kF32, {{"N", 64}});
  const CpuTarget target;
  const search::TemplateSpace space({&family}, *definition, target);
  const std::vector<SeenProblem> problems{{{16}, 1, false}};
  FakeWorld world;
  // The recorder names candidates by their key; costs follow from the source that it rendered.
  world.cost = [](const FakeWorld::Params&, const SeenProblem&) { return 0.75; };
  FakeEvaluator evaluator(world, {nullptr, definition, problems, target}, {});
  RecordOptions options;
  options.path = dir.path() + "/toy.space";
  options.name = "toy";
  options.rounds = 2;
  options.refine_share = 0;
  options.batch = 16;
  int batches = 0;
  options.keep_going = [&] { return batches < 3; };
  options.on_progress = [&](int64_t, int64_t) { ++batches; };
  ASSERT_TRUE(record_space(space, *definition, target, problems, evaluator, options).ok());
  EXPECT_EQ(world.screened.size(), 48u);
  options.keep_going = {};
  ASSERT_TRUE(record_space(space, *definition, target, problems, evaluator, options).ok());
  // 5 rows x 6 unrolls x 2 directions are different sources; the three tags of each are not.
  EXPECT_EQ(world.screened.size(), 2u * 60);
  const auto s = RecordedSpace::load(options.path);
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  EXPECT_EQ(s->points(), 180);
  EXPECT_EQ(s->optimum(), 0.75);
  // Done: a further run measures nothing.
  ASSERT_TRUE(record_space(space, *definition, target, problems, evaluator, options).ok());
  EXPECT_EQ(world.screened.size(), 2u * 60);
  // Another space must not be written into the same file.
  options.name = "other";
  EXPECT_EQ(record_space(space, *definition, target, problems, evaluator, options).code(), Code::kCorrupt);
}

// Rounds and refinements of their own files, as a machine with many cores measures them.
TEST(SpaceRecorder, PiecesMakeTheSameSpaceAsOneRecording) {
  const TempDir dir;
  testing_ops::ToyOp op;
  const testing_ops::ToyFamily family;
  const auto definition = *dispatch::Definition::make(op.schema(), dispatch::kF32, {{"N", 64}});
  const CpuTarget target;
  const search::TemplateSpace space({&family}, *definition, target);
  const std::vector<SeenProblem> problems{{{16}, 1, false}};
  FakeWorld world;
  world.cost = [](const FakeWorld::Params&, const SeenProblem&) { return 0.75; };
  RecordOptions options;
  options.name = "toy";
  options.rounds = 2;
  options.refine_share = 0.1;
  options.batch = 16;
  std::vector<std::string> rounds, refined;
  for (int r = 1; r <= 2; ++r) {
    options.path = dir.path() + "/round" + std::to_string(r);
    rounds.push_back(options.path);
    FakeEvaluator evaluator(world, {nullptr, definition, problems, target}, {});
    ASSERT_TRUE(record_round(space, *definition, target, problems, evaluator, options, r).ok());
  }
  EXPECT_EQ(world.screened.size(), 2U * 60);
  options.path = dir.path() + "/refined";
  refined.push_back(options.path);
  FakeEvaluator evaluator(world, {nullptr, definition, problems, target}, {});
  ASSERT_TRUE(record_refinement(space, *definition, target, problems, evaluator, options, rounds, 1).ok());
  EXPECT_EQ(world.screened.size(), 2U * 60 + 6);
  const std::string packed = dir.path() + "/toy.space";
  ASSERT_TRUE(pack_space(rounds, refined, 2, packed).ok());
  const auto s = RecordedSpace::load(packed);
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  EXPECT_EQ(s->points(), 180);
  EXPECT_EQ(s->passing_points(), 180);
  rounds.push_back(dir.path() + "/none");
  EXPECT_EQ(record_refinement(space, *definition, target, problems, evaluator, options, rounds, 1).code(),
            Code::kNotFound);
}

TEST(SpaceRecorder, RecordingsThatWereMeasuredApartAreBroughtToOneScale) {
  const TempDir dir;
  const search::ModelSpace model(3);
  std::vector<FamilyPoint> points;
  model.for_each([&](const FamilyPoint& p) { points.push_back(p); });
  const std::string a = dir.path() + "/a", b = dir.path() + "/b", packed = dir.path() + "/p";
  std::ofstream one(a), two(b);
  one << recorded_header(model, "m", "");
  two << recorded_header(model, "m", "");
  for (size_t i = 0; i < 9; ++i) {
    one << recorded_line(points[i], 0.1 * static_cast<double>(i + 1));
    two << recorded_line(points[i], 0.11 * static_cast<double>(i + 1));  // the library was slower by a tenth
  }
  one.close(), two.close();
  ASSERT_TRUE(pack_space({a, b}, {}, 2, packed).ok());
  const auto s = RecordedSpace::load(packed);
  for (size_t i = 0; i < 9; ++i) EXPECT_NEAR(s->cost(points[i]), 0.1 * static_cast<double>(i + 1), 1e-4) << i;
  std::ofstream(b) << recorded_header(model, "another", "");
  EXPECT_EQ(pack_space({a, b}, {}, 2, packed).code(), Code::kCorrupt);
}

TEST(SpaceRecorder, WhatWasChosenForBeingSmallCountsWithFreshMeasurements) {
  const TempDir dir;
  const std::string recording = dir.path() + "/a", packed = dir.path() + "/b";
  const search::ModelSpace model(3);
  std::vector<FamilyPoint> points;
  model.for_each([&](const FamilyPoint& p) { points.push_back(p); });
  std::ofstream(recording) << recorded_header(model, "m", "") << recorded_line(points[0], 0.5)
                           << recorded_line(points[1], 0.6) << recorded_line(points[0], 0.7)
                           << recorded_line(points[0], 0.9) << recorded_line(points[1], 0.8)
                           << recorded_line(points[0], 0.8) << recorded_line(points[0], 0.81);
  ASSERT_TRUE(pack_space({recording}, {}, 2, packed).ok());
  const auto s = RecordedSpace::load(packed);
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  EXPECT_EQ(s->points(), 2);
  EXPECT_NEAR(s->cost(points[0]), 0.81, 1e-6);  // of 0.9, 0.8, 0.81: not of the two that chose it
  EXPECT_NEAR(s->cost(points[1]), 0.8, 1e-6);
  EXPECT_EQ(pack_space({dir.path() + "/none"}, {}, 2, packed).code(), Code::kNotFound);
}

// Numbers are given to what the file says of each point, however often.
TEST(SpaceRecorder, NumberingKernelsKeepsEachPointsOwnCost) {
  const TempDir dir;
  testing_ops::ToyOp op;
  const testing_ops::ToyFamily family;
  const auto definition = *dispatch::Definition::make(op.schema(), dispatch::kF32, {{"N", 64}});
  const CpuTarget target;
  const search::TemplateSpace space({&family}, *definition, target, {});
  const std::string path = dir.path() + "/toy.space";
  std::vector<FamilyPoint> points;
  FamilyPoint p{0, Point(space.params(0).size(), 0)};
  do {
    if (space.valid(p)) points.push_back(p);
  } while (search::next_point(space.params(0), &p.point));
  {
    std::ofstream out(path);
    out << recorded_header(space, "toy", "");
    for (size_t i = 0; i < points.size(); ++i)
      out << recorded_line(points[i], 0.5 + 0.001 * static_cast<double>(i));
  }
  const auto lines = [&] {
    std::ifstream in(path);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  ASSERT_TRUE(number_kernels(space, *definition, target, path).ok());
  const std::string once = lines();
  ASSERT_TRUE(number_kernels(space, *definition, target, path).ok());
  EXPECT_EQ(lines(), once);
  EXPECT_NE(once.find(recorded_line(points[1], 0.501, 0)), std::string::npos) << once.substr(0, 2000);
  const auto s = RecordedSpace::load(path);
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  EXPECT_EQ(s->points(), 180);
  EXPECT_EQ(s->kernels(), 60);
  EXPECT_EQ(s->cost(points[0]), s->cost(points[1]));
}

}  // namespace
}  // namespace niche::evolve::replay
