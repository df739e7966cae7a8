// optimized_fm in fp32 on tensor cores, 3xTF32 (cuda_tf32.h), in Gram order: G = X X', out = G Y. The small products have
// sums of their own.
//
// A block has `tile` x `tiles` columns of a sample, and works G out for itself: it is cheap beside the bytes of Y. A warp's
// fragment of X is both factors of G. G is symmetric: tiles above the diagonal are mirrored. Y comes in tiles of `tile`
// columns through a ring of cp.async of `stages` slots.
#include <algorithm>

#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/cuda_tf32.h"
#include "runtime/ops/cuda/families.h"

namespace niche::ops_cuda {
namespace {

constexpr std::string_view kBody = R"(
enum : int { THREADS = WARPS * 32, M = (N + 15) / 16, NP = M * 16, STEPS = (N + 7) / 8, KP = STEPS * 8, PART = TILE * TILES,
             PARTS = (K + PART - 1) / PART, DP = (D + 7) / 8 * 8, X_PITCH = DP + 4, G_PITCH = KP + 4,
             Y_PITCH = TILE % 16 == 8 ? TILE : TILE + 8, SHARES = 4, HALVES = WARPS / SHARES,
             COUNT = M * (M + 1), GRAMS = SHARES * COUNT * 128, X_WORDS = NP * X_PITCH,
             AREA = X_WORDS > GRAMS + 2 * NP * G_PITCH ? X_WORDS : GRAMS + 2 * NP * G_PITCH, Y_WORDS = KP * Y_PITCH };
static_assert(WARPS % SHARES == 0 && TILE % 16 == 0 && D % 4 == 0 && STAGES <= TILES, "");
static_assert(X_PITCH % 8 == 4 && G_PITCH % 8 == 4 && Y_PITCH % 16 == 8, "banks");
extern __shared__ __align__(16) unsigned char shared[];


extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) run(const __grid_constant__ Args a) {
  const i64 sample = blockIdx.x / PARTS;
  if (sample >= a.n[0]) return;
  const int column0 = (int)(blockIdx.x % PARTS) * PART;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const float *x = (const float*)a.p[0] + sample * N * D, *y = (const float*)a.p[1] + sample * N * K;
  float *xs = (float*)shared, *ring = xs + AREA;
  const u32 x_at = shared_address(xs), ring_at = shared_address(ring);
  for (int i = threadIdx.x; i < NP * (DP / 4); i += THREADS) {
    const int r = i / (DP / 4), c = i % (DP / 4) * 4;
    const bool in = r < N && c < D;
    copy16_async_or_zero(x_at + (r * X_PITCH + c) * 4, in ? x + r * D + c : x, in);
  }
  copies_commit();
  const auto load = [&](int tile) {
    const int first = column0 + tile * TILE;
    if (tile < TILES && first < K) {
      const u32 to = ring_at + tile % STAGES * Y_WORDS * 4;
      if constexpr (K % 4 == 0) {
        for (int i = threadIdx.x; i < KP * (TILE / 4); i += THREADS) {
          const int r = i / (TILE / 4), c = i % (TILE / 4) * 4;
          const bool in = r < N && first + c < K;
          copy16_async_or_zero(to + (r * Y_PITCH + c) * 4, in ? y + r * K + first + c : y, in);
        }
      } else {
        enum : int { EACH = K % 2 == 0 ? 2 : 1 };
        for (int i = threadIdx.x; i < KP * (TILE / EACH); i += THREADS) {
          const int r = i / (TILE / EACH), c = i % (TILE / EACH) * EACH;
          const bool in = r < N && first + c < K;
          if constexpr (EACH == 2) copy8_async_or_zero(to + (r * Y_PITCH + c) * 4, in ? y + r * K + first + c : y, in);
          else copy4_async_or_zero(to + (r * Y_PITCH + c) * 4, in ? y + r * K + first + c : y, in);
        }
      }
    }
    copies_commit();
  };
#pragma unroll
  for (int s = 0; s < STAGES; ++s) load(s);
  copies_wait<STAGES>();
  __syncthreads();

  // G: warps share d; those of a share have every HALVES-th tile. First the small products, then the large.
  const int share = warp % SHARES, half = warp / SHARES;
  float gram[M][M + M][4] = {};
  const u32 rows = x_at + (lane % 16 * X_PITCH + lane / 16 * 4) * 4;
#pragma unroll
  for (int large = 0; large < 2; ++large)
#pragma unroll 2
    for (int k = share; k < DP / 8; k += SHARES) {
      u32 hi[M][4], lo[M][4];
#pragma unroll
      for (int i = 0; i < M; ++i) {
        u32 r[4];
        ldmatrix4(r, rows + (i * 16 * X_PITCH + k * 8) * 4);
#pragma unroll
        for (int e = 0; e < 4; ++e) split(__uint_as_float(r[e]), hi[i][e], lo[i][e]);
      }
#pragma unroll
      for (int i = 0; i < M; ++i)
#pragma unroll
        for (int j = 0; j < 2 * i + 2; ++j) {
          if ((i * (i + 1) + j) % HALVES != half) continue;
          // Rows 8j to 8j + 7 of the fragment: elements j % 2 and j % 2 + 2 of tile j / 2.
          if (large) {
            mma_tf32(gram[i][j], hi[i], hi[j / 2][j % 2], hi[j / 2][j % 2 + 2]);
          } else {
            mma_tf32(gram[i][j], lo[i], hi[j / 2][j % 2], hi[j / 2][j % 2 + 2]);
            mma_tf32(gram[i][j], hi[i], lo[j / 2][j % 2], lo[j / 2][j % 2 + 2]);
          }
        }
    }
  __syncthreads();  // X was read: its place takes the shares of G
  float* shares = xs;
#pragma unroll
  for (int i = 0; i < M; ++i)
#pragma unroll
    for (int j = 0; j < 2 * i + 2; ++j) {
      if ((i * (i + 1) + j) % HALVES != half) continue;
      float* tile = shares + (share * COUNT + i * (i + 1) + j) * 128 + g * 8 + q * 2;
      *(float2*)tile = make_float2(gram[i][j][0], gram[i][j][1]);
      *(float2*)(tile + 64) = make_float2(gram[i][j][2], gram[i][j][3]);
    }
  __syncthreads();
  u32 *gh = (u32*)(shares + GRAMS), *gl = gh + NP * G_PITCH;
  for (int i = threadIdx.x; i < NP * KP; i += THREADS) {
    const int r = i / KP, c = i % KP, low = r > c ? r : c, high = r > c ? c : r;
    const float* at = shares + (low / 16 * (low / 16 + 1) + high / 8) * 128 + low % 16 * 8 + high % 8;
    float v = 0;
#pragma unroll
    for (int s = 0; s < SHARES; ++s) v += at[s * COUNT * 128];
    split(v, gh[r * G_PITCH + c], gl[r * G_PITCH + c]);
  }

  const u32 g_at = shared_address(gh) + (lane % 16 * G_PITCH + lane / 16 * 4) * 4;
  float* out = (float*)a.p[2] + sample * N * K;
#pragma unroll 1
  for (int tile = 0; tile < TILES; ++tile) {
    const int first = column0 + tile * TILE;
    if (first >= K) break;
    copies_wait<STAGES - 1>();
    __syncthreads();  // this tile (and G, the first time) is there
    const float* in = ring + tile % STAGES * Y_WORDS + q * Y_PITCH + g;
#pragma unroll 1
    for (int n = warp * 16; n < TILE && first + n < K; n += WARPS * 16) {
      float large[M][2][4] = {}, small[M][2][4] = {};
#pragma unroll
      for (int k = 0; k < STEPS; ++k) {
        u32 yh[2][2], yl[2][2];
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) split_fast<ROUND>(in[(k * 8 + e * 4) * Y_PITCH + n + j * 8], yh[j][e], yl[j][e]);
#pragma unroll
        for (int i = 0; i < M; ++i) {
          u32 hi[4], lo[4];
          ldmatrix4(hi, g_at + (i * 16 * G_PITCH + k * 8) * 4);
          ldmatrix4(lo, g_at + ((NP + i * 16) * G_PITCH + k * 8) * 4);
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            mma_tf32(small[i][j], lo, yh[j][0], yh[j][1]);
            mma_tf32(large[i][j], hi, yh[j][0], yh[j][1]);
            mma_tf32(small[i][j], hi, yl[j][0], yl[j][1]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < M; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = i * 16 + h * 8 + g;
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const int column = first + n + j * 8 + q * 2;
            if (row >= N || column >= K) continue;
            const float v0 = large[i][j][h * 2] + small[i][j][h * 2], v1 = large[i][j][h * 2 + 1] + small[i][j][h * 2 + 1];
            float* to = out + (i64)row * K + column;
            if constexpr (K % 2 == 0) {
              *(float2*)to = make_float2(v0, v1);
            } else {
              to[0] = v0;
              if (column + 1 < K) to[1] = v1;
            }
          }
        }
    }
    if (tile + STAGES < TILES) __syncthreads();  // all are done with it
    load(tile + STAGES);
  }
}
)";

