// Every cheat of cheats.cc through the judge: none is believed.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>

#include "tests/cheats/cheats.h"
#include "tests/cheats/load.h"
#include "tests/evolve/judge/kernels.h"

namespace niche::evolve {
namespace cheats {

// Test names must not hold the addresses that the default printer shows.
void PrintTo(const Cheat& c, std::ostream* out) { *out << c.name; }

}  // namespace cheats

namespace {

using cheats::Cheat;

class CheatTest : public ::testing::TestWithParam<Cheat> {};

TEST_P(CheatTest, IsNotBelieved) {
  const Cheat& c = GetParam();
  EvaluatorOptions options;
  options.seed = 20261129;
  auto e = make_evaluator(cheats::spec(), options);
  ASSERT_TRUE(e.ok()) << e.status().to_string();
  const Verdict v = (*e)->judge(cheats::candidate(c)).verdict;
  EXPECT_NE(v.status, VerdictStatus::kFaster) << v.to_json();
  if (c.words.empty()) return;
  EXPECT_TRUE(std::any_of(c.words.begin(), c.words.end(), [&](const std::string& w) {
    return v.reason.find(w) != std::string::npos;
  })) << v.to_json();
}

INSTANTIATE_TEST_SUITE_P(Cheats, CheatTest, ::testing::ValuesIn(cheats::all()),
                         [](const auto& info) { return std::string(info.param.name); });

// Beside four others for each core the system's clock says of nearly every block that it was dear; the least of
// many still tells. (Tried by hand beside seven for each core, three seeds of each cheat: caught as well.)
TEST(Cheats, MovedTimeStampsAreSeenUnderLoad) {
  const cheats::Load load(4 * cheats::usable_cores());
  for (const Cheat& c : cheats::all()) {
    if (c.name != std::string("StopsTheClock_4") && c.name != std::string("ClaimsTwiceItsSpeed_4") &&
        c.name != std::string("WorksWhenItIsTimed_4"))
      continue;
    EvaluatorOptions options;
    options.seed = 20261130;
    options.judge_seconds_max = 60;
    auto e = make_evaluator(cheats::spec(), options);
    ASSERT_TRUE(e.ok()) << e.status().to_string();
    const Verdict v = (*e)->judge(cheats::candidate(c)).verdict;
    EXPECT_NE(v.status, VerdictStatus::kFaster) << c.name << ": " << v.to_json();
  }
}

// The yardstick of this file: without a cheat the same harness says FASTER.
TEST(Cheats, HonestKernelIsFaster) {
  auto e = make_evaluator(cheats::spec());
  ASSERT_TRUE(e.ok());
  const Verdict v =
      (*e)->judge(test_ops::norm_candidate(test_ops::norm_kernel(test_ops::kRightBody))).verdict;
  EXPECT_EQ(v.status, VerdictStatus::kFaster) << v.to_json();
}

}  // namespace
}  // namespace niche::evolve
