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
