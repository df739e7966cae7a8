#include <gtest/gtest.h>

#include <cmath>

#include "runtime/ops/cpu/gemm_families.h"
#include "tests/runtime/ops_cpu/harness.h"

namespace niche::ops_cpu_test {
namespace {

enum Axis : size_t { M, N, Kc, Ku, B, U };
enum Arg : size_t { Wc, Wu, Ec, Eu, User };

OpTest make_test() {
  OpTest t;
  t.schema = make_schema("ikbo_linear_compression", "M:c N:c Kc:c Ku:c B:v U:v",
                         {"Wc:in:T:0,2:c", "Wu:in:T:0,3:c", "Ec:in:T:4,2,1", "Eu:in:T:5,3,1", "user:in:i64:4",
                          "out:out:T:4,0,1"},
                         {}, {"f32", "bf16"});
  t.row_axis = B;
  t.fill = [](Call& c, Rng& rng) {
    for (size_t a : {Wc, Wu, Ec, Eu})
      for (int64_t i = 0; i < c.args[a].size(); ++i) c.args[a].set(i, rng.normal());
    for (int64_t b = 0; b < c.axes[B]; ++b) c.args[User].set_int(b, rng.below(c.axes[U]));
  };
  t.reference = [](const Call& c, std::vector<Array>& want) {
    const auto& n = c.axes;
    for (int64_t b = 0; b < n[B]; ++b) {
      const int64_t u = c.args[User].get_int(b);
      for (int64_t m = 0; m < n[M]; ++m)
        for (int64_t col = 0; col < n[N]; ++col) {
          double sum = 0;
          for (int64_t k = 0; k < n[Kc]; ++k)
            sum += c.args[Wc].get(m * n[Kc] + k) * c.args[Ec].get((b * n[Kc] + k) * n[N] + col);
          for (int64_t k = 0; k < n[Ku]; ++k)
            sum += c.args[Wu].get(m * n[Ku] + k) * c.args[Eu].get((u * n[Ku] + k) * n[N] + col);
          want[0].set((b * n[M] + m) * n[N] + col, sum);
        }
    }
  };
  return t;
}

std::vector<std::pair<std::string, int64_t>> shape(int64_t m, int64_t n, int64_t kc, int64_t ku) {
  return {{"M", m}, {"N", n}, {"Kc", kc}, {"Ku", ku}};
}
const evolve::TemplateFamily& family() {
  static const evolve::FamilyRegistry registry = [] {
    evolve::FamilyRegistry r;
    ops_cpu::add_ikbo(r);
    return r;
  }();
  return *registry.find("ikbo_linear_compression.panels");
}

TEST(IkboFamily, EveryPointIsRightAtOddAndEvenSizes) {
  check_family(family(), make_test(),
               {{"f32", shape(43, 64, 266, 178), {}, {{3, 2}, {1, 1}}},
                {"f32", shape(1, 1, 1, 1), {}, {{1, 1}, {4, 3}}},
                {"f32", shape(7, 149, 19, 70), {}, {{2, 4}, {5, 1}}}},
               3);
}
TEST(IkboFamily, RefusesMoreUsersThanItsWorkspaceHolds) {
  const auto d = make_definition(make_test(), {"f32", shape(43, 64, 266, 178), {}, {}});
  const auto points = family().seeds(*d, native_target(1));
  const evolve::KernelSource s = family().render(*d, native_target(1), points.front(), "_k0");
  std::vector<int64_t> axes = {43, 64, 266, 178, 8, 1, 0, 0, 0, 0, 0, 0};
  ASSERT_TRUE(s.limits.holds(*d, axes.data()));
  axes[U] = s.plan.workspace_bytes / (43 * 64 * 4);
  EXPECT_TRUE(s.limits.holds(*d, axes.data()));
  ++axes[U];
  EXPECT_FALSE(s.limits.holds(*d, axes.data()));
}
TEST(IkboFamily, CompilesForAvx512) {
  check_compiles_for_avx512(family(), make_test(), {"f32", shape(7, 37, 19, 70), {}, {}});
}
TEST(IkboFamily, SpaceIsLarge) {
  check_space(family(), make_test(), {"f32", shape(433, 256, 866, 1178), {}, {}});
}

}  // namespace
}  // namespace niche::ops_cpu_test
