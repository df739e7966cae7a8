// linear for few rows of x on tensor cores: the weight is the left operand (16 of its rows), x the right one
// (8 of its rows), so that an 8-row batch fills the instruction and no shared memory is needed to load.
//
// A lane reads 16 contiguous bytes of its weight rows and of its row of x and takes them as the fragments of
// two instructions: that permutes k, equally on both sides, and a sum does not mind. `tiles` 16-row tiles and
// `columns` 8-row groups of x a warp; `warps` warps share a tile's k (added up in shared memory) and `split`
// blocks do (through the workspace and a second kernel); `unroll` steps of 32 in flight. Not run yet.
#include <algorithm>

#include "runtime/ops/cuda/families.h"
#include "runtime/ops/cuda/linear_text.h"

namespace niche::ops_cuda {
namespace {

constexpr std::string_view kBody = R"(
enum : int { THREADS = WARPS * 32, TILE = TILES * 16, COLS = COLUMNS * 8, STEPS = K / 32, PARTS = SPLIT * WARPS,
             EACH = (STEPS + PARTS - 1) / PARTS };
extern __shared__ __align__(16) unsigned char shared[];

NI uint4 ld16(const T* p) { return *(const uint4*)p; }

extern "C" __global__ void __launch_bounds__(THREADS) run(const __grid_constant__ Args a) {
  const T *x = (const T*)a.p[0], *weight = (const T*)a.p[1], *bias = (const T*)a.p[2];
  T* y = (T*)a.p[3];
  const i64 m = a.n[0];
  if constexpr (SPLIT > 1) dependents_launch();
  if (m == 0) return;
  const i64 groups = (m + COLS - 1) / COLS, jobs = groups * ((N + TILE - 1) / TILE) * SPLIT;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  for (i64 job = blockIdx.x; job < jobs; job += gridDim.x) {
    const i64 token = job % groups * COLS;
    const int part = (int)(job / groups % SPLIT), row = (int)(job / (groups * SPLIT)) * TILE;
    float sum[TILES][COLUMNS][4] = {};
    const T *w[TILES][2], *t[COLUMNS];
#pragma unroll
    for (int i = 0; i < TILES; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = row + i * 16 + h * 8 + g;
        w[i][h] = weight + (i64)(r < N ? r : N - 1) * K + q * 8;
      }
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const i64 r = token + c * 8 + g;
      t[c] = x + (r < m ? r : m - 1) * K + q * 8;
    }
    const int from = (part * WARPS + warp) * EACH, to = from + EACH < STEPS ? from + EACH : STEPS;
    for (int step = from; step < to; step += UNROLL) {
      uint4 wv[UNROLL][TILES][2], xv[UNROLL][COLUMNS];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        const bool in = step + u < to;
#pragma unroll
        for (int i = 0; i < TILES; ++i)
#pragma unroll
          for (int h = 0; h < 2; ++h) wv[u][i][h] = in ? ld16(w[i][h] + (step + u) * 32) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) xv[u][c] = in ? ld16(t[c] + (step + u) * 32) : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int u = 0; u < UNROLL; ++u)
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
          const u32 first[4] = {wv[u][i][0].x, wv[u][i][1].x, wv[u][i][0].y, wv[u][i][1].y};
          const u32 second[4] = {wv[u][i][0].z, wv[u][i][1].z, wv[u][i][0].w, wv[u][i][1].w};
#pragma unroll
          for (int c = 0; c < COLUMNS; ++c) {
            mma<T>(sum[i][c], first, xv[u][c].x, xv[u][c].y);
            mma<T>(sum[i][c], second, xv[u][c].z, xv[u][c].w);
          }
        }
    }
    // [warp][row of x][row of the weight]
    float* parts = (float*)shared;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILES; ++i)
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          parts[(warp * COLS + c * 8 + q * 2 + e % 2) * TILE + i * 16 + e / 2 * 8 + g] = sum[i][c][e];
    __syncthreads();
    for (int o = threadIdx.x; o < COLS * TILE; o += THREADS) {
      float v = 0;
#pragma unroll
      for (int p = 0; p < WARPS; ++p) v += parts[p * COLS * TILE + o];
      const int r = row + o % TILE;
      const i64 i = token + o / TILE;
      if (r >= N || i >= m) continue;
      if constexpr (SPLIT > 1) ((float*)a.ws)[(part * COLS + i) * N + r] = v;
      else y[i * N + r] = from_float<T>(finish(v, bias, r));
    }
  }
}
)";

class LinearMmaFamily : public CudaSpaceFamily {
 public:
  LinearMmaFamily()
      : CudaSpaceFamily("linear.mma", "linear",
                        {{"warps", {8, 4, 16, 2, 1}},
                         {"tiles", {1, 2}},
                         {"columns", {1, 2, 4, 8}},
                         {"unroll", {4, 2, 1, 8}},
                         {"split", {1, 2, 4, 8}}}) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    CudaKernelSource s;
    CudaSource text;
    let_epilogue(text, d);
    s.text = text.type("T", element(d))
                 .let("N", d.const_extents()[1])
                 .let("K", d.const_extents()[2])
                 .let("WARPS", v["warps"])
                 .let("TILES", v["tiles"])
                 .let("COLUMNS", v["columns"])
                 .let("UNROLL", v["unroll"])
                 .let("SPLIT", v["split"])
                 .body(linear_epilogue())
                 .body(kBody)
                 .body(linear_add_up())
                 .take();
    plan_tiles(&s, d, t, {v["columns"] * 8, v["tiles"] * 16, v["split"], v["warps"] * 32, shared_bytes(v)});
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  static int shared_bytes(const View& v) { return v["warps"] * v["columns"] * 8 * v["tiles"] * 16 * 4; }
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const int64_t k = d.const_extents()[2];
    if (element_bytes(d) != 2 || k % 32 != 0 || k % v["split"] != 0) return false;
    if (k / 32 < int64_t{v["split"]} * v["warps"]) return false;
    // Words in flight and sums a lane.
    const int registers = v["unroll"] * (v["tiles"] * 8 + v["columns"] * 4) + v["tiles"] * v["columns"] * 4;
    return registers <= 150 && shared_bytes(v) <= t.shared_bytes_per_block &&
           (registers + 50) * v["warps"] * 32 <= 65536;
  }
  std::vector<Settings> seed_points(const Definition&, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (int columns : {1, 2, 4, 8})
      for (int warps : {8, 4, 2, 1})
        for (int split : {1, 2, 4})
          for (int unroll : {4, 2})
            s.push_back({{"columns", columns}, {"warps", warps}, {"split", split}, {"unroll", unroll}});
    return s;
  }
};

}  // namespace

void add_linear_mma_family(evolve::CudaFamilyRegistry& registry) {
  registry.add(std::make_shared<LinearMmaFamily>());
}

}  // namespace niche::ops_cuda