class OptimizedFmTf32Family : public CudaSpaceFamily {
 public:
  OptimizedFmTf32Family()
      : CudaSpaceFamily("optimized_fm.tf32x3", "optimized_fm",
                        {{"warps", {8, 4}},
                         {"tile", {112, 128, 224, 64, 256, 32}},
                         {"tiles", {4, 1, 2, 7, 9, 18}},
                         {"stages", {2, 1, 3, 4}},
                         {"blocks", {2, 1, 3}},
                         {"round", {0, 1}}}) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    CudaKernelSource s;
    s.text = CudaSource()
                 .let("N", d.const_extents()[1])
                 .let("D", d.const_extents()[2])
                 .let("K", d.const_extents()[3])
                 .let("WARPS", v["warps"])
                 .let("TILE", v["tile"])
                 .let("TILES", v["tiles"])
                 .let("STAGES", v["stages"])
                 .let("BLOCKS", v["blocks"])
                 .let("ROUND", v["round"])
                 .body(tf32_text())
                 .body(kBody)
                 .take();
    dispatch::CudaPhase p;
    p.symbol = "run";
    p.factors = {{0, 1}, {3, int64_t{v["tile"]} * v["tiles"]}};
    p.threads = 32 * v["warps"];
    p.shared_bytes = static_cast<int>(shared_bytes(d, v));
    s.plan.phases = {p};
    s.limits = any_problem(d, 16);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  static int64_t row_tiles(const Definition& d) { return (d.const_extents()[1] + 15) / 16; }
  static int64_t shared_bytes(const Definition& d, const View& v) {
    const int64_t m = row_tiles(d), rows = 16 * m, depth = (d.const_extents()[1] + 7) / 8 * 8;
    const int64_t x = rows * ((d.const_extents()[2] + 7) / 8 * 8 + 4);
    const int64_t grams = 4 * m * (m + 1) * 128 + 2 * rows * (depth + 4);
    const int64_t pitch = v["tile"] % 16 == 8 ? v["tile"] : v["tile"] + 8;
    return 4 * (std::max(x, grams) + v["stages"] * depth * pitch);
  }
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const int64_t width = d.const_extents()[2], k = d.const_extents()[3], m = row_tiles(d);
    if (element_bytes(d) != 4 || m > 4 || width % 4 != 0 || v["stages"] > v["tiles"]) return false;
    // No block with nothing but columns that are not there, no tile of which most are not.
    if (int64_t{v["tile"]} * v["tiles"] >= k + int64_t{v["tile"]} || v["tile"] >= 2 * k) return false;
    const int threads = 32 * v["warps"];
    const int64_t registers = 24 * m + 54;
    if (registers > std::min(255, 65536 / (threads * v["blocks"]))) return false;
    return fits(t, threads, shared_bytes(d, v), v["blocks"]);
  }
  std::vector<Settings> seed_points(const Definition&, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (const auto [warps, tile, tiles, stages] : {std::tuple{8, 112, 4, 2},
                                                    {4, 128, 9, 4},
                                                    {8, 256, 2, 2},
                                                    {8, 64, 7, 3},
                                                    {8, 112, 1, 1},
                                                    {8, 64, 1, 1},
                                                    {8, 224, 1, 1},
                                                    {4, 32, 1, 1}})
      for (int blocks : {2, 1})
        s.push_back(
            {{"warps", warps}, {"tile", tile}, {"tiles", tiles}, {"stages", stages}, {"blocks", blocks}});
    return s;
  }
};

}  // namespace

void add_optimized_fm_tf32_family(evolve::CudaFamilyRegistry& registry) {
  registry.add(std::make_shared<OptimizedFmTf32Family>());
}

}  // namespace niche::ops_cuda
