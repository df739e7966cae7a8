#include "evolve/session/advice.h"

#include <gtest/gtest.h>

#include "tests/evolve/temp_dir.h"

namespace niche::evolve {
namespace {

// Two families: a tile whose product must stay small, and rows that share no name with it.
class TwoFamilies final : public search::SearchSpace {
 public:
  int family_count() const override { return 2; }
  const std::string& family_name(int f) const override { return names_[static_cast<size_t>(f)]; }
  const std::vector<Param>& params(int f) const override { return params_[static_cast<size_t>(f)]; }
  bool valid(const search::FamilyPoint& p) const override {
    return p.family == 1 || value(p, 0) * value(p, 1) <= 12;
  }
  std::vector<Point> seeds(int f) const override {
    return f == 0 ? std::vector<Point>{{0, 0, 1}} : std::vector<Point>{};
  }
  int value(const search::FamilyPoint& p, size_t i) const {
    return params(p.family)[i].values[static_cast<size_t>(p.point[i])];
  }

 private:
  std::vector<std::string> names_{"a.tile", "a.rows"};
  std::vector<std::vector<Param>> params_{{{"mr", {1, 4, 6}}, {"nr", {1, 2, 3}}, {"unroll", {1, 2}}},
                                          {{"rows", {1, 2, 4}}, {"unroll", {1, 2}}}};
};

kb::Skill win(const std::string& op, const std::string& title, double gain) {
  kb::Skill s;
  s.kind = "win", s.op = op, s.dtype = "f32", s.arch = "cpu.avx2", s.title = title, s.gain = gain;
  return s;
}

TEST(Advice, ReadsSettingsOutOfATitle) {
  using Settings = std::vector<std::pair<std::string, int>>;
  EXPECT_EQ(settings_of("conv1d.direct mr=6 nr=2 pack=0"), (Settings{{"mr", 6}, {"nr", 2}, {"pack", 0}}));
  EXPECT_EQ(settings_of("=1 a= b=x c=1x mr==2 d=-1"), (Settings{{"d", -1}}));
  EXPECT_TRUE(settings_of("").empty());
}

TEST(Advice, IsLaidOverTheFirstPointOfEveryFamilyThatKnowsItsNames) {
  const TwoFamilies space;
  const Advice advice[] = {{"other.tile", settings_of("mr=6 nr=2 depth=9"), 3},
                           {"page", settings_of("rows=4 unroll=2"), 0},
                           {"page", settings_of("unroll=2 depth=1"), 0}};  // one shared name is too little
  const auto points = advised_points(space, advice);
  ASSERT_EQ(points.size(), 2U);
  EXPECT_EQ(points[0].point, (search::FamilyPoint{0, {2, 1, 1}}));  // unroll stays the seed's
  EXPECT_EQ(points[0].skill, 3);
  EXPECT_EQ(points[1].point, (search::FamilyPoint{1, {2, 1}}));  // no seed: each parameter's first value
  EXPECT_EQ(advised_points(space, advice, 1).size(), 1U);
}

TEST(Advice, LeavesTheLastSettingsOutOfWhatWouldNotBuild) {
  const TwoFamilies space;
  const Advice advice[] = {{"x", settings_of("mr=6 unroll=1 nr=3"), 0}, {"x", settings_of("mr=6 nr=3"), 0}};
  const auto points = advised_points(space, advice);
  ASSERT_EQ(points.size(), 1U);  // 6 x 3 > 12: the second advice has nothing left that is worth a point
  EXPECT_EQ(points[0].point, (search::FamilyPoint{0, {2, 0, 0}}));
}

TEST(Advice, ASuspectSkillGetsTheLastPlaceAndOnePoint) {
  const TwoFamilies space;
  const Advice advice[] = {{"page", settings_of("mr=4 nr=1"), 0, false},
                           {"page", settings_of("mr=4 nr=2"), 0, false},
                           {"page", settings_of("mr=4 nr=3"), 0, false},
                           {"new", settings_of("mr=6 nr=2 rows=4 unroll=2"), 7, true}};
  const auto points = advised_points(space, advice, 3);
  ASSERT_EQ(points.size(), 3U);
  EXPECT_EQ(points[1].skill, 0);
  EXPECT_EQ(points[2].skill, 7);
  EXPECT_EQ(points[2].point.family, 0);
  // With room enough it still is one point, though both families know two of its names.
  EXPECT_EQ(advised_points(space, advice, 6).size(), 4U);
  const Advice trusted[] = {{"proven", settings_of("mr=6 nr=2 rows=4 unroll=2"), 7, false}};
  EXPECT_EQ(advised_points(space, trusted, 6).size(), 2U);
}

TEST(Advice, PagesComeFirstThenProvenSkillsThenOneSuspect) {
  const TempDir dir;
  auto book = kb::SkillBook::open(dir.path() + "/skills.sqlite");
  ASSERT_TRUE(book.ok());
  ASSERT_TRUE((*book)->add(win("conv1d", "conv1d.direct mr=6 nr=2", 3)).ok());
  ASSERT_TRUE((*book)->add(win("conv1d", "conv1d.direct mr=4 nr=3", 2)).ok());  // one an operator
  const int64_t best = *(*book)->add(win("pffn", "pffn.tile mr=4 nr=2", 9));
  ASSERT_TRUE((*book)->add(win("ikbo", "ikbo.tile mr=1 nr=1", 99)).ok());  // the operator's own: warm_start's
  auto library = kb::Library::open();
  ASSERT_TRUE(library.ok());
  auto advice = gather_advice("ikbo", "cpu.avx2", library->get(), book->get());
  ASSERT_GE(advice.size(), 2U);
  EXPECT_EQ(advice.front().skill, 0);
  EXPECT_EQ(advice.back().skill, best);
  EXPECT_TRUE(advice.back().suspect);
  EXPECT_EQ(advice[advice.size() - 2].skill, 0);  // one suspect, no more

  for (int i = 0; i < kb::kTrustedAfter; ++i) ASSERT_TRUE((*book)->shown({best}, true).ok());
  advice = gather_advice("ikbo", "cpu.avx2", library->get(), book->get());
  ASSERT_GE(advice.size(), 3U);
  EXPECT_EQ(advice[advice.size() - 2].skill, best);
  EXPECT_FALSE(advice[advice.size() - 2].suspect);
  EXPECT_EQ(advice.back().from, "conv1d.direct mr=6 nr=2");
  EXPECT_TRUE(advice.back().suspect);
  EXPECT_TRUE(gather_advice("ikbo", "cpu.avx2", nullptr, nullptr).empty());
  // Another architecture's wins are no advice.
  EXPECT_TRUE(gather_advice("ikbo", "cpu.avx512", nullptr, book->get()).empty());
}

}  // namespace
}  // namespace niche::evolve
