// conv1d in fp32 on tensor cores, 3xTF32 (cuda_tf32.h).
//
// A block keeps the weights of `outs` output channels in shared memory ([out][tap][channel]) and walks over (sample, `span`
// places); 16 channels of X at a time come through a ring of cp.async of `stages` slots. Warps: groups of `mw` tiles of 16
// output channels x `n_groups` groups of places. Chains in the tensor core are 8 channels x K taps long.
// Few samples: smaller `span` and `outs` give more blocks.
#include <algorithm>

#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/cuda_tf32.h"
#include "runtime/ops/cuda/families.h"

namespace niche::ops_cuda {
namespace {

enum Axis { kB, kL, kCi, kCo, kK, kLo };
constexpr int kChunk = 16;  // channels of a piece

constexpr std::string_view kBody = R"(
enum : int { M_GROUPS = OUTS / 16 / MW, WARPS = N_GROUPS * M_GROUPS, TILES_OUT = CO / OUTS, THREADS = 32 * WARPS, N_TILES = SPAN / 8,
             TN = (N_TILES + N_GROUPS - 1) / N_GROUPS, W_PITCH = CI * K + 4, QUADS = SPAN / 4 + 2, X_PITCH = (SPAN + 8 + 15) / 16 * 16 + 8,
             STAGE = CHUNK * X_PITCH, PIECES = CI / CHUNK };
static_assert(CO % OUTS == 0 && OUTS % (16 * MW) == 0 && CI % CHUNK == 0 && SPAN % 8 == 0 && PADDING <= 4 && K - PADDING <= 5, "");
static_assert(W_PITCH % 8 == 4 && (X_PITCH % 32 == 8 || X_PITCH % 32 == 24), "banks");
extern __shared__ __align__(16) unsigned char shared[];


extern "C" __global__ void __launch_bounds__(THREADS, PERSIST) run(const __grid_constant__ Args a) {
  const float *x = (const float*)a.p[0], *weight = (const float*)a.p[1], *bias = (const float*)a.p[2];
  float* y = (float*)a.p[3];
  const int length = (int)a.n[1], out_length = (int)a.n[5];
  const i64 spans = (out_length + SPAN - 1) / SPAN, jobs = a.n[0] * spans;
  // A block keeps its output channels; blocks that the last round of channels leaves over have nothing to do.
  const int stride = (int)(gridDim.x / TILES_OUT), out0 = (int)(blockIdx.x % TILES_OUT) * OUTS;
  const i64 first_job = blockIdx.x / TILES_OUT;
  if (first_job >= jobs || first_job >= stride) return;
  float *w = (float*)shared, *ring = w + OUTS * W_PITCH;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const int mg = warp / N_GROUPS, ng = (warp + mg) % N_GROUPS;  // turned, so that the larger shares fall on different schedulers
  const int tile0 = ng * (N_TILES / N_GROUPS) + (ng < N_TILES % N_GROUPS ? ng : N_TILES % N_GROUPS);
  const int tiles = N_TILES / N_GROUPS + (ng < N_TILES % N_GROUPS ? 1 : 0);
  const u32 ring_at = shared_address(ring);
  const u32 w_at = shared_address(w) + ((mg * MW * 16 + lane % 16) * W_PITCH + lane / 16 * 4) * 4;

  i64 load_job = first_job, load_sample = load_job / spans;
  int load_piece = 0, load_first = (int)(load_job % spans) * SPAN, slot = 0;
  const bool quads = length % 4 == 0;
  const auto load = [&] {
    if (load_job < jobs) {
      const float* from = x + (load_sample * CI + load_piece * CHUNK) * length;
      const u32 to = ring_at + slot * STAGE * 4;
      const int first = load_first - 4;
      if (quads) {
        for (int i = threadIdx.x; i < CHUNK * QUADS; i += THREADS) {
          const int c = i / QUADS, j = i % QUADS * 4, l = first + j;
          const bool in = l >= 0 && l < length;
          copy16_async_or_zero(to + (c * X_PITCH + j) * 4, in ? from + (i64)c * length + l : x, in);
        }
      } else {
        for (int i = threadIdx.x; i < CHUNK * QUADS * 4; i += THREADS) {
          const int c = i / (QUADS * 4), j = i % (QUADS * 4), l = first + j;
          const bool in = l >= 0 && l < length;
          copy4_async_or_zero(to + (c * X_PITCH + j) * 4, in ? from + (i64)c * length + l : x, in);
        }
      }
      if (++load_piece == PIECES) {
        load_piece = 0, load_job += stride;
        load_sample = load_job / spans, load_first = (int)(load_job % spans) * SPAN;
      }
    }
    slot = slot + 1 == STAGES ? 0 : slot + 1;
    copies_commit();
  };
#pragma unroll 1
  for (int s = 0; s < STAGES - 1; ++s) load();
  weight += (i64)out0 * CI * K;
  for (int i = threadIdx.x; i < OUTS * CI * K; i += THREADS) {
    const int o = i / (CI * K), r = i % (CI * K);
    w[o * W_PITCH + r % K * CI + r / K] = __ldg(weight + i);
  }
  int use = 0;
#pragma unroll 1
  for (i64 job = first_job; job < jobs; job += stride) {
    float sum[MW][TN][4] = {};
#pragma unroll 1
    for (int piece = 0; piece < PIECES; ++piece) {
      copies_wait<STAGES - 2>();
      __syncthreads();  // this piece is there for all, and all are done with the one before
      load();
      const float* in = ring + use * STAGE + q * X_PITCH + tile0 * 8 + g + 4 - PADDING;
      use = use + 1 == STAGES ? 0 : use + 1;
#pragma unroll 1
      for (int c = 0; c < CHUNK; c += 8) {
        u32 hi[K][MW][4], lo[K][MW][4];
#pragma unroll
        for (int t = 0; t < K; ++t)
#pragma unroll
          for (int m = 0; m < MW; ++m) {
            u32 r[4];
            ldmatrix4(r, w_at + (m * 16 * W_PITCH + t * CI + piece * CHUNK + c) * 4);
#pragma unroll
            for (int e = 0; e < 4; ++e) split(__uint_as_float(r[e]), hi[t][m][e], lo[t][m][e]);
          }
#pragma unroll
        for (int j = 0; j < TN; ++j) {
          if (j >= tiles) break;
          u32 xh[K][2], xl[K][2];
#pragma unroll
          for (int t = 0; t < K; ++t)
#pragma unroll
            for (int e = 0; e < 2; ++e) split_fast<ROUND>(in[(c + e * 4) * X_PITCH + j * 8 + t], xh[t][e], xl[t][e]);
          float part[MW][4] = {};
#pragma unroll
          for (int t = 0; t < K; ++t)
#pragma unroll
            for (int m = 0; m < MW; ++m) mma_tf32(part[m], lo[t][m], xh[t][0], xh[t][1]);
#pragma unroll
          for (int t = 0; t < K; ++t)
#pragma unroll
            for (int m = 0; m < MW; ++m) mma_tf32(part[m], hi[t][m], xl[t][0], xl[t][1]);
#pragma unroll
          for (int t = 0; t < K; ++t)
#pragma unroll
            for (int m = 0; m < MW; ++m) mma_tf32(part[m], hi[t][m], xh[t][0], xh[t][1]);
#pragma unroll
          for (int m = 0; m < MW; ++m)
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[m][j][e] += part[m][e];
        }
      }
    }
    const i64 sample = job / spans;
    const int first = (int)(job % spans) * SPAN + tile0 * 8 + q * 2;
    float* out = y + (sample * CO + out0 + mg * MW * 16 + g) * out_length;
    const bool pairs = out_length % 2 == 0;
#pragma unroll
    for (int m = 0; m < MW; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float add = BIAS ? __ldg(bias + out0 + mg * MW * 16 + m * 16 + h * 8 + g) : 0.0f;
        float* row = out + (i64)(m * 16 + h * 8) * out_length;
#pragma unroll
        for (int j = 0; j < TN; ++j) {
          const int l = first + j * 8;
          if (j >= tiles || l >= out_length) break;
          const float v0 = sum[m][j][h * 2] + add, v1 = sum[m][j][h * 2 + 1] + add;
          if (pairs) {
            *(float2*)(row + l) = make_float2(v0, v1);
          } else {
            row[l] = v0;
            if (l + 1 < out_length) row[l + 1] = v1;
          }
        }
      }
  }
}
)";

class Conv1dTf32Family : public CudaSpaceFamily {
 public:
  Conv1dTf32Family()
      : CudaSpaceFamily("conv1d.tf32x3", "conv1d",
                        {{"mw", {3, 2, 1}},
                         {"stages", {4, 3, 5, 8, 2}},
                         {"span", {200, 104, 64, 40, 24, 128, 256}},
                         {"outs", {96, 48, 32, 64, 16, 128}},
                         {"n_groups", {4, 2, 1, 8}},
                         {"persist", {1, 2, 3}},
                         {"round", {0, 1}}}) {}

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
                 .let("MW", v["mw"])
                 .let("STAGES", v["stages"])
                 .let("SPAN", v["span"])
                 .let("OUTS", v["outs"])
                 .let("N_GROUPS", v["n_groups"])
                 .let("PERSIST", v["persist"])
                 .let("ROUND", v["round"])
                 .let("CHUNK", kChunk)
                 .body(tf32_text())
                 .body(kBody)
                 .take();
    dispatch::CudaPhase p;
    p.symbol = "run";
    p.factors = {{kB, 1}, {kLo, v["span"]}, {kCo, v["outs"]}};
    p.threads = threads(v);
    p.shared_bytes = static_cast<int>(shared_bytes(d, v));
    p.blocks_per_sm = v["persist"];
    s.plan.phases = {p};
    s.limits = any_problem(d, 16);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  static int threads(const View& v) { return 32 * v["n_groups"] * (v["outs"] / 16 / v["mw"]); }
  static int64_t shared_bytes(const Definition& d, const View& v) {
    const auto extents = d.const_extents();
    const int64_t pitch = (v["span"] + 8 + 15) / 16 * 16 + 8;
    return 4 * (v["outs"] * (extents[kCi] * extents[kK] + 4) + v["stages"] * kChunk * pitch);
  }
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const auto extents = d.const_extents();
    const int64_t taps = extents[kK], padding = static_cast<int64_t>(d.attr("padding"));
    if (element_bytes(d) != 4 || extents[kCi] % kChunk != 0 || padding < 0 || padding > 4 ||
        taps - padding > 5)
      return false;
    // A grid has a block for each share of the channels, however few multiprocessors there are.
    if (extents[kCo] % v["outs"] != 0 || extents[kCo] / v["outs"] > 8 || v["outs"] % (16 * v["mw"]) != 0)
      return false;
    const int n = threads(v), tiles = v["span"] / 8;
    if (n < 64 || n > 1024 || v["n_groups"] > tiles) return false;
    const int64_t per_warp = (tiles + v["n_groups"] - 1) / v["n_groups"];
    const int64_t registers = 4 * v["mw"] * per_warp + 8 * taps * v["mw"] + 4 * taps + 50;
    if (registers > std::min(255, 65536 / (n * v["persist"]))) return false;
    return fits(t, n, shared_bytes(d, v), v["persist"]);
  }
  std::vector<Settings> seed_points(const Definition&, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (int outs : {96, 48, 64, 32, 128, 16})
      for (const auto [span, n_groups] : {std::pair{200, 4}, {40, 4}, {104, 4}, {24, 2}, {64, 4}})
        for (int mw : {3, 2, 1})
          for (int stages : {4, 3})
            s.push_back(
                {{"outs", outs}, {"span", span}, {"n_groups", n_groups}, {"mw", mw}, {"stages", stages}});
    return s;
  }
};

}  // namespace

void add_conv1d_tf32_family(evolve::CudaFamilyRegistry& registry) {
  registry.add(std::make_shared<Conv1dTf32Family>());
}

}  // namespace niche::ops_cuda
