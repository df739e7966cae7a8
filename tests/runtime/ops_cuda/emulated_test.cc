// What the CUDA families' kernels compute, on the host: corner points of each space on small ragged problems
// against fp64. Their speed, and what a GPU alone shows, is bench/cuda's.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "runtime/ops/cuda/families.h"
#include "tests/runtime/ops_cuda/cases.h"
#include "tests/runtime/ops_cuda/emulated_arguments.h"
#include "tests/runtime/ops_cuda/emulated_kernel.h"
#include "tests/runtime/ops_cuda/references.h"

namespace niche::ops_cuda_test {
namespace {

using dispatch::Problem;
using ops_cpu_test::GuardedBuffer;

struct EmulatedCase {
  std::string name;
  Case c;
  std::vector<std::vector<int64_t>> var;  // values of the variable axes
};

std::vector<EmulatedCase> emulated_cases() {
  return {
      {"silu_mul", {"silu_mul", {{"N", 136}}, {"bf16", "f32"}}, {{1}, {9}}},
      {"gelu_mul", {"gelu_mul", {{"N", 136}}, {"f32", "f16"}}, {{1}, {9}}},
      {"gelu_mul_tanh", {"gelu_mul", {{"N", 77}}, {"bf16"}, {{"tanh", 1}}}, {{5}}},
      {"rope", {"rope", {{"H", 4}, {"D", 64}, {"P", 20}}, {"bf16", "f32"}}, {{1}, {7}}},
      {"rope_pairs", {"rope", {{"H", 6}, {"D", 36}, {"P", 20}}, {"f16"}, {{"interleaved", 1}}}, {{7}}},
      {"linear", {"linear", {{"N", 50}, {"K", 1024}}, {"bf16", "f32"}, {{"activation", 2}}}, {{1}, {3}, {8}}},
      {"linear_bare",
       {"linear", {{"N", 33}, {"K", 544}}, {"f16"}, {{"has_bias", 0}, {"activation", 3}}},
       {{1}, {17}}},
      {"sdpa_decode",
       {"sdpa_decode", {{"Hq", 8}, {"Hk", 2}, {"D", 64}}, {"bf16", "f32"}},
       {{1, 1}, {2, 37}, {1, 300}}},
      {"sdpa_decode_heads",
       {"sdpa_decode", {{"Hq", 3}, {"Hk", 3}, {"D", 128}}, {"f16"}, {{"scale", 0.3}}},
       {{2, 130}}},
      {"conv1d_f32", {"conv1d", {{"Ci", 20}, {"Co", 40}, {"K", 3}}, {"f32"}}, {{1, 33}, {2, 70}}},
      {"conv1d_f32_bare",
       {"conv1d", {{"Ci", 5}, {"Co", 33}, {"K", 4}}, {"f32"}, {{"has_bias", 0}, {"padding", 0}}},
       {{2, 40}}},
      {"conv1d_f32_split", {"conv1d", {{"Ci", 32}, {"Co", 48}, {"K", 3}}, {"f32"}}, {{1, 33}, {3, 44}}},
      {"optimized_fm_f32", {"optimized_fm", {{"N", 7}, {"D", 36}, {"K", 52}}, {"f32"}}, {{1}, {9}}},
      {"optimized_fm_f32_tiles", {"optimized_fm", {{"N", 37}, {"D", 20}, {"K", 75}}, {"f32"}}, {{2}}},
      {"pffn_f32", {"pffn", {{"N", 19}, {"D", 24}, {"K", 40}}, {"f32"}}, {{1}, {3}}},
      {"pffn_f32_shares", {"pffn", {{"N", 41}, {"D", 20}, {"K", 48}}, {"f32"}}, {{2}}},
      {"embedding_bag",
       {"embedding_bag", {{"V", 50}, {"D", 64}}, {"bf16", "f32"}},
       {{0, 3}, {40, 1}, {100, 13}}},
      {"embedding_bag_mean", {"embedding_bag", {{"V", 50}, {"D", 37}}, {"f32"}, {{"mean", 1}}}, {{60, 9}}},
      {"ikbo",
       {"ikbo_linear_compression", {{"M", 70}, {"N", 136}, {"Kc", 50}, {"Ku", 88}}, {"bf16"}},
       {{3, 2}, {1, 1}}},
      {"ikbo_wide",
       {"ikbo_linear_compression", {{"M", 150}, {"N", 72}, {"Kc", 104}, {"Ku", 38}}, {"f16"}},
       {{2, 1}}},
  };
}

// Kernels a family and element type: each costs half a second to compile.
size_t points() {
  const char* given = std::getenv("NICHE_TEST_EMULATED_POINTS");
  return given != nullptr ? static_cast<size_t>(std::max(1, std::atoi(given))) : 5;
}

class EmulatedTest : public ::testing::TestWithParam<EmulatedCase> {
 protected:
  void check(EmulatedKernel& kernel, const evolve::CudaKernelSource& source, const Problem& p) {
    Arguments args(p, 7);
    const int out = static_cast<int>(p.definition->schema().args.size()) - 1;
    const std::string where = source.kernel_name + " at " + p.to_string();
    GuardedBuffer workspace(static_cast<size_t>(source.plan.workspace_bytes) + 16, 0, true);
    std::vector<uint8_t> rising;
    for (const bool falling : {false, true}) {
      args.poison(out);
      std::memset(workspace.data(), 0xFF, std::min<size_t>(workspace.size(), 4 << 20));
      const auto s = kernel.run(
          args.pointers(), {p.axes.data(), p.definition->schema().axes.size()},
          reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(workspace.data()) + 15) / 16 * 16), falling);
      ASSERT_TRUE(s.ok()) << where << ": " << s.to_string();
      if (!falling) rising = args.bytes(out);
    }
    EXPECT_EQ(rising, args.bytes(out)) << where << ": the order of a block's threads shows";
    EXPECT_TRUE(args.fences_intact()) << where;
    const auto want = reference(p, out, [&](int a, int64_t i) { return args.value(a, i); });
    double top = 0;
    for (double w : want) top = std::max(top, std::abs(w));
    const DLDataType type = p.definition->arg_dtype(out);
    // One rounding of the type at each element, and fp32 sums (and tanh.approx's fit) at the largest.
    const bool half = dispatch::same_dtype(type, dispatch::kF16);
    const double unit = type.bits == 32 ? 0x1p-21 : half ? 0x1p-10 : 0x1p-8;
    // Attention on tensor cores rounds its weights to the type, as the library's does: they err alike and add up.
    const bool rounds_weights = type.bits == 16 && p.definition->schema().op == "sdpa_decode";
    const double floor = (type.bits == 32 ? 2e-6 : rounds_weights ? unit / 2 : 4e-5) * top;
    int wrong = 0;
    for (size_t i = 0; i < want.size() && wrong < 3; ++i) {
      const double got = args.value(out, static_cast<int64_t>(i));
      if (std::abs(got - want[i]) <= unit * std::abs(want[i]) + floor) continue;
      ADD_FAILURE() << where << ": element " << i << " of " << want.size() << " is " << got << ", not "
                    << want[i];
      ++wrong;
    }
  }
};

TEST_P(EmulatedTest, CornerPointsComputeTheOperator) {
  evolve::CudaFamilyRegistry registry;
  ops_cuda::register_cuda_families(registry);
  const evolve::CudaTarget target = evolve::CudaTarget::named("sm_80");
  int kernels = 0;
  for (const std::string& dtype : GetParam().c.dtypes) {
    const auto d = definition(GetParam().c, dtype);
    for (const auto* family : registry.for_op(GetParam().c.op))
      for (const auto& point : thinned(corners(*family, *d, target), points())) {
        const auto source = family->render(*d, target, point);
        auto kernel = EmulatedKernel::compile(source);
        ASSERT_TRUE(kernel.ok()) << kernel.status().to_string();
        ++kernels;
        for (const auto& var : GetParam().var) {
          const Problem p = problem(d, var);
          if (source.limits.holds(*d, p.axes.data())) check(**kernel, source, p);
          if (HasFatalFailure()) return;
        }
      }
  }
  EXPECT_GE(kernels, 1);
}

INSTANTIATE_TEST_SUITE_P(Emulated, EmulatedTest, ::testing::ValuesIn(emulated_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace niche::ops_cuda_test
