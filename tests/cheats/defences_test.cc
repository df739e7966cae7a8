// Each cheat again, with the defences that catch it switched off: now it passes. So cheats_test fails when one
// of them is lost, and no defence stands there for show. Where two layers would each have caught the cheat both
// are named, the first that meets it first. A few cheats are also held by something that has no switch (the
// loader, the processor, the fact that a dead cell is no verdict, their own slowness): those must not pass either way, and the test
// shows that it was the named defence that spoke before.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <ostream>

#include "tests/cheats/cheats.h"

namespace niche::evolve {
namespace cheats {

void PrintTo(const Cheat& c, std::ostream* out) { *out << c.name; }

}  // namespace cheats

namespace {

using cheats::Cheat;
using enum Defence;

struct Row {
  DefencesOff defences;
  const char* held_by = "";  // has no switch; a word of its reason
  bool at_times = false;     // held by it on some machines, believed on others
};

const std::map<std::string, Row>& rows() {
  static const std::map<std::string, Row> table = {
      {"Constant_11", {{kErrorBound}}},
      {"Zeros_11", {{kErrorBound}}},
      {"MeanOfTheInput_12", {{kErrorBound}}},
      {"FirstHalfOnly_13", {{kErrorBound}}},
      {"SumOf99Percent_13", {{kErrorBound}}},
      {"StatisticOfTheFirstRow_13", {{kErrorBound, kTwoRuns}}},
      {"EstimateOfTheRoot_14", {{kErrorBound}}},
      // Too slow to pay on some machines: "not faster than the library", or "faster at first, not on fresh data".
      {"HalfPrecision_14", {{kErrorBound}, "faster", true}},
      {"Bf16Sum_14", {{kErrorBound}, "faster", true}},
      {"OnlyTheSeenShapes_19", {{kUnseenPoints}}},
      {"OnlyNormalInputs_19", {{kDistributions}}},
      {"TakesWhatTheBufferHolds_5", {{kErrorBound, kTwoRuns, kTimedOutputs}}},
      {"TakesTheLibrarysAnswer_5", {{kOutputsErased, kOwnSets, kClock}}},
      {"ZeroesItsInput_6", {{kReadOnlyInputs, kErrorBound}}},
      {"RemembersInWorkspace_7", {{kWorkspaceErased, kOwnSets, kClock}}},
      {"RemembersInPackedConstants_7", {{kReadOnlyConstants, kOwnSets, kClock}}},
      {"RemembersInGlobals_7", {{kData, kOwnSets, kClock}}},
      {"RemembersInThreadLocals_7", {{kSource, kData, kSymbols, kOwnSets, kClock}}},
      {"RemembersOnTheDeadStack_7", {{kDeadStack, kOwnSets, kClock}}},
      {"CountsCallsInItsArguments_10", {{kArgumentPrint}}},
      {"RedirectsItsOutput_10", {{kArgumentPrint, kReadOnlyInputs, kErrorBound, kTwoRuns, kTimedOutputs}}},
      {"HonestBetweenGuardPages_10", {{kErrorBound, kTwoRuns, kTimedOutputs}}},
      {"HonestWhenPoisoned_10", {{kTwoRuns, kTimedOutputs}}},
      {"HonestOnAlignedMemory_10", {{kErrorBound, kTwoRuns, kTimedOutputs}}},
      // They move time stamps by a constant: whether that pays depends on the clock's rate.
      {"StopsTheClock_4", {{kClock}, "", true}},
      {"ClaimsTwiceItsSpeed_4", {{kClock}, "", true}},
      {"WorksWhenItIsTimed_4", {{kTimedOutputs}, "", true}},
      {"ReadsTheClock_4", {{kInstructions}}},
      {"ReadsCounters_4", {{kInstructions}, "signal"}},
      {"StartsAThread_2", {{kSymbols}, "system call"}},
      {"CallsTheLibrary_15", {{kSymbols}, "undefined symbol"}},
      {"Allocates_15", {{kSymbols}}},
      {"ExitsEarly", {{kSymbols}, "exit"}},
      {"LooksForSymbols", {{kSymbols}}},
      {"HiddenSystemCall", {{kWalls}}},
      {"CodeInAnArray", {{kSource, kInstructions, kWalls}}},
      {"CodeInData", {{}, "signal 11"}},
      {"AnIndirectFunction", {{kSource, kData}}},
      {"FlushesDenormals", {{kInstructions, kMxcsr}}},
      {"ClosesItsNamespace", {{kSource}, "unistd.h"}},
  };
  return table;
}

class DefenceTest : public ::testing::TestWithParam<Cheat> {};

TEST_P(DefenceTest, SwitchedOffItsCheatIsBelieved) {
  const Cheat& c = GetParam();
  const auto row = rows().find(c.name);
  ASSERT_NE(row, rows().end()) << "a cheat without a row: which defence catches it?";
  EvaluatorOptions options;
  options.defences_off = row->second.defences;
  options.judge_seconds_max = 120;  // beside whatever else the machine does
  const std::string held_by = row->second.held_by;
  // Times are judged again, twice at most: what else the machine does can make any candidate look slow.
  Verdict v;
  for (uint64_t seed : {20261129, 20261130, 20261131}) {
    options.seed = seed;
    auto e = make_evaluator(cheats::spec(), options);
    ASSERT_TRUE(e.ok()) << e.status().to_string();
    v = (*e)->judge(cheats::candidate(c)).verdict;
    const bool timed = v.failed_gate == Gate::kTiming || v.failed_gate == Gate::kConfirm;
    if (!timed || (!held_by.empty() && v.reason.find(held_by) != std::string::npos)) break;
  }
  if (row->second.at_times && v.status == VerdictStatus::kFaster) return;
  if (row->second.at_times && held_by.empty())
    GTEST_SKIP() << "not believed on this machine: " << v.to_json();
  if (held_by.empty()) {
    EXPECT_EQ(v.status, VerdictStatus::kFaster) << v.to_json();
    return;
  }
  EXPECT_NE(v.status, VerdictStatus::kFaster) << v.to_json();
  EXPECT_NE(v.reason.find(held_by), std::string::npos) << v.to_json();
}

INSTANTIATE_TEST_SUITE_P(Defences, DefenceTest, ::testing::ValuesIn(cheats::all()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Defences, EachIsNamedByACheat) {
  for (int d = 0; d < kDefenceCount; ++d)
    EXPECT_TRUE(
        std::any_of(rows().begin(), rows().end(),
                    [&](const auto& row) { return row.second.defences.has(static_cast<Defence>(d)); }))
        << "defence " << d << " catches nothing: what is it for?";
}

TEST(Defences, AllHoldUnlessATestSaysOtherwise) { EXPECT_TRUE(EvaluatorOptions().defences_off.none()); }

}  // namespace
}  // namespace niche::evolve
