#include <gtest/gtest.h>

#include "runtime/ops/cpu/gemm_families.h"
#include "tests/runtime/ops_cpu/harness.h"

namespace niche::ops_cpu_test {
namespace {

enum Axis : size_t { B, L, Ci, Co, K, Lo };

// The padding of a case is in its Definition, which derive() does not see: problems of one test share it.
OpTest make_test(int64_t padding) {
  OpTest t;
  t.schema = make_schema("conv1d", "B:v L:v Ci:c Co:c K:c Lo:d",
                         {"x:in:T:0,2,1", "weight:in:T:3,2,4:c", "bias:in:T:3:oc", "y:out:T:0,3,5"},
                         {{"padding", static_cast<double>(padding)}, {"has_bias", 1}}, {"f32", "bf16"});
  t.row_axis = 0;
  t.derive = [=](std::vector<int64_t>& axes) { axes[Lo] = axes[L] + 2 * padding - axes[K] + 1; };
  t.fill = [](Call& c, Rng& rng) {
    for (int64_t i = 0; i < c.args[0].size(); ++i) c.args[0].set(i, rng.normal());
    for (int64_t i = 0; i < c.args[1].size(); ++i) c.args[1].set(i, 0.1 * rng.normal());
    for (int64_t i = 0; i < c.args[2].size(); ++i) c.args[2].set(i, rng.normal());
  };
  t.reference = [=](const Call& c, std::vector<Array>& want) {
    const auto& n = c.axes;
    for (int64_t b = 0; b < n[B]; ++b)
      for (int64_t co = 0; co < n[Co]; ++co)
        for (int64_t l = 0; l < n[Lo]; ++l) {
          double sum = c.definition->attr("has_bias") != 0 ? c.args[2].get(co) : 0;
          for (int64_t ci = 0; ci < n[Ci]; ++ci)
            for (int64_t k = 0; k < n[K]; ++k) {
              const int64_t at = l + k - padding;
              if (at >= 0 && at < n[L])
                sum +=
                    c.args[0].get((b * n[Ci] + ci) * n[L] + at) * c.args[1].get((co * n[Ci] + ci) * n[K] + k);
            }
          want[0].set((b * n[Co] + co) * n[Lo] + l, sum);
        }
  };
  // F(4, 3) loses a factor of 5 to 10 against direct summation (docs/templates_gemm.md).
  t.tolerance_f32 = 2e-5;
  return t;
}

const evolve::TemplateFamily& family(const std::string& name) {
  static const evolve::FamilyRegistry registry = [] {
    evolve::FamilyRegistry r;
    ops_cpu::add_conv1d_winograd(r);
    ops_cpu::add_conv1d_direct(r);
    return r;
  }();
  return *registry.find(name);
}

using Shape = std::vector<std::pair<std::string, int64_t>>;
Shape shape(int64_t ci, int64_t co, int64_t k) { return {{"Ci", ci}, {"Co", co}, {"K", k}}; }

class Conv1dFamilies : public ::testing::TestWithParam<const char*> {};

TEST_P(Conv1dFamilies, EveryPointIsRightWithThreeTaps) {
  check_family(
      family(GetParam()), make_test(1),
      {{"f32", shape(96, 96, 3), {}, {{1, 200}, {3, 37}}},
       {"f32", shape(5, 17, 3), {{"has_bias", 0}}, {{1, 1}, {2, 2}, {1, 3}, {4, 5}, {2, 66}, {3, 130}}}},
      3);
}
TEST_P(Conv1dFamilies, EveryPointIsRightWithOtherPaddings) {
  check_family(family(GetParam()), make_test(0), {{"f32", shape(9, 20, 3), {}, {{1, 3}, {2, 18}, {1, 200}}}},
               1);
  check_family(family(GetParam()), make_test(5), {{"f32", shape(4, 8, 3), {}, {{2, 1}, {2, 9}, {3, 31}}}}, 1);
}
TEST_P(Conv1dFamilies, CompilesForAvx512) {
  check_compiles_for_avx512(family(GetParam()), make_test(1), {"f32", shape(96, 96, 3), {}, {}});
}
TEST_P(Conv1dFamilies, SpaceIsLarge) {
  check_space(family(GetParam()), make_test(1), {"f32", shape(96, 96, 3), {}, {}});
  check_space(family(GetParam()), make_test(1), {"f32", shape(64, 64, 3), {}, {}});
}

TEST(Conv1dDirect, TakesAnyNumberOfTaps) {
  const evolve::TemplateFamily& f = family("conv1d.direct");
  check_family(f, make_test(0), {{"f32", shape(9, 20, 1), {}, {{1, 1}, {2, 18}}}}, 1);
  check_family(f, make_test(4), {{"f32", shape(3, 17, 8), {}, {{1, 1}, {2, 70}}}}, 1);
}
TEST(Conv1dWinograd, LeavesOtherNumbersOfTapsAlone) {
  const auto d = make_definition(make_test(1), {"f32", shape(96, 96, 5), {}, {}});
  EXPECT_EQ(family("conv1d.winograd").count_valid(*d, native_target(1)), 0);
}
INSTANTIATE_TEST_SUITE_P(Families, Conv1dFamilies, ::testing::Values("conv1d.winograd", "conv1d.direct"));

}  // namespace
}  // namespace niche::ops_cpu_test
