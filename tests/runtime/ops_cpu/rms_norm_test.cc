#include <gtest/gtest.h>

#include <cmath>

#include "runtime/ops/cpu/families.h"
#include "tests/runtime/ops_cpu/harness.h"

namespace niche::ops_cpu_test {
namespace {

enum class Form { kPlain, kAdd, kInPlace };

// x, residual and weight by argument index; the reference in double.
OpTest make_test(Form form) {
  OpTest t;
  const std::vector<dispatch::AttrSpec> eps = {{"eps", 1e-6}};
  const std::vector<std::string> types = {"f32", "bf16"};
  int x = 0, res = -1, w = 1;
  if (form == Form::kPlain) {
    t.schema =
        make_schema("rms_norm", "M:v N:c", {"x:in:T:0,1", "weight:in:T:1:c", "y:out:T:0,1"}, eps, types);
  } else if (form == Form::kAdd) {
    t.schema = make_schema(
        "fused_add_rms_norm", "M:v N:c",
        {"x:in:T:0,1", "residual:in:T:0,1", "weight:in:T:1:c", "y:out:T:0,1", "residual_out:out:T:0,1"}, eps,
        types);
    res = 1, w = 2;
  } else {
    t.schema = make_schema("fused_add_rms_norm_inplace", "M:v N:c",
                           {"weight:in:T:1:c", "x:inout:T:0,1", "residual:inout:T:0,1"}, eps, types);
    x = 1, res = 2, w = 0;
  }
  t.row_axis = 0;
  t.fill = [=](Call& c, Rng& rng) {
    const int64_t n = c.axes[1];
    for (int64_t i = 0; i < c.args[static_cast<size_t>(x)].size(); ++i) {
      const double row_scale =
          std::ldexp(1.0, static_cast<int>((i / n) % 5) * 6 - 12);  // rows of very different size
      c.args[static_cast<size_t>(x)].set(i, rng.normal() * row_scale);
      if (res >= 0) c.args[static_cast<size_t>(res)].set(i, rng.normal() * row_scale);
    }
    for (int64_t i = 0; i < n; ++i) c.args[static_cast<size_t>(w)].set(i, 1 + 0.2 * rng.normal());
  };
  t.reference = [=](const Call& c, std::vector<Array>& want) {
    const int64_t n = c.axes[1];
    Array h(c.args[static_cast<size_t>(x)].type, c.args[static_cast<size_t>(x)].size());
    for (int64_t i = 0; i < h.size(); ++i)
      h.set(i, c.args[static_cast<size_t>(x)].get(i) +
                   (res >= 0 ? c.args[static_cast<size_t>(res)].get(i) : 0.0));
    for (int64_t m = 0; m < c.axes[0]; ++m) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += h.get(m * n + i) * h.get(m * n + i);
      const double r = 1 / std::sqrt(sum / static_cast<double>(n) + c.definition->attr("eps"));
      for (int64_t i = 0; i < n; ++i) {
        want[0].set(m * n + i, h.get(m * n + i) * r * c.args[static_cast<size_t>(w)].get(i));
        if (res >= 0) want[1].set(m * n + i, h.get(m * n + i));
      }
    }
  };
  return t;
}

class RmsNormFamilies : public ::testing::TestWithParam<Form> {
 protected:
  void SetUp() override { ops_cpu::add_rms_norm_families(registry_); }
  const OpTest test_ = make_test(GetParam());
  evolve::FamilyRegistry registry_;
  const evolve::TemplateFamily& family() { return *registry_.for_op(test_.schema->op).at(0); }
};

TEST_P(RmsNormFamilies, EveryPointIsRightAtOddAndEvenSizes) {
  check_family(family(), test_,
               {{"f32", {{"N", 96}}, {}, {{1}, {7}}},
                {"f32", {{"N", 1024}}, {}, {{1}, {5}, {16}}},
                {"f32", {{"N", 3}}, {{"eps", 1e-3}}, {{1}, {9}}},
                {"f32", {{"N", 205}}, {}, {{1}, {4}, {6}}},
                {"bf16", {{"N", 192}}, {}, {{1}, {5}}},
                {"bf16", {{"N", 77}}, {}, {{3}, {8}}}});
}
TEST_P(RmsNormFamilies, CompilesForAvx512) {
  check_compiles_for_avx512(family(), test_, {"f32", {{"N", 205}}, {}, {}});
  check_compiles_for_avx512(family(), test_, {"bf16", {{"N", 1000}}, {}, {}});
}
TEST_P(RmsNormFamilies, SpaceIsLarge) {
  for (const char* type : {"f32", "bf16"})
    for (int64_t n : {96, 205, 1024, 4096, 32001}) check_space(family(), test_, {type, {{"N", n}}, {}, {}});
}
INSTANTIATE_TEST_SUITE_P(Forms, RmsNormFamilies, ::testing::Values(Form::kPlain, Form::kAdd, Form::kInPlace),
                         [](const auto& form) { return make_test(form.param).schema->op; });

}  // namespace
}  // namespace niche::ops_cpu_test
