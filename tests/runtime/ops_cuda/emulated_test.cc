// What the CUDA families' kernels compute, on the host: corner points of each space on small ragged problems
// against fp64. Their speed, and what a GPU alone shows, is bench/cuda's.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "runtime/ops/cuda/families.h"
#include "tests/runtime/ops_cpu/compiled_batch.h"
#include "tests/runtime/ops_cuda/cases.h"
#include "tests/runtime/ops_cuda/emulated_kernel.h"
#include "tests/runtime/ops_cuda/references.h"

namespace niche::ops_cuda_test {
namespace {

using dispatch::ArgRole;
using dispatch::Problem;
using ops_cpu_test::GuardedBuffer;

uint16_t to_bf16(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
double from_bf16(uint16_t b) {
  const uint32_t u = static_cast<uint32_t>(b) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return static_cast<double>(f);
}

void store(const DLDataType& t, uint8_t* at, int64_t i, float v) {
  if (t.bits == 32) {
    std::memcpy(at + i * 4, &v, 4);
    return;
  }
  uint16_t bits = to_bf16(v);
  if (dispatch::same_dtype(t, dispatch::kF16)) {
    const auto h = static_cast<_Float16>(v);
    std::memcpy(&bits, &h, 2);
  }
  std::memcpy(at + i * 2, &bits, 2);
}
double load(const DLDataType& t, const uint8_t* at, int64_t i) {
  if (t.code == kDLInt) {
    int64_t v;
    std::memcpy(&v, at + i * 8, 8);
    return static_cast<double>(v);
  }
  if (t.bits == 32) {
    float f;
    std::memcpy(&f, at + i * 4, 4);
    return static_cast<double>(f);
  }
  uint16_t bits;
  std::memcpy(&bits, at + i * 2, 2);
  if (!dispatch::same_dtype(t, dispatch::kF16)) return from_bf16(bits);
  _Float16 h;
  std::memcpy(&h, &bits, 2);
  return static_cast<double>(h);
}

// The arguments of one problem between guard pages: the end of each touches one.
class Arguments {
 public:
  Arguments(const Problem& p, uint64_t seed) : p_(p) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    const auto& args = p.definition->schema().args;
    for (size_t a = 0; a < args.size(); ++a) {
      const int arg = static_cast<int>(a);
      const bool present = p.definition->has_arg(arg);
      const int64_t bytes = present ? p.arg_bytes(arg) : 0;
      // 16-byte aligned, as Guards ask at most.
      buffers_.emplace_back(static_cast<size_t>(bytes), static_cast<size_t>((16 - bytes % 16) % 16), true);
      pointers_.push_back(present ? buffers_.back().data() : nullptr);
      if (present && args[a].role != ArgRole::kOut) fill(arg, random, normal);
    }
  }
  std::span<void* const> pointers() const { return pointers_; }
  double value(int arg, int64_t i) const {
    return load(p_.definition->arg_dtype(arg), buffers_[static_cast<size_t>(arg)].data(), i);
  }
  std::vector<uint8_t> bytes(int arg) const {
    const GuardedBuffer& b = buffers_[static_cast<size_t>(arg)];
    return {b.data(), b.data() + b.size()};
  }
  void poison(int arg) {
    GuardedBuffer& b = buffers_[static_cast<size_t>(arg)];
    std::memset(b.data(), 0xFF, b.size());
  }
  bool fences_intact() const {
    for (const GuardedBuffer& b : buffers_)
      if (!b.fence_intact()) return false;
    return true;
  }

 private:
  void fill(int arg, std::mt19937_64& random, std::normal_distribution<float>& normal) {
    const DLDataType type = p_.definition->arg_dtype(arg);
    uint8_t* at = buffers_[static_cast<size_t>(arg)].data();
    if (type.code == kDLInt) {
      const auto v = integers(p_, arg, random);
      std::memcpy(at, v.data(), v.size() * 8);
      return;
    }
    for (int64_t i = 0; i < p_.arg_elements(arg); ++i) store(type, at, i, normal(random));
  }
  const Problem& p_;
  std::vector<GuardedBuffer> buffers_;
  std::vector<void*> pointers_;
};

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
      {"optimized_fm_f32", {"optimized_fm", {{"N", 7}, {"D", 36}, {"K", 52}}, {"f32"}}, {{1}, {9}}},
      {"pffn_f32", {"pffn", {{"N", 19}, {"D", 24}, {"K", 40}}, {"f32"}}, {{1}, {3}}},
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

Problem problem(const std::shared_ptr<const dispatch::Definition>& d, const std::vector<int64_t>& var) {
  Problem p;
  p.definition = d;
  std::copy(d->const_extents().begin(), d->const_extents().end(), p.axes.begin());
  for (size_t i = 0; i < var.size(); ++i) p.axes[static_cast<size_t>(d->var_axes()[i])] = var[i];
  if (d->schema().op == "conv1d")
    p.axes[5] = p.axes[1] + 2 * static_cast<int64_t>(d->attr("padding")) - p.axes[4] + 1;
  return p;
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
