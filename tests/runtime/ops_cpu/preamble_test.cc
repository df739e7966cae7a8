// What the preamble promises of its functions: error bounds, special values, partial loads and stores.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/runtime/ops_cpu/compiled_batch.h"
#include "tests/runtime/ops_cpu/harness.h"

namespace niche::ops_cpu_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

// Compiles `statement` (reads f32x8 x or longs from p, see body) into run_p and applies it to n floats.
class Preamble : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!native_target().avx2) GTEST_SKIP() << "no AVX2 here";
  }
  // y = f(x) element by element; `expression` is in terms of `x`, an f32x8.
  std::vector<float> map(const std::string& expression, std::vector<float> x) {
    const size_t n = x.size();
    x.resize((n + 7) / 8 * 8);
    std::vector<float> y(x.size());
    run("for (long i = begin; i < end; ++i) { const f32x8 x = load<8>((const float*)a->p[0] + 8 * i); "
        "store((float*)a->p[1] + 8 * i, " +
            expression + "); }",
        {x.data(), y.data()}, static_cast<long>(x.size() / 8));
    y.resize(n);
    return y;
  }
  void run(const std::string& statements, std::vector<void*> p, long tasks) {
    CompiledBatch batch;
    evolve::KernelSource s;
    s.text = std::string(evolve::cpu_preamble()) +
             "extern \"C\" void run_p(const NicheKernelArgs* a, long begin, long end) { (void)a, "
             "(void)begin, (void)end; " +
             statements + " }\n";
    s.kernel_name = "preamble";
    s.plan.phases = {{"run_p", {{0, 1}}, 2}};
    batch.add(s);
    const std::string error = batch.build("native", true);
    ASSERT_TRUE(error.empty()) << error;
    const long axes[dispatch::kMaxAxes] = {tasks};
    ASSERT_TRUE(batch.run(0, p.data(), axes, nullptr, std::vector<bool>(p.size()), 1));
  }
  static std::vector<float> grid(float lo, float hi, int n) {
    std::vector<float> x;
    for (int i = 0; i <= n; ++i) x.push_back(lo + (hi - lo) * static_cast<float>(i) / static_cast<float>(n));
    return x;
  }
  // Largest |y - f| / max(|f|, floor).
  template <typename Fn>
  double worst(const std::string& expression, const std::vector<float>& x, Fn f, double floor) {
    const std::vector<float> y = map(expression, x);
    double w = 0;
    for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
      const double e = f(static_cast<double>(x[i]));
      w = std::max(w, std::abs(static_cast<double>(y[i]) - e) / std::max(std::abs(e), floor));
    }
    return w;
  }
};

double exp_d(double v) { return std::exp(v); }

