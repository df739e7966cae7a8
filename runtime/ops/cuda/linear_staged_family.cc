// linear for a few dozen rows of x on tensor cores: weight and x go through shared memory.
//
// A block has `warps` x `tiles` x 16 rows of the weight and `columns` groups of 8 rows of x; a ring of `stages` pieces of
// 64 of k, filled by cp.async, keeps enough of the weight in flight for the memory. linear.mma, where each warp loads what
// it multiplies, is as fast to 16 rows and took 2.3 times cuBLAS's time at 33. `split` blocks share a tile's k (second
// kernel).
#include <algorithm>

#include "runtime/ops/cuda/families.h"
#include "runtime/ops/cuda/linear_text.h"

namespace niche::ops_cuda {
namespace {

constexpr int kStep = 64;               // of k
constexpr int kPitch = kStep * 2 + 16;  // bytes a row: rows that follow each other begin in other banks

constexpr std::string_view kBody = R"(
enum : int { THREADS = WARPS * 32, ROWS = WARPS * TILES * 16, COLS = COLUMNS * 8, CHUNKS = STEP / 8,
             STAGE = (ROWS + COLS) * PITCH, STEPS = (K + STEP - 1) / STEP, EACH = (STEPS + SPLIT - 1) / SPLIT };
extern __shared__ __align__(16) unsigned char shared[];

extern "C" __global__ void __launch_bounds__(THREADS) run(const __grid_constant__ Args a) {
  const T *x = (const T*)a.p[0], *weight = (const T*)a.p[1], *bias = (const T*)a.p[2];
  T* y = (T*)a.p[3];
  const i64 m = a.n[0];
  if constexpr (SPLIT > 1) dependents_launch();
  if (m == 0) return;
  const i64 groups = (m + COLS - 1) / COLS, jobs = groups * ((N + ROWS - 1) / ROWS) * SPLIT;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const u32 ring = shared_address(shared);
  for (i64 job = blockIdx.x; job < jobs; job += gridDim.x) {
    // Groups of x that share a tile of the weight run side by side.
    const i64 token = job % groups * COLS;
    const int part = (int)(job / groups % SPLIT), row = (int)(job / (groups * SPLIT)) * ROWS;
    const int from = part * EACH, to = from + EACH < STEPS ? from + EACH : STEPS;
    const auto load = [&](int step) {
      const u32 at = ring + (step - from) % STAGES * STAGE;
#pragma unroll 4
      for (int i = threadIdx.x; i < (ROWS + COLS) * CHUNKS; i += THREADS) {
        const int r = i / CHUNKS, c = i % CHUNKS, k = step * STEP + c * 8;
        const bool of_weight = r < ROWS;
        const i64 line = of_weight ? row + r : token + r - ROWS;
        const bool in = k < K && line < (of_weight ? (i64)N : m);
        const T* base = of_weight ? weight : x;
        copy16_async_or_zero(at + r * PITCH + c * 16, in ? base + line * K + k : base, in);
      }
    };
    float sum[TILES][COLUMNS][4] = {};
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
      if (from + s < to) load(from + s);
      copies_commit();
    }
#pragma unroll 1
    for (int step = from; step < to; ++step) {
      copies_wait<STAGES - 2>();
      __syncthreads();  // this piece is there for all, and all are done with the one before
      if (step + STAGES - 1 < to) load(step + STAGES - 1);
      copies_commit();
      const u32 wt = ring + (step - from) % STAGES * STAGE + warp * TILES * 16 * PITCH;
      const u32 xt = ring + (step - from) % STAGES * STAGE + ROWS * PITCH;
#pragma unroll
      for (int k = 0; k < STEP / 32; ++k) {
        u32 w[TILES][2][4];
#pragma unroll
        for (int i = 0; i < TILES; ++i)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            ldmatrix4(w[i][h], wt + (i * 16 + lane % 16) * PITCH + (k * 4 + h * 2 + lane / 16) * 16);
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
          u32 v[4];
          ldmatrix4(v, xt + (c * 8 + lane % 8) * PITCH + (k * 4 + lane / 8) * 16);
#pragma unroll
          for (int i = 0; i < TILES; ++i) {
            mma<T>(sum[i][c], w[i][0], v[0], v[1]);
            mma<T>(sum[i][c], w[i][1], v[2], v[3]);
          }
        }
      }
    }
    copies_wait<0>();
    __syncthreads();  // the ring becomes the answer: [row of x][row of the weight]
    float* answer = (float*)shared;
#pragma unroll
    for (int i = 0; i < TILES; ++i)
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          answer[(c * 8 + q * 2 + e % 2) * ROWS + (warp * TILES + i) * 16 + e / 2 * 8 + g] = sum[i][c][e];
    __syncthreads();
    for (int o = threadIdx.x; o < COLS * ROWS; o += THREADS) {
      const int r = row + o % ROWS;
      const i64 i = token + o / ROWS;
      if (r >= N || i >= m) continue;
      if constexpr (SPLIT > 1) ((float*)a.ws)[(part * COLS + i) * N + r] = answer[o];
      else y[i * N + r] = from_float<T>(finish(answer[o], bias, r));
    }
    __syncthreads();
  }
}
)";

class LinearStagedFamily : public CudaSpaceFamily {
 public:
  LinearStagedFamily()
      : CudaSpaceFamily("linear.staged", "linear",
                        {{"warps", {4, 8, 2}},
                         {"tiles", {1, 2}},
                         {"columns", {5, 1, 2, 3, 4, 8}},
                         {"stages", {4, 3, 6, 8}},
                         {"split", {1, 2, 4, 8}}}) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    CudaKernelSource s;
    CudaSource text;
    let_epilogue(text, d);
    s.text = text.type("T", element(d))
                 .let("N", d.const_extents()[1])
                 .let("K", d.const_extents()[2])
                 .let("STEP", kStep)
                 .let("PITCH", kPitch)
                 .let("WARPS", v["warps"])
                 .let("TILES", v["tiles"])
                 .let("COLUMNS", v["columns"])
                 .let("STAGES", v["stages"])
                 .let("SPLIT", v["split"])
                 .body(linear_epilogue())
                 .body(kBody)
                 .body(linear_add_up())
                 .take();
    plan_tiles(&s, d, t, {v["columns"] * 8, rows(v), v["split"], v["warps"] * 32, shared_bytes(v)});
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  static int rows(const View& v) { return v["warps"] * v["tiles"] * 16; }
  static int shared_bytes(const View& v) {
    const int columns = v["columns"] * 8;
    return std::max(v["stages"] * (rows(v) + columns) * kPitch, columns * rows(v) * 4);
  }
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const int64_t k = d.const_extents()[2];
    if (element_bytes(d) != 2 || k % 8 != 0 || k % v["split"] != 0) return false;
    if (k / kStep < 2 * int64_t{v["split"]}) return false;
    return shared_bytes(v) <= t.shared_bytes_per_block;
  }
  std::vector<Settings> seed_points(const Definition&, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (int columns : {5, 2, 1, 8, 3, 4})
      for (int stages : {4, 6, 3})
        for (int split : {1, 2, 4})
          for (int warps : {4, 8, 2})
            s.push_back({{"columns", columns}, {"stages", stages}, {"split", split}, {"warps", warps}});
    return s;
  }
};

}  // namespace

void add_linear_staged_family(evolve::CudaFamilyRegistry& registry) {
  registry.add(std::make_shared<LinearStagedFamily>());
}

}  // namespace niche::ops_cuda
