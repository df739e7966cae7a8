// conv1d in fp32: direct convolution by fused multiply-adds (tensor cores round fp32 to tf32, which no
// tolerance lets pass).
//
// A block computes `outs` output channels x `span` places of one sample; `chunk` input channels at a time lie
// in shared memory with their weights, tap by tap and output channel innermost, so that a thread reads its
// `per_out` weights as one broadcast and its `per_place` places without a bank conflict. Not run yet.
#include <algorithm>

#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/families.h"

namespace niche::ops_cuda {
namespace {

enum Axis { kB, kL, kCi, kCo, kK, kLo };

constexpr std::string_view kBody = R"(
enum : int { PLACES = SPAN / PER_PLACE, THREADS = OUTS / PER_OUT * PLACES, WIDE = SPAN + K - 1,
             W_PITCH = OUTS + 4, TILES_OUT = (CO + OUTS - 1) / OUTS };
extern __shared__ __align__(16) unsigned char shared[];

extern "C" __global__ void __launch_bounds__(THREADS) run(const __grid_constant__ Args a) {
  const float *x = (const float*)a.p[0], *weight = (const float*)a.p[1], *bias = (const float*)a.p[2];
  float* y = (float*)a.p[3];
  const i64 batch = a.n[0], length = a.n[1], out_length = a.n[5];
  const i64 spans = (out_length + SPAN - 1) / SPAN, jobs = batch * spans * TILES_OUT;
  float *w = (float*)shared, *in = w + CHUNK * K * W_PITCH;
  const int place = threadIdx.x % PLACES, group = threadIdx.x / PLACES * PER_OUT;
  for (i64 job = blockIdx.x; job < jobs; job += gridDim.x) {
    const int out0 = (int)(job % TILES_OUT) * OUTS;
    const i64 first = job / TILES_OUT % spans * SPAN, sample = job / (TILES_OUT * spans);
    float sum[PER_OUT][PER_PLACE] = {};
#pragma unroll 1
    for (int c0 = 0; c0 < CI; c0 += CHUNK) {
      __syncthreads();
      for (int i = threadIdx.x; i < OUTS * CHUNK * K; i += THREADS) {
        const int o = i / (CHUNK * K), r = i % (CHUNK * K);  // r: channel and tap, contiguous in memory
        const bool real = out0 + o < CO && c0 * K + r < CI * K;
        w[r * W_PITCH + o] = real ? __ldg(weight + (i64)(out0 + o) * CI * K + c0 * K + r) : 0.0f;
      }
      for (int i = threadIdx.x; i < CHUNK * WIDE; i += THREADS) {
        const int c = i / WIDE;
        const i64 l = first + i % WIDE - PADDING;
        const bool real = c0 + c < CI && l >= 0 && l < length;
        in[i] = real ? __ldg(x + (sample * CI + c0 + c) * length + l) : 0.0f;
      }
      __syncthreads();
#pragma unroll 1
      for (int c = 0; c < CHUNK; ++c)
#pragma unroll
        for (int k = 0; k < K; ++k) {
          float v[PER_PLACE], f[PER_OUT];
#pragma unroll
          for (int j = 0; j < PER_PLACE; ++j) v[j] = in[c * WIDE + place + j * PLACES + k];
#pragma unroll
          for (int o = 0; o < PER_OUT; o += 4) unpack(ld<0, float, 4>(w + (c * K + k) * W_PITCH + group + o), f + o);
#pragma unroll
          for (int o = 0; o < PER_OUT; ++o)
#pragma unroll
            for (int j = 0; j < PER_PLACE; ++j) sum[o][j] = fmaf(f[o], v[j], sum[o][j]);
        }
    }
#pragma unroll
    for (int o = 0; o < PER_OUT; ++o) {
      const int out = out0 + group + o;
      if (out >= CO) continue;
      const float add = BIAS ? __ldg(bias + out) : 0.0f;
#pragma unroll
      for (int j = 0; j < PER_PLACE; ++j) {
        const i64 l = first + place + j * PLACES;
        if (l < out_length) y[(sample * CO + out) * out_length + l] = sum[o][j] + add;
      }
    }
  }
}
)";

class Conv1dF32Family : public CudaSpaceFamily {
 public:
  Conv1dF32Family()
      : CudaSpaceFamily("conv1d.direct", "conv1d",
                        {{"outs", {96, 64, 32, 48, 128}},
                         {"span", {64, 128, 32, 200, 100}},
                         {"per_out", {8, 4, 12, 16}},
                         {"per_place", {4, 8, 2, 5}},
                         {"chunk", {16, 8, 32, 4}},
                         {"persist", {0, 1, 2, 3, 4}}}) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    const auto extents = d.const_extents();
    CudaKernelSource s;
    s.text = CudaSource()
                 .let("CI", extents[kCi])
                 .let("CO", extents[kCo])
                 .let("K", extents[kK])
                 .let("PADDING", static_cast<int64_t>(d.attr("padding")))
                 .let("BIAS", d.attr("has_bias") != 0)
                 .let("OUTS", v["outs"])
                 .let("SPAN", v["span"])
                 .let("PER_OUT", v["per_out"])
                 .let("PER_PLACE", v["per_place"])
                 .let("CHUNK", v["chunk"])
                 .body(kBody)
                 .take();
    dispatch::CudaPhase p;
    p.symbol = "run";
    p.factors = {{kB, 1}, {kLo, v["span"]}, {kCo, v["outs"]}};
    p.threads = threads(v);
    p.shared_bytes = static_cast<int>(shared_bytes(d, v));
    p.blocks_per_sm = v["persist"];
    s.plan.phases = {p};
    s.limits = any_problem(d, 4);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  static int threads(const View& v) { return v["outs"] / v["per_out"] * (v["span"] / v["per_place"]); }
  static int64_t shared_bytes(const Definition& d, const View& v) {
    const int64_t k = d.const_extents()[kK];
    return 4 * (v["chunk"] * k * (v["outs"] + 4) + v["chunk"] * (v["span"] + k - 1));
  }
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const auto extents = d.const_extents();
    if (element_bytes(d) != 4 || v["outs"] % v["per_out"] != 0 || v["span"] % v["per_place"] != 0)
      return false;
    const int n = threads(v);
    if (n % 32 != 0 || n < 64 || n > 1024) return false;
    if (v["outs"] >= 2 * extents[kCo] && v["outs"] > 32) return false;
    if (v["chunk"] >= 2 * extents[kCi] && v["chunk"] > 4) return false;
    const int registers = v["per_out"] * v["per_place"] + v["per_out"] + v["per_place"] + 40;
    if (registers > std::min(240, 65536 / (n * std::max(1, v["persist"])))) return false;
    return fits(t, n, shared_bytes(d, v), v["persist"]);
  }
  std::vector<Settings> seed_points(const Definition& d, const CudaTarget&) const override {
    int chunk = 4;
    while (chunk < 16 && chunk < d.const_extents()[kCi]) chunk *= 2;
    std::vector<Settings> s;
    for (int outs : {96, 64, 32})
      for (int span : {64, 128, 32, 200})
        for (int per_out : {8, 4})
          for (int per_place : {4, 8, 5, 2})
            s.push_back({{"outs", outs},
                         {"span", span},
                         {"per_out", per_out},
                         {"per_place", per_place},
                         {"chunk", chunk}});
    return s;
  }
};

}  // namespace

void add_conv1d_f32_family(evolve::CudaFamilyRegistry& registry) {
  registry.add(std::make_shared<Conv1dF32Family>());
}

}  // namespace niche::ops_cuda
