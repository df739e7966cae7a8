// silu_mul, softmax, layer_norm: row-wise operators without a weight to speak of.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/ops/cpu/families.h"
#include "tests/runtime/ops_cpu/harness.h"
#include "tests/runtime/ops_cpu/program_family.h"

namespace niche::ops_cpu_test {
namespace {

const std::vector<std::string> kTypes = {"f32", "bf16"};

const evolve::TemplateFamily& family_of(const evolve::FamilyRegistry& r, const OpTest& t) {
  return *r.for_op(t.schema->op).at(0);
}

OpTest silu_mul_test() {
  OpTest t;
  t.schema = make_schema("silu_mul", "M:v N:c", {"gate:in:T:0,1", "up:in:T:0,1", "y:out:T:0,1"}, {}, kTypes);
  t.row_axis = 0;
  t.fill = [](Call& c, Rng& rng) {
    for (int64_t i = 0; i < c.args[0].size(); ++i) {
      c.args[0].set(i, rng.normal() * 4);
      c.args[1].set(i, rng.normal());
    }
    // Extremes: saturation on both sides, infinities, NaN, signed zero.
    const double special[] = {
        100,          -100, 87.5, -87.5, 1e30, -1e30, std::numeric_limits<double>::infinity(),
        std::nan(""), -0.0, 1e-30};
    for (size_t k = 0; k < std::size(special) && static_cast<int64_t>(k) < c.args[0].size(); ++k) {
      c.args[0].set(static_cast<int64_t>(k), special[k]);
      c.args[1].set(static_cast<int64_t>(k), 1e-3);
    }
  };
  t.reference = [](const Call& c, std::vector<Array>& want) {
    for (int64_t i = 0; i < want[0].size(); ++i) {
      const double g = c.args[0].get(i), u = c.args[1].get(i);
      want[0].set(i, g / (1 + std::exp(-g)) * u);
    }
  };
  return t;
}

OpTest softmax_test() {
  OpTest t;
  t.schema = make_schema("softmax", "M:v N:c", {"x:in:T:0,1", "y:out:T:0,1"}, {}, kTypes);
  t.row_axis = 0;
  t.fill = [](Call& c, Rng& rng) {
    const int64_t n = c.axes[1];
    const double inf = std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < c.args[0].size(); ++i) {
      const int64_t row = i / n, col = i % n;
      double v = rng.normal() * (row % 3 == 2 ? 30 : 2);
      if (row == 1 && col % 3 == 0) v = -inf;          // a mask
      if (row == 3) v = -inf;                          // nothing allowed: NaN, as torch gives
      if (row == 4 && col == n / 2) v = std::nan("");  // poisons its row alone
      if (row == 5) v = col < n - 1 ? -inf : 0.5;      // one survivor, at the end
      if (row == 6) v = col == 0 ? 1e30 : -1e30;
      c.args[0].set(i, v);
    }
  };
  t.reference = [](const Call& c, std::vector<Array>& want) {
    const int64_t n = c.axes[1];
    for (int64_t m = 0; m < c.axes[0]; ++m) {
      double max = -std::numeric_limits<double>::infinity(), sum = 0;
      for (int64_t i = 0; i < n; ++i) max = std::max(max, c.args[0].get(m * n + i));
      for (int64_t i = 0; i < n; ++i) sum += std::exp(c.args[0].get(m * n + i) - max);
      for (int64_t i = 0; i < n; ++i) want[0].set(m * n + i, std::exp(c.args[0].get(m * n + i) - max) / sum);
    }
  };
  return t;
}

TEST(SoftmaxProgram, PassesTheHarnessOfTheTemplates) {
  if (!native_target().avx2) GTEST_SKIP() << "written for AVX2";
  const ProgramFamily program("softmax", "softmax/1.reply.md");
  check_family(program, softmax_test(), {{"f32", {{"N", 10}}, {}, {{1}, {5}, {8}, {9}, {67}, {512}}}}, 0);
}

OpTest layer_norm_test() {
  OpTest t;
  t.schema =
      make_schema("layer_norm", "M:v N:c", {"x:in:T:0,1", "weight:in:T:1:c", "bias:in:T:1:c", "y:out:T:0,1"},
                  {{"eps", 1e-5}}, kTypes);
  t.row_axis = 0;
  t.fill = [](Call& c, Rng& rng) {
    const int64_t n = c.axes[1];
    const bool bf16 = dispatch::same_dtype(c.args[0].type, dispatch::kBf16);
    for (int64_t i = 0; i < c.args[0].size(); ++i) {
      const int64_t row = i / n;
      double v = rng.normal() * std::ldexp(1.0, static_cast<int>(row % 4) * 4 - 6);
      if (row % 4 == 1) v += bf16 ? 2 : 20;      // far from zero
      if (row % 4 == 2 && i % n == 0) v = 3000;  // an outlier in front
      c.args[0].set(i, v);
    }
    for (int64_t i = 0; i < n; ++i) c.args[1].set(i, 1 + 0.2 * rng.normal()), c.args[2].set(i, rng.normal());
  };
  t.reference = [](const Call& c, std::vector<Array>& want) {
    const int64_t n = c.axes[1];
    for (int64_t m = 0; m < c.axes[0]; ++m) {
      double mean = 0, var = 0;
      for (int64_t i = 0; i < n; ++i) mean += c.args[0].get(m * n + i);
      mean /= static_cast<double>(n);
      for (int64_t i = 0; i < n; ++i) var += std::pow(c.args[0].get(m * n + i) - mean, 2);
      const double r = 1 / std::sqrt(var / static_cast<double>(n) + c.definition->attr("eps"));
      for (int64_t i = 0; i < n; ++i)
        want[0].set(m * n + i, (c.args[0].get(m * n + i) - mean) * r * c.args[1].get(i) + c.args[2].get(i));
    }
  };
  // Rows 20 from zero with a spread of 1/4: one f32 rounding of the mean is 8e-6 of the spread.
  t.tolerance_f32 = 1e-5;
  return t;
}

// A constant row's result is its bias, and 1/sqrt(eps) = 316 magnifies what its mean is off by.
OpTest layer_norm_of_constant_rows() {
  OpTest t = layer_norm_test();
  t.fill = [](Call& c, Rng& rng) {
    const int64_t n = c.axes[1];
    for (int64_t i = 0; i < c.args[0].size(); ++i)
      c.args[0].set(i, 0.7 + 0.31 * static_cast<double>(i / n));  // 0.7 to 3.8
    for (int64_t i = 0; i < n; ++i) c.args[1].set(i, 1 + 0.2 * rng.normal()), c.args[2].set(i, rng.normal());
  };
  t.tolerance_f32 = 0x1p-13;
  return t;
}

TEST(LayerNormProgram, PassesTheHarnessOfTheTemplates) {
  if (!native_target().avx2) GTEST_SKIP() << "written for AVX2";
  const ProgramFamily program("layer_norm", "layer_norm/1.reply.md");
  for (const OpTest& test : {layer_norm_test(), layer_norm_of_constant_rows()})
    check_family(program, test, {{"f32", {{"N", 16}}, {}, {{1}, {5}, {8}, {9}, {67}, {512}}}}, 0);
}

TEST(LayerNorm, ConstantRowsGiveTheirBias) {
  evolve::FamilyRegistry registry;
  ops_cpu::add_layer_norm_family(registry);
  const OpTest test = layer_norm_of_constant_rows();
  check_family(family_of(registry, test), test,
               {{"f32", {{"N", 1024}}, {}, {{11}}}, {"f32", {{"N", 2999}}, {}, {{4}}}}, 24);
}

struct RowOp {
  const char* name;
  OpTest (*test)();
  void (*add)(evolve::FamilyRegistry&);
};

class RowFamilies : public ::testing::TestWithParam<RowOp> {
 protected:
  void SetUp() override { GetParam().add(registry_); }
  evolve::FamilyRegistry registry_;
  const OpTest test_ = GetParam().test();
};

TEST_P(RowFamilies, EveryPointIsRightAtOddAndEvenSizes) {
  check_family(family_of(registry_, test_), test_,
               {{"f32", {{"N", 128}}, {}, {{1}, {9}}},
                {"f32", {{"N", 1024}}, {}, {{1}, {7}}},
                {"f32", {{"N", 5}}, {}, {{1}, {11}}},
                {"f32", {{"N", 2999}}, {}, {{8}}},
                {"bf16", {{"N", 1504}}, {}, {{1}, {8}}},
                {"bf16", {{"N", 123}}, {}, {{3}, {17}}}});
}
TEST_P(RowFamilies, CompilesForAvx512) {
  check_compiles_for_avx512(family_of(registry_, test_), test_, {"f32", {{"N", 1023}}, {}, {}});
  check_compiles_for_avx512(family_of(registry_, test_), test_, {"bf16", {{"N", 2000}}, {}, {}});
}
TEST_P(RowFamilies, SpaceIsLarge) {
  for (const std::string& type : kTypes)
    for (int64_t n : {96, 128, 205, 1024, 11008, 32000})
      check_space(family_of(registry_, test_), test_, {type, {{"N", n}}, {}, {}});
}
INSTANTIATE_TEST_SUITE_P(Ops, RowFamilies,
                         ::testing::Values(RowOp{"silu_mul", silu_mul_test, ops_cpu::add_silu_mul_family},
                                           RowOp{"softmax", softmax_test, ops_cpu::add_softmax_family},
                                           RowOp{"layer_norm", layer_norm_test,
                                                 ops_cpu::add_layer_norm_family}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace niche::ops_cpu_test
