#include "dispatch/definition.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace niche::dispatch {
namespace {

std::shared_ptr<OpSchema> rms_norm() {
  auto s = std::make_shared<OpSchema>();
  s->op = "rms_norm";
  s->axes = {{"M", AxisKind::kVar}, {"N", AxisKind::kConst}};
  s->args = {{"x", ArgRole::kIn, "T", {0, 1}},
             {"weight", ArgRole::kIn, "T", {1}, false, true},
             {"y", ArgRole::kOut, "T", {0, 1}}};
  s->attrs = {{"eps", 1e-6}};
  s->dtypes = {"f32", "bf16"};
  return s;
}

TEST(Definition, NameIsCanonicalAndIndependentOfHowANumberWasWritten) {
  auto a = Definition::make(rms_norm(), kF32, {{"N", 4096}}, {{"eps", 0.000001}});
  ASSERT_TRUE(a.ok()) << a.status().to_string();
  auto b = Definition::make(rms_norm(), kF32, {{"N", 4096}});
  ASSERT_TRUE(b.ok());
  EXPECT_EQ((*a)->name(), "rms_norm.f32.N4096.eps1e-06");
  EXPECT_EQ((*a)->name(), (*b)->name());
  EXPECT_EQ((*a)->hash(), (*b)->hash());
}

TEST(Definition, SaysWhichConstantIsMissing) {
  auto d = Definition::make(rms_norm(), kF32, {});
  ASSERT_FALSE(d.ok());
  EXPECT_EQ(d.status().code(), Code::kInvalid);
  EXPECT_NE(d.status().message().find("'N'"), std::string::npos);
}

TEST(Definition, AttributesOutsideWhatTheSchemaAllowsAreRefusedByName) {
  auto s = rms_norm();
  s->attrs = {{"eps", 1e-6, 0, 1},
              {"mode", 0, 0, 3, true},
              {"has_w", 1},
              {"free", 0},
              {"low", 0, std::numeric_limits<double>::lowest(), 0}};
  s->args[1].name = "w";
  s->args[1].optional = true;
  const auto said = [&](const char* name, double value) {
    const auto d = Definition::make(s, kF32, {{"N", 8}}, {{name, value}});
    EXPECT_EQ(d.ok(), d.status().ok());
    if (!d.ok()) {
      EXPECT_EQ(d.status().code(), Code::kInvalid);
      EXPECT_NE(d.status().message().find("'rms_norm'"), std::string::npos) << d.status().message();
    }
    return d.ok() ? std::string("ok") : d.status().message();
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(said("epz", 1e-6), "unknown attribute 'epz'; there are: eps (default 1e-06), mode"));
  EXPECT_TRUE(has(said("eps", -1), "attribute 'eps' is -1; it must be a finite number from 0 to 1"));
  EXPECT_TRUE(has(said("eps", std::nan("")), "attribute 'eps' is nan"));
  EXPECT_TRUE(has(said("mode", 1.5), "attribute 'mode' is 1.5; it must be a whole number from 0 to 3"));
  EXPECT_TRUE(has(said("mode", 4), "from 0 to 3"));
  EXPECT_TRUE(has(said("has_w", 2), "a whole number from 0 to 1"));
  EXPECT_TRUE(has(said("low", 1), "a finite number of at most 0"));
  EXPECT_TRUE(has(said("free", std::numeric_limits<double>::infinity()), "a finite number"));
  for (const auto& [name, value] : {std::pair("eps", 0.0), {"mode", 3.0}, {"has_w", 0.0}, {"free", -1e300}})
    EXPECT_EQ(said(name, value), "ok") << name;
}

TEST(Definition, RefusesAVariableAxisAsConstant) {
  EXPECT_EQ(Definition::make(rms_norm(), kF32, {{"N", 8}, {"M", 2}}).status().code(), Code::kInvalid);
}

TEST(Definition, RefusesAnElementTypeTheOperatorDoesNotList) {
  EXPECT_EQ(Definition::make(rms_norm(), kI64, {{"N", 8}}).status().code(), Code::kUnsupported);
}

TEST(OpSchema, NamesTheArgumentWithABadAxis) {
  auto s = rms_norm();
  s->args[0].shape = {0, 7};
  EXPECT_NE(s->validate().message().find("'x'"), std::string::npos);
}

TEST(Problem, GivesShapesAndBytes) {
  Problem p;
  p.definition = *Definition::make(rms_norm(), kBf16, {{"N", 64}});
  p.axes = {3, 64};
  EXPECT_EQ(p.arg_shape(0), (std::vector<int64_t>{3, 64}));
  EXPECT_EQ(p.arg_bytes(2), 3 * 64 * 2);
  EXPECT_EQ(p.to_string(), "M=3");
}

}  // namespace
}  // namespace niche::dispatch
