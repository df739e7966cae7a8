// pffn in fp32 on tensor cores, 3xTF32 (cuda_tf32.h).
//
// A block has one of `parts` shares of a sample's rows. A warp has 16 rows and, of every chunk of hidden columns,
// `group_tiles` tiles of 8: it multiplies them out, takes the gelu and multiplies them with the second weights at once, in
// registers: the hidden values are the second product's left factor as they lie, with its k in another order
// (0 2 4 6 1 3 5 7). The first norm's factor is applied after the second product. With `groups` > 1 warps share a row's
// hidden columns and add up in shared memory. Weights come through a ring of cp.async of `stages` slots.
#include <algorithm>

#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/cuda_tf32.h"
#include "runtime/ops/cuda/families.h"

namespace niche::ops_cuda {
namespace {

constexpr std::string_view kBody = R"(
enum : int { ALL_TILES = (N + 15) / 16, M_TILES = (ALL_TILES + PARTS - 1) / PARTS, WARPS = M_TILES * GROUPS, THREADS = WARPS * 32, STEPS = (D + 7) / 8, DP = STEPS * 8,
             CHUNK = GROUPS * GROUP_TILES * 8, CHUNKS = K / CHUNK,
             X_PITCH = DP + 4, W1_PITCH = CHUNK % 16 == 8 ? CHUNK : CHUNK + 8,
             W2_PITCH = DP + 4,
             X_WORDS = M_TILES * 16 * X_PITCH, W1_WORDS = DP * W1_PITCH, STAGE = W1_WORDS + CHUNK * W2_PITCH,
             LEFT_PITCH = DP + 8, LEFT_WORDS = GROUPS > 1 ? (GROUPS - 1) * M_TILES * (16 * LEFT_PITCH + 16) : 0 };
static_assert(K % CHUNK == 0 && D % 4 == 0 && K % 4 == 0, "");
static_assert(X_PITCH % 8 == 4 && W1_PITCH % 16 == 8 && W2_PITCH % 8 == 4, "banks");
extern __shared__ __align__(16) unsigned char shared[];

NI float gelu(float v) { return 0.5f * v * (1.0f + erff(v * 0.7071067812f)); }
NI float over_row(float v) {  // the four lanes of a row
  v += __shfl_xor_sync(~0u, v, 1);
  return v + __shfl_xor_sync(~0u, v, 2);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) run(const __grid_constant__ Args a) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const int m = warp % M_TILES, group = warp / M_TILES;
  float *xs = (float*)shared, *ring = xs + X_WORDS;
  const u32 x_at = shared_address(xs), ring_at = shared_address(ring);
#pragma unroll 1
  for (i64 job = blockIdx.x; job < a.n[0] * PARTS; job += gridDim.x) {
    const i64 sample = job / PARTS;
    const int row0 = (int)(job % PARTS) * (M_TILES * 16), rows_here = N - row0 < M_TILES * 16 ? N - row0 : M_TILES * 16;
    const float* x = (const float*)a.p[0] + (sample * N + row0) * D;
    const float *w1 = (const float*)a.p[1] + sample * D * K, *w2 = (const float*)a.p[3] + sample * D * K;
    const auto load = [&](int chunk) {
      if (chunk < CHUNKS) {
        const u32 to = ring_at + chunk % STAGES * STAGE * 4;
        for (int i = threadIdx.x; i < DP * (CHUNK / 4); i += THREADS) {
          const int r = i / (CHUNK / 4), c = i % (CHUNK / 4) * 4;
          const bool in = r < D;
          copy16_async_or_zero(to + (r * W1_PITCH + c) * 4, in ? w1 + r * K + chunk * CHUNK + c : w1, in);
        }
        for (int i = threadIdx.x; i < CHUNK * (DP / 4); i += THREADS) {
          const int r = i / (DP / 4), c = i % (DP / 4) * 4;
          const bool in = c < D;
          copy16_async_or_zero(to + (W1_WORDS + r * W2_PITCH + c) * 4, in ? w2 + (chunk * CHUNK + r) * D + c : w2, in);
        }
      }
      copies_commit();
    };
    __syncthreads();  // the sample before is done with all of it
    for (int i = threadIdx.x; i < M_TILES * 16 * (DP / 4); i += THREADS) {
      const int r = i / (DP / 4), c = i % (DP / 4) * 4;
      const bool in = r < rows_here && c < D;
      copy16_async_or_zero(x_at + (r * X_PITCH + c) * 4, in ? x + r * D + c : x, in);
    }
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) load(s);
    float out[STEPS][4] = {}, squares[2] = {};
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      if constexpr (STAGES > 1) copies_wait<(STAGES > 1 ? STAGES - 2 : 0)>();
      __syncthreads();
      load(chunk + STAGES - 1);
      if constexpr (STAGES == 1) {
        copies_wait<0>();
        __syncthreads();
      }
      const float* v1 = ring + chunk % STAGES * STAGE + q * W1_PITCH + group * GROUP_TILES * 8 + g;
      const float* v2 = ring + chunk % STAGES * STAGE + W1_WORDS + (group * GROUP_TILES * 8 + q * 2) * W2_PITCH + g;
      const u32 rows = x_at + ((m * 16 + lane % 16) * X_PITCH + lane / 16 * 4) * 4;
      float h[GROUP_TILES][4] = {};
#pragma unroll 2
      for (int k = 0; k < STEPS; ++k) {
        u32 r[4], hi[4], lo[4];
        ldmatrix4(r, rows + k * 32);
#pragma unroll
        for (int e = 0; e < 4; ++e) split(__uint_as_float(r[e]), hi[e], lo[e]);
#pragma unroll
        for (int j = 0; j < GROUP_TILES; ++j) {
          u32 wh[2], wl[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) split_fast<ROUND>(v1[(k * 8 + e * 4) * W1_PITCH + j * 8], wh[e], wl[e]);
          float part[4] = {};
          mma_tf32(part, lo, wh[0], wh[1]);
          mma_tf32(part, hi, wl[0], wl[1]);
          mma_tf32(part, hi, wh[0], wh[1]);
#pragma unroll
          for (int e = 0; e < 4; ++e) h[j][e] += part[e];
        }
      }
      u32 hi[GROUP_TILES][4], lo[GROUP_TILES][4];
#pragma unroll
      for (int j = 0; j < GROUP_TILES; ++j) {
        const int column = chunk * CHUNK + (group * GROUP_TILES + j) * 8 + q * 2;
        const float2 b = *(const float2*)((const float*)a.p[2] + column);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float v = gelu(h[j][e] + (e % 2 ? b.y : b.x));
          squares[e / 2] = fmaf(v, v, squares[e / 2]);
          // Column 2q is the product's k = q, column 2q + 1 its q + 4.
          split(v, hi[j][e / 2 + e % 2 * 2], lo[j][e / 2 + e % 2 * 2]);
        }
      }
#pragma unroll
      for (int d = 0; d < STEPS; ++d) {
        u32 wh[GROUP_TILES][2], wl[GROUP_TILES][2];
        float part[4] = {};
#pragma unroll
        for (int j = 0; j < GROUP_TILES; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) split_fast<ROUND>(v2[(j * 8 + e) * W2_PITCH + d * 8], wh[j][e], wl[j][e]);
#pragma unroll
        for (int j = 0; j < GROUP_TILES; ++j) mma_tf32(part, lo[j], wh[j][0], wh[j][1]);
#pragma unroll
        for (int j = 0; j < GROUP_TILES; ++j) mma_tf32(part, hi[j], wl[j][0], wl[j][1]);
#pragma unroll
        for (int j = 0; j < GROUP_TILES; ++j) mma_tf32(part, hi[j], wh[j][0], wh[j][1]);
#pragma unroll
        for (int e = 0; e < 4; ++e) out[d][e] += part[e];
      }
    }
    squares[0] = over_row(squares[0]), squares[1] = over_row(squares[1]);
    if constexpr (GROUPS > 1) {
      float* left = (float*)shared + ((group - 1) * M_TILES + m) * (16 * LEFT_PITCH + 16);
      __syncthreads();  // X and the weights were read
      if (group > 0) {
#pragma unroll
        for (int d = 0; d < STEPS; ++d)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            *(float2*)(left + (h * 8 + g) * LEFT_PITCH + d * 8 + q * 2) = make_float2(out[d][h * 2], out[d][h * 2 + 1]);
        if (q == 0) left[16 * LEFT_PITCH + g] = squares[0], left[16 * LEFT_PITCH + 8 + g] = squares[1];
      }
      __syncthreads();
      if (group > 0) continue;
      left = (float*)shared + m * (16 * LEFT_PITCH + 16);
#pragma unroll 1
      for (int s = 1; s < GROUPS; ++s, left += M_TILES * (16 * LEFT_PITCH + 16)) {
#pragma unroll
        for (int d = 0; d < STEPS; ++d)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const float2 v = *(const float2*)(left + (h * 8 + g) * LEFT_PITCH + d * 8 + q * 2);
            out[d][h * 2] += v.x, out[d][h * 2 + 1] += v.y;
          }
        squares[0] += left[16 * LEFT_PITCH + g], squares[1] += left[16 * LEFT_PITCH + 8 + g];
      }
    }
    float second[2] = {};
    const float factor[2] = {rsqrtf(squares[0] * (1.0f / K) + EPS), rsqrtf(squares[1] * (1.0f / K) + EPS)};