TEST_F(Preamble, ExponentialsAreWithinTheirBounds) {
  const std::vector<float> all = grid(-103, 88.7f, 40000), down = grid(-87, 0, 40000);
  EXPECT_LT(worst("nv::exp<6>(x)", all, exp_d, 1.2e-38), 1.6e-7);
  EXPECT_LT(worst("nv::exp<5>(x)", all, exp_d, 1.2e-38), 2.6e-7);
  EXPECT_LT(worst("nv::exp<4>(x)", all, exp_d, 1.2e-38), 5.7e-6);
  EXPECT_LT(worst("nv::exp<3>(x)", all, exp_d, 1.2e-38), 7.6e-5);
  EXPECT_LT(worst("nv::exp_nonpos<6>(x)", down, exp_d, 1.2e-38), 1.6e-7);
  EXPECT_LT(worst("(nv::exp_nonpos<6, true, Scale::kAddExponent>(x))", down, exp_d, 1.2e-38), 1.6e-7);
  EXPECT_LT(worst("(nv::exp_nonpos<5, false>(x))", grid(-10, 0, 40000), exp_d, 1.2e-38), 4e-7);
  EXPECT_LT(worst(
                "nv::exp2<6>(x)", grid(-126, 127, 40000), [](double v) { return std::exp2(v); }, 1.2e-38),
            1.6e-7);
}
TEST_F(Preamble, ExponentialsOfSpecialValues) {
  const std::vector<float> x = {-kInf, -200, 0, kInf, 89, kNan, -0.0f, 88.6f};
  const std::vector<float> e = map("nv::exp<6>(x)", x);
  EXPECT_EQ(e[0], 0);
  EXPECT_EQ(e[1], 0);
  EXPECT_EQ(e[2], 1);
  EXPECT_EQ(e[3], kInf);
  EXPECT_EQ(e[4], kInf);
  EXPECT_TRUE(std::isnan(e[5]));
  EXPECT_TRUE(std::isfinite(e[7]));
  for (const char* form : {"nv::exp_nonpos<6>(x)", "(nv::exp_nonpos<5, false, Scale::kAddExponent>(x))"}) {
    const std::vector<float> y = map(form, x);
    EXPECT_EQ(y[0], 0) << form;
    EXPECT_EQ(y[1], 0) << form;
    EXPECT_EQ(y[2], 1) << form;
    EXPECT_TRUE(std::isnan(y[5])) << form;
  }
  const std::vector<float> p = map("nv::exp2<6>(x)", {-kInf, -127, 127, 128, kInf, kNan, 0, 1});
  EXPECT_EQ(p[0], 0);
  EXPECT_EQ(p[3], kInf);
  EXPECT_EQ(p[4], kInf);
  EXPECT_TRUE(std::isnan(p[5]));
  EXPECT_EQ(p[6], 1);
}
TEST_F(Preamble, SigmoidErfTanhSoftplusReciprocals) {
  const std::vector<float> x = grid(-30, 30, 60000);
  EXPECT_LT(worst(
                "nv::sigmoid<6>(x)", x, [](double v) { return 1 / (1 + std::exp(-v)); }, 1e-30),
            4e-7);
  EXPECT_LT(worst(
                "nv::erf(x)", grid(-6, 6, 60000), [](double v) { return std::erf(v); }, 1.0),
            2e-7);
  EXPECT_LT(worst(
                "nv::tanh(x)", x, [](double v) { return std::tanh(v); }, 1e-30),
            4e-7);
  EXPECT_LT(worst(
                "nv::softplus(x)", x, [](double v) { return v > 20 ? v : std::log1p(std::exp(v)); }, 1e-30),
            4e-7);
  EXPECT_LT(worst(
                "nv::rcp(x)", grid(1e-3f, 1e3f, 60000), [](double v) { return 1 / v; }, 1e-30),
            2.5e-7);
  EXPECT_LT(worst(
                "nv::rsqrt(x)", grid(1e-3f, 1e3f, 60000), [](double v) { return 1 / std::sqrt(v); }, 1e-30),
            3.5e-7);
  const std::vector<float> s = map("nv::sigmoid<6>(x)", {-kInf, kInf, kNan, -500, 500, 0, 0, 0});
  EXPECT_LT(s[0], 1e-37f);
  EXPECT_EQ(s[1], 1);
  EXPECT_TRUE(std::isnan(s[2]));
  EXPECT_LT(s[3], 1e-37f);
}
TEST_F(Preamble, Bf16RoundsToNearestEvenBothWays) {
  std::vector<float> x;
  Rng rng{3};
  for (int i = 0; i < 4096; ++i) {
    const auto u = static_cast<uint32_t>(rng.next());
    float f = 0;
    std::memcpy(&f, &u, 4);
    x.push_back(std::isnan(f) ? kNan : f);
  }
  x[0] = kInf, x[1] = -kInf, x[2] = kNan, x[3] = 0x1.01p0f, x[4] = 0x1.03p0f, x[5] = -0.0f, x[6] = 3.4e38f;
  std::vector<uint16_t> in_order(x.size()), paired(x.size());
  run("const float* x = (const float*)a->p[0];"
      "for (long i = 0; i < 4096; i += 8) store((bf16*)a->p[1] + i, load<8>(x + i));"
      "for (long i = 0; i < 4096; i += 16) {"  // even and odd elements, as load2 of a bf16 array gives them
      "  float e[8], o[8]; for (int k = 0; k < 8; ++k) e[k] = x[i + 2 * k], o[k] = x[i + 2 * k + 1];"
      "  store2<8>((bf16*)a->p[2] + i, Pair<8>{load<8>(e), load<8>(o)}); }",
      {x.data(), in_order.data(), paired.data()}, 1);
  Array want(dispatch::kBf16, 1);
  for (size_t i = 0; i < x.size(); ++i) {
    want.set(0, static_cast<double>(x[i]));
    uint16_t w = 0;
    std::memcpy(&w, want.bytes.data(), 2);
    if (std::isnan(x[i])) {
      EXPECT_TRUE((in_order[i] & 0x7f80) == 0x7f80 && (in_order[i] & 0x7f) != 0);
      continue;
    }
    EXPECT_EQ(in_order[i], w) << x[i];
    EXPECT_EQ(paired[i], w) << x[i];
  }
}
TEST_F(Preamble, PartialLoadsAndStoresTouchTheirElementsOnly) {
  for (int n = 1; n < 8; ++n) {
    GuardedBuffer f_in(4u * n, 0, true), f_out(4u * n, 0, true), h_in(2u * n, 0, true),
        h_out(2u * n, 0, true);
    for (int i = 0; i < n; ++i) {
      reinterpret_cast<float*>(f_in.data())[i] = static_cast<float>(i + 1);
      reinterpret_cast<uint16_t*>(h_in.data())[i] = static_cast<uint16_t>(0x3f80 + i);
    }
    const std::string count = std::to_string(n);
    std::vector<float> wide(16);
    run("store_n((float*)a->p[1], load_n<8>((const float*)a->p[0], " + count + "), " + count +
            "); store_n((bf16*)a->p[3], load_n<8>((const bf16*)a->p[2], " + count + "), " + count +
            "); store((float*)a->p[4], load_n<8>((const float*)a->p[0], " + count +
            ")); store((float*)a->p[4] + 8, load_n<8>((const bf16*)a->p[2], (int)a->n[0]));",
        {f_in.data(), f_out.data(), h_in.data(), h_out.data(), wide.data()}, n);
    EXPECT_EQ(std::memcmp(f_in.data(), f_out.data(), f_in.size()), 0) << n;
    EXPECT_EQ(std::memcmp(h_in.data(), h_out.data(), h_in.size()), 0) << n;
    EXPECT_TRUE(f_out.fence_intact() && h_out.fence_intact()) << n;
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(wide[static_cast<size_t>(i)], i < n ? static_cast<float>(i + 1) : 0) << n;
      EXPECT_EQ(wide[static_cast<size_t>(i + 8)] != 0, i < n) << n;
    }
  }
}

}  // namespace
}  // namespace niche::ops_cpu_test
