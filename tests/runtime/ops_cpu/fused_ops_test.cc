// rms_norm_backward and selective_state_update: several results from one pass.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/ops/cpu/families.h"
#include "tests/runtime/ops_cpu/harness.h"

namespace niche::ops_cpu_test {
namespace {

OpTest rms_norm_backward_test() {
  OpTest t;
  t.schema = make_schema(
      "rms_norm_backward", "M:v N:c",
      {"dy:in:T:0,1", "x:in:T:0,1", "weight:in:T:1:c", "rstd:in:f32:0", "dx:out:T:0,1", "dw:out:T:1"}, {},
      {"f32", "bf16"});
  t.fill = [](Call& c, Rng& rng) {
    const int64_t rows = c.axes[0], n = c.axes[1];
    for (int64_t m = 0; m < rows; ++m) {
      const double scale = std::ldexp(1.0, static_cast<int>(m % 5) - 2);
      double sum = 0;
      for (int64_t i = m * n; i < (m + 1) * n; ++i) {
        c.args[0].set(i, rng.normal());
        c.args[1].set(i, rng.normal() * scale);
        sum += c.args[1].get(i) * c.args[1].get(i);
      }
      c.args[3].set(m, 1 / std::sqrt(sum / static_cast<double>(n) + 1e-6));
    }
    for (int64_t i = 0; i < n; ++i) c.args[2].set(i, 1 + 0.2 * rng.normal());
  };
  t.reference = [](const Call& c, std::vector<Array>& want) {
    const int64_t rows = c.axes[0], n = c.axes[1];
    std::vector<double> dw(static_cast<size_t>(n), 0.0);
    for (int64_t m = 0; m < rows; ++m) {
      const double r = c.args[3].get(m);
      double s = 0;
      for (int64_t i = 0; i < n; ++i)
        s += c.args[2].get(i) * c.args[0].get(m * n + i) * c.args[1].get(m * n + i);
      for (int64_t i = 0; i < n; ++i) {
        const double dy = c.args[0].get(m * n + i), x = c.args[1].get(m * n + i);
        want[0].set(m * n + i, r * c.args[2].get(i) * dy - x * r * r * r / static_cast<double>(n) * s);
        dw[static_cast<size_t>(i)] += dy * x * r;
      }
    }
    for (int64_t i = 0; i < n; ++i) want[1].set(i, dw[static_cast<size_t>(i)]);
  };
  return t;
}

OpTest selective_state_update_test() {
  OpTest t;
  t.schema =
      make_schema("selective_state_update", "B:v D:c S:c",
                  {"x:in:T:0,1", "dt:in:T:0,1", "A:in:T:1,2:c", "B:in:T:0,2", "C:in:T:0,2", "D:in:T:1:co",
                   "z:in:T:0,1:o", "dt_bias:in:T:1:co", "state:inout:T:0,1,2", "y:out:T:0,1"},
                  {{"has_D", 1}, {"has_z", 1}, {"has_dt_bias", 1}, {"dt_softplus", 1}}, {"f32", "bf16"});
  t.row_axis = 0;
  t.fill = [](Call& c, Rng& rng) {
    const bool softplus = c.definition->attr("dt_softplus") != 0;
    for (int k : {0, 3, 4, 5, 6, 8})
      for (int64_t i = 0; i < c.args[static_cast<size_t>(k)].size(); ++i)
        c.args[static_cast<size_t>(k)].set(i, rng.normal());
    // Both branches of softplus (threshold 20), and decays down to nothing.
    for (int64_t i = 0; i < c.args[1].size(); ++i)
      c.args[1].set(i, softplus ? (rng.below(8) == 0 ? 25 * rng.normal() : rng.normal() - 2) : rng.uniform());
    for (int64_t i = 0; i < c.args[2].size(); ++i) c.args[2].set(i, -16 * rng.uniform() - 0.1);
    for (int64_t i = 0; i < c.args[7].size(); ++i)
      c.args[7].set(i, softplus ? rng.normal() - 2 : 0.01 * rng.uniform());
  };
  t.reference = [](const Call& c, std::vector<Array>& want) {
    const int64_t batch = c.axes[0], channels = c.axes[1], states = c.axes[2];
    const auto& a = c.args;
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t d = 0; d < channels; ++d) {
        const int64_t at = b * channels + d;
        double dt = a[1].get(at) + (a[7].size() ? a[7].get(d) : 0);
        if (c.definition->attr("dt_softplus") != 0 && dt <= 20) dt = std::log1p(std::exp(dt));
        double y = 0;
        for (int64_t s = 0; s < states; ++s) {
          const double state = a[8].get(at * states + s) * std::exp(dt * a[2].get(d * states + s)) +
                               dt * a[3].get(b * states + s) * a[0].get(at);
          want[0].set(at * states + s, state);
          y += state * a[4].get(b * states + s);
        }
        if (a[5].size()) y += a[5].get(d) * a[0].get(at);
        if (a[6].size()) y *= a[6].get(at) / (1 + std::exp(-a[6].get(at)));
        want[1].set(at, y);
      }
  };
  return t;
}

TEST(RmsNormBackwardFamily, EveryPointIsRight) {
  evolve::FamilyRegistry r;
  ops_cpu::add_rms_norm_backward_family(r);
  check_family(*r.all().at(0), rms_norm_backward_test(),
               {{"f32", {{"N", 1024}}, {}, {{1}, {37}, {130}}},
                {"f32", {{"N", 5}}, {}, {{1}, {200}}},
                {"f32", {{"N", 2083}}, {}, {{9}}},
                {"bf16", {{"N", 1192}}, {}, {{3}, {70}}},
                {"bf16", {{"N", 77}}, {}, {{34}}}},
               16);
}
TEST(RmsNormBackwardFamily, SpaceAndAvx512) {
  evolve::FamilyRegistry r;
  ops_cpu::add_rms_norm_backward_family(r);
  const OpTest t = rms_norm_backward_test();
  for (const char* type : {"f32", "bf16"})
    for (int64_t n : {205, 1024, 4096}) check_space(*r.all().at(0), t, {type, {{"N", n}}, {}, {}});
  check_compiles_for_avx512(*r.all().at(0), t, {"bf16", {{"N", 1061}}, {}, {}});
}

TEST(SelectiveStateUpdateFamily, EveryPointIsRightWithAndWithoutOptionalArguments) {
  evolve::FamilyRegistry r;
  ops_cpu::add_selective_state_update_family(r);
  check_family(*r.all().at(0), selective_state_update_test(),
               {{"f32", {{"D", 64}, {"S", 16}}, {}, {{1}, {3}}},
                {"f32", {{"D", 37}, {"S", 5}}, {{"has_D", 0}, {"has_z", 0}}, {{1}, {4}}},
                {"f32", {{"D", 20}, {"S", 130}}, {{"has_dt_bias", 0}, {"dt_softplus", 0}}, {{2}}},
                {"bf16", {{"D", 43}, {"S", 24}}, {}, {{3}}}},
               16);
}
TEST(SelectiveStateUpdateFamily, SpaceAndAvx512) {
  evolve::FamilyRegistry r;
  ops_cpu::add_selective_state_update_family(r);
  const OpTest t = selective_state_update_test();
  for (int64_t s : {16, 128}) check_space(*r.all().at(0), t, {"f32", {{"D", 1024}, {"S", s}}, {}, {}});
  check_compiles_for_avx512(*r.all().at(0), t, {"bf16", {{"D", 43}, {"S", 24}}, {}, {}});
}

}  // namespace
}  // namespace niche::ops_cpu_test