#pragma unroll
    for (int d = 0; d < STEPS; ++d) {
      const int column = d * 8 + q * 2;
      const bool in = DP == D || column < D;
      const float2 b = in ? *(const float2*)((const float*)a.p[4] + column) : make_float2(0, 0);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        out[d][e] = fmaf(out[d][e], factor[e / 2], e % 2 ? b.y : b.x);
        second[e / 2] = fmaf(out[d][e], out[d][e], second[e / 2]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float scale = rsqrtf(over_row(second[h]) * (1.0f / D) + EPS);
      const int row = m * 16 + h * 8 + g;
      if (row >= rows_here) continue;
      float* y = (float*)a.p[5] + (sample * N + row0 + row) * D + q * 2;
#pragma unroll
      for (int d = 0; d < STEPS; ++d)
        if (DP == D || d * 8 + q * 2 < D)
          *(float2*)(y + d * 8) = make_float2(out[d][h * 2] * scale, out[d][h * 2 + 1] * scale);
    }
  }
}
)";

class PffnTf32Family : public CudaSpaceFamily {
 public:
  PffnTf32Family()
      : CudaSpaceFamily("pffn.tf32x3", "pffn",
                        {{"groups", {1, 2, 3, 4, 5}},
                         {"group_tiles", {2, 3, 1, 4, 5, 6}},
                         {"stages", {3, 2, 1, 4}},
                         {"parts", {1, 2, 3, 5, 10}},
                         {"persist", {2, 1, 3, 4}},
                         {"round", {0, 1}}}) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    const Sizes z(d, v);
    CudaKernelSource s;
    s.text = CudaSource()
                 .let("N", d.const_extents()[1])
                 .let("D", d.const_extents()[2])
                 .let("K", d.const_extents()[3])
                 .let("GROUPS", v["groups"])
                 .let("GROUP_TILES", v["group_tiles"])
                 .let("STAGES", v["stages"])
                 .let("PARTS", v["parts"])
                 .let("BLOCKS", v["persist"])
                 .let("ROUND", v["round"])
                 .let_float("EPS", d.attr("eps"))
                 .body(tf32_text())
                 .body(kBody)
                 .take();
    dispatch::CudaPhase p;
    p.symbol = "run";
    p.factors = {{0, 1}, {1, z.tiles * 16}};
    p.threads = static_cast<int>(z.threads);
    p.shared_bytes = static_cast<int>(z.shared);
    p.blocks_per_sm = v["persist"];
    s.plan.phases = {p};
    s.limits = any_problem(d, 16);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  struct Sizes {
    int64_t tiles, chunk, threads, shared;
    Sizes(const Definition& d, const View& v) {
      const int64_t width = (d.const_extents()[2] + 7) / 8 * 8;
      tiles = ((d.const_extents()[1] + 15) / 16 + v["parts"] - 1) / v["parts"];
      chunk = 8 * v["groups"] * v["group_tiles"];
      threads = 32 * tiles * v["groups"];
      const int64_t pitch = chunk % 16 == 8 ? chunk : chunk + 8;
      const int64_t words = tiles * 16 * (width + 4) + v["stages"] * (width * pitch + chunk * (width + 4));
      const int64_t left = (v["groups"] - 1) * tiles * (16 * (width + 8) + 16);
      shared = 4 * std::max(words, left);
    }
  };
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const int64_t n = d.const_extents()[1], width = d.const_extents()[2], hidden = d.const_extents()[3];
    if (element_bytes(d) != 4 || width % 4 != 0 || hidden % 4 != 0) return false;
    const Sizes z(d, v);
    if (hidden % z.chunk != 0 || v["stages"] > hidden / z.chunk + 1) return false;
    // Shares of whole tiles, none of them empty.
    const int64_t all = (n + 15) / 16;
    if (v["parts"] > all || (all + z.tiles - 1) / z.tiles != v["parts"]) return false;
    if (z.threads < 64 || z.threads > 1024) return false;
    const int64_t registers = 4 * ((width + 7) / 8) + 12 * v["group_tiles"] + 24;
    if (registers > std::min<int64_t>(255, 65536 / (z.threads * v["persist"]))) return false;
    return fits(t, z.threads, z.shared, v["persist"]);
  }
  std::vector<Settings> seed_points(const Definition&, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (int parts : {1, 5, 2, 3, 10})
      for (const auto [groups, tiles] : {std::pair{1, 2}, {1, 3}, {3, 1}, {5, 1}, {3, 5}, {2, 1}, {1, 1}})
        for (int stages : {3, 2, 1})
          s.push_back({{"parts", parts}, {"groups", groups}, {"group_tiles", tiles}, {"stages", stages}});
    return s;
  }
};

}  // namespace

void add_pffn_tf32_family(evolve::CudaFamilyRegistry& registry) {
  registry.add(std::make_shared<PffnTf32Family>());
}

}  // namespace niche::ops_cuda
