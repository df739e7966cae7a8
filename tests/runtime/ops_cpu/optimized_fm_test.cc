#include <gtest/gtest.h>

#include "runtime/ops/cpu/gemm_families.h"
#include "tests/runtime/ops_cpu/harness.h"

namespace niche::ops_cpu_test {
namespace {

OpTest make_test() {
  OpTest t;
  t.schema = make_schema("optimized_fm", "B:v N:c D:c K:c",
                         {"X:in:T:0,1,2", "Y:in:T:0,1,3", "out:out:T:0,1,3"}, {}, {"f32", "bf16"});
  t.row_axis = 0;
  t.fill = [](Call& c, Rng& rng) {
    for (size_t a : {0, 1})
      for (int64_t i = 0; i < c.args[a].size(); ++i) c.args[a].set(i, rng.normal());
  };
  t.reference = [](const Call& c, std::vector<Array>& want) {
    const int64_t n = c.axes[1], d = c.axes[2], k = c.axes[3];
    const auto at = [](int64_t v) { return static_cast<size_t>(v); };
    for (int64_t b = 0; b < c.axes[0]; ++b) {
      std::vector<double> gram(at(n * n), 0);
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j)
          for (int64_t e = 0; e < d; ++e)
            gram[at(i * n + j)] += c.args[0].get((b * n + i) * d + e) * c.args[0].get((b * n + j) * d + e);
      for (int64_t i = 0; i < n; ++i)
        for (int64_t col = 0; col < k; ++col) {
          double sum = 0;
          for (int64_t j = 0; j < n; ++j) sum += gram[at(i * n + j)] * c.args[1].get((b * n + j) * k + col);
          want[0].set((b * n + i) * k + col, sum);
        }
    }
  };
  return t;
}

std::vector<std::pair<std::string, int64_t>> shape(int64_t n, int64_t d, int64_t k) {
  return {{"N", n}, {"D", d}, {"K", k}};
}
const evolve::TemplateFamily& family(const std::string& name) {
  static const evolve::FamilyRegistry registry = [] {
    evolve::FamilyRegistry r;
    ops_cpu::add_optimized_fm(r);
    return r;
  }();
  return *registry.find(name);
}

TEST(OptimizedFmGram, EveryPointIsRightAtOddAndEvenSizes) {
  check_family(family("optimized_fm.gram"), make_test(),
               {{"f32", shape(40, 224, 448), {}, {{1}, {3}}},
                {"f32", shape(1, 1, 1), {}, {{1}, {3}}},
                {"f32", shape(13, 19, 157), {}, {{1}, {4}}}},
               3);
}
TEST(OptimizedFmGram, CompilesForAvx512) {
  check_compiles_for_avx512(family("optimized_fm.gram"), make_test(), {"f32", shape(9, 21, 43), {}, {}});
}
TEST(OptimizedFmGram, SpaceIsLarge) {
  check_space(family("optimized_fm.gram"), make_test(), {"f32", shape(40, 224, 448), {}, {}});
  check_space(family("optimized_fm.gram"), make_test(), {"f32", shape(24, 224, 2198), {}, {}});
}
TEST(OptimizedFmGram, LeavesManyFeaturesToTheOtherOrder) {
  EXPECT_EQ(
      family("optimized_fm.gram")
          .count_valid(*make_definition(make_test(), {"f32", shape(300, 64, 64), {}, {}}), native_target(1)),
      0);
}

}  // namespace
}  // namespace niche::ops_cpu_test
