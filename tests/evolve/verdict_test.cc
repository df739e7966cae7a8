#include "evolve/verdict.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace niche::evolve {
namespace {

Verdict sample() {
  Verdict v;
  v.status = VerdictStatus::kFaster;
  v.failed_gate = Gate::kNone;
  v.reason = "1.8x \"quoted\"\n";
  v.max_error = 0.4;
  v.correctness_points = 61;
  v.guard.var_count = 2;
  v.guard.var[0] = {1, 64, 1};
  v.guard.var[1] = {8, 800, 8};
  v.guard.alignment_bytes = 16;
  v.e_value = 1e7;
  v.sandbox = "landlock+seccomp";
  PointTiming t;
  t.var_axes = {4, 200};
  t.fallback = "addmm";
  t.fallback_ns = 1000;
  t.kernel_ns = 500;
  t.speedup = 2, t.ci_low = 1.9, t.ci_high = 2.1, t.cold_speedup = 1.5, t.pairs = 31;
  t.status = VerdictStatus::kFaster;
  v.timing.push_back(t);
  return v;
}

TEST(Verdict, JsonRoundTripKeepsEveryField) {
  const Verdict v = sample();
  const auto read = Verdict::from_json(v.to_json());
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read->to_json(), v.to_json());
  EXPECT_EQ(read->guard.var[1].multiple_of, 8);
  EXPECT_EQ(read->timing.at(0).var_axes, (std::vector<int64_t>{4, 200}));
}

TEST(Verdict, AFailedCaseKeepsAllBitsOfItsSeed) {
  Verdict v = sample();
  v.failed_case = FailedCase{{4, 200}, 2, 0xfedcba9876543211u, 3};
  const auto read = Verdict::from_json(v.to_json());
  ASSERT_TRUE(read.ok() && read->failed_case) << v.to_json();
  EXPECT_EQ(read->failed_case->seed, 0xfedcba9876543211u);
  EXPECT_EQ(read->failed_case->constant_seed, 3u);
  EXPECT_EQ(read->failed_case->distribution, 2);
  EXPECT_EQ(read->failed_case->var_axes, (std::vector<int64_t>{4, 200}));
  EXPECT_FALSE(Verdict::from_json(sample().to_json())->failed_case);
  std::string text = v.to_json();
  text.replace(text.find("18364758544493064721"), 20, "1e3x");
  EXPECT_FALSE(Verdict::from_json(text).ok());
}

// For people: gate by gate, the first failure, and what makes it again.
TEST(Verdict, TextNamesGatesInOrderAndTheFirstFailure) {
  auto schema = std::make_shared<dispatch::OpSchema>();
  schema->op = "rows";
  schema->axes = {{"B", dispatch::AxisKind::kVar}, {"L", dispatch::AxisKind::kVar}};
  schema->args = {{"x", dispatch::ArgRole::kIn, "T", {0, 1}}, {"y", dispatch::ArgRole::kOut, "T", {0, 1}}};
  schema->dtypes = {"f32"};
  const auto d = *dispatch::Definition::make(schema, dispatch::kF32, {});
  Verdict v = sample();
  v.reason.clear();
  std::string text = verdict_text(v, *d);
  for (const char* words :
       {"rows.f32", "FASTER\n",
        "parse, duplicate, compile, binary, smoke, correctness, determinism, timing, confirm\n",
        "B=4 L=200: 0.5 us against 1 us of addmm, 2x [1.9, 2.1] in 31 pairs: FASTER; 1.5x in the other",
        "B 1..64, L 8..800 by 8, pointers to 16 bytes", "0.4 of the bound", "61 cases", "landlock+seccomp"})
    EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
  v.status = VerdictStatus::kRejected;
  v.failed_gate = Gate::kCorrectness;
  v.reason = "output 'y' element 3";
  v.failed_case = FailedCase{{4, 200}, 2, 77, 0};
  v.timing.clear();
  text = verdict_text(v, *d);
  for (const char* words :
       {"REJECTED, at gate 'correctness'\n", "passed    parse, duplicate, compile, binary, smoke\n",
        "reason    output 'y' element 3\n", "inputs    B=4 L=200, distribution 2, seed 77\n"})
    EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
  EXPECT_EQ(text.find("serves"), std::string::npos) << text;
}

TEST(Verdict, BytesThatAreNotUtf8AndInfinitiesStillMakeJson) {
  Verdict v = sample();
  v.reason = "error: \xff\xfe";
  v.max_error = std::numeric_limits<double>::infinity();
  const auto read = Verdict::from_json(v.to_json());
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_TRUE(std::isinf(read->max_error));
}

TEST(Verdict, DamagedJsonIsCorruptNotAnException) {
  for (const char* text : {"", "{", "[]", "{\"status\":\"FASTER\"}", "{\"status\":3}"}) {
    const auto read = Verdict::from_json(text);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.status().code(), dispatch::Code::kCorrupt);
  }
  std::string text = sample().to_json();
  text.replace(text.find("none"), 4, "nine");
  EXPECT_NE(Verdict::from_json(text).status().message().find("nine"), std::string::npos);
}

TEST(Gate, NamesAreTheContractOfReports) {
  EXPECT_STREQ(gate_name(Gate::kParse), "parse");
  EXPECT_STREQ(gate_name(Gate::kConfirm), "confirm");
  EXPECT_STREQ(gate_name(Gate::kNone), "none");
  EXPECT_STREQ(verdict_name(VerdictStatus::kNotFaster), "NOT_FASTER");
}

}  // namespace
}  // namespace niche::evolve
