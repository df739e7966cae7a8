#include <gtest/gtest.h>

#include <cmath>

#include "runtime/ops/cpu/gemm_families.h"
#include "tests/runtime/ops_cpu/harness.h"

namespace niche::ops_cpu_test {
namespace {

enum Arg : size_t { X, W1, B1, W2, B2 };

// y = rms_norm(x W + bias) or rms_norm(gelu(x W + bias)); n rows, depth d, k columns, norm over k.
void layer(const double* x, const Array& w, int64_t w_at, const Array& bias, bool gelu, double eps, int64_t n,
           int64_t d, int64_t k, std::vector<double>& y) {
  y.assign(static_cast<size_t>(n * k), 0);
  for (int64_t r = 0; r < n; ++r) {
    double squares = 0;
    for (int64_t c = 0; c < k; ++c) {
      double sum = bias.get(c);
      for (int64_t i = 0; i < d; ++i) sum += x[r * d + i] * w.get(w_at + i * k + c);
      if (gelu) sum *= 0.5 * std::erfc(-sum / std::sqrt(2.0));
      y[static_cast<size_t>(r * k + c)] = sum;
      squares += sum * sum;
    }
    const double scale = 1 / std::sqrt(squares / static_cast<double>(k) + eps);
    for (int64_t c = 0; c < k; ++c) y[static_cast<size_t>(r * k + c)] *= scale;
  }
}

OpTest make_test() {
  OpTest t;
  t.schema = make_schema(
      "pffn", "B:v N:c D:c K:c",
      {"X:in:T:0,1,2", "W1:in:T:0,2,3", "b1:in:T:3:c", "W2:in:T:0,3,2", "b2:in:T:2:c", "y:out:T:0,1,2"},
      {{"eps", 1e-6}}, {"f32", "bf16"});
  t.row_axis = 0;
  t.fill = [](Call& c, Rng& rng) {
    const double s1 = 1 / std::sqrt(static_cast<double>(c.axes[2])),
                 s2 = 1 / std::sqrt(static_cast<double>(c.axes[3]));
    for (size_t a : {X, W1, B1, W2, B2})
      for (int64_t i = 0; i < c.args[a].size(); ++i)
        c.args[a].set(i, rng.normal() * (a == W1 ? s1 : a == W2 ? s2 : 1));
    for (int64_t i = 0; i < c.axes[2]; ++i)
      c.args[X].set(i, 4 * rng.normal());  // a row far into gelu's flat ends
  };
  t.reference = [](const Call& c, std::vector<Array>& want) {
    const int64_t n = c.axes[1], d = c.axes[2], k = c.axes[3];
    const double eps = c.definition->attr("eps");
    std::vector<double> x(static_cast<size_t>(n * d)), h, y;
    for (int64_t b = 0; b < c.axes[0]; ++b) {
      for (int64_t i = 0; i < n * d; ++i) x[static_cast<size_t>(i)] = c.args[X].get(b * n * d + i);
      layer(x.data(), c.args[W1], b * d * k, c.args[B1], true, eps, n, d, k, h);
      layer(h.data(), c.args[W2], b * d * k, c.args[B2], false, eps, n, k, d, y);
      for (int64_t i = 0; i < n * d; ++i) want[0].set(b * n * d + i, y[static_cast<size_t>(i)]);
    }
  };
  t.tolerance_f32 = 4e-6;
  return t;
}

std::vector<std::pair<std::string, int64_t>> shape(int64_t n, int64_t d, int64_t k) {
  return {{"N", n}, {"D", d}, {"K", k}};
}
const evolve::TemplateFamily& family() {
  static const evolve::FamilyRegistry registry = [] {
    evolve::FamilyRegistry r;
    ops_cpu::add_pffn(r);
    return r;
  }();
  return *registry.find("pffn.fused");
}

TEST(PffnFamily, EveryPointIsRightAtOddAndEvenSizes) {
  check_family(family(), make_test(),
               {{"f32", shape(150, 96, 192), {}, {{1}, {3}}},
                {"f32", shape(1, 1, 1), {}, {{1}, {4}}},
                {"f32", shape(33, 13, 23), {{"eps", 1e-3}}, {{1}, {3}}}},
               3);
}
TEST(PffnFamily, CompilesForAvx512) {
  check_compiles_for_avx512(family(), make_test(), {"f32", shape(19, 21, 37), {}, {}});
}
TEST(PffnFamily, SpaceIsLarge) {
  check_space(family(), make_test(), {"f32", shape(150, 96, 192), {}, {}});
  check_space(family(), make_test(), {"f32", shape(200, 256, 160), {}, {}});
}

}  // namespace
}  // namespace niche::ops_cpu_test
