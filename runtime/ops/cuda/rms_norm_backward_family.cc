// rms_norm_backward: dx row by row; dw gathered in registers by a persistent grid, left as one partial a
// block in the workspace, and added up in order by a second kernel.
//
// Schedules: `threads` a row, `rows` groups a block, `flight` rows in flight a group, `persist` blocks a
// multiprocessor, `keep` pins packed values, `hold` keeps the weights in registers, `overlap` starts the
// second kernel while the first one ends. On an H200 (16384 x 1024): four rows in flight spilled (44 us),
// warp-per-row 32.1, a cooperative grid barrier instead of the second kernel 33.6 (docs/cuda.md).
#include <algorithm>

#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/families.h"

namespace niche::ops_cuda {
namespace {

constexpr std::string_view kBody = R"(
enum : int { STEP = VEC * THREADS, CHUNKS = (N + STEP - 1) / STEP };
typedef Vec<T, VEC> V;
NI bool inside(int c, int t) { return N % STEP == 0 || c * STEP + t * VEC < N; }

extern "C" __global__ void __launch_bounds__(THREADS * ROWS) rows(const __grid_constant__ Args a) {
  __shared__ float scratch[2][FLIGHT][THREADS * ROWS / 32 + 1];
  __shared__ float gather[ROWS > 1 ? N : 1];
  const T *dy = (const T*)a.p[0], *x = (const T*)a.p[1], *weight = (const T*)a.p[2];
  const float* rstd = (const float*)a.p[3];
  T* dx = (T*)a.p[4];
  const int t = threadIdx.x % THREADS, group = threadIdx.x / THREADS;
  const i64 m_end = a.n[0];
  float dw[CHUNKS][VEC] = {};
  V w[HOLD ? CHUNKS : 1];
  if constexpr (HOLD)
    if (m_end > 0)
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c)
        if (inside(c, t)) w[c] = ld_constant<T, VEC>(weight + c * STEP + t * VEC);
  int parity = 0;
  const i64 stride = (i64)gridDim.x * ROWS * FLIGHT;
  for (i64 first = (i64)blockIdx.x * ROWS * FLIGHT; first < m_end; first += stride) {
    V vy[FLIGHT][CHUNKS], vx[FLIGHT][CHUNKS];
    float r[FLIGHT], dot[FLIGHT];
#pragma unroll
    for (int q = 0; q < FLIGHT; ++q) {
      const i64 m = first + group + q * ROWS;
      const bool active = m < m_end;
      r[q] = active ? __ldg(rstd + m) : 0.0f;
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c) {
        const i64 at = m * N + c * STEP + t * VEC;
        if (active && inside(c, t)) {
          vy[q][c] = ld<LOAD, T, VEC>(dy + at);
          vx[q][c] = ld<LOAD, T, VEC>(x + at);
        } else {
#pragma unroll
          for (int i = 0; i < V::WORDS; ++i) vy[q][c].w[i] = vx[q][c].w[i] = 0;
        }
      }
    }
#pragma unroll
    for (int q = 0; q < FLIGHT; ++q) {
      float s = 0;
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c) {
        if (!inside(c, t)) continue;
        float fy[VEC], fx[VEC], fw[VEC];
        unpack(vy[q][c], fy);
        unpack(vx[q][c], fx);
        unpack(HOLD ? w[HOLD ? c : 0] : ld_constant<T, VEC>(weight + c * STEP + t * VEC), fw);
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
          const float product = fy[i] * fx[i];
          s = fmaf(product, fw[i], s);
          dw[c][i] = fmaf(product, r[q], dw[c][i]);
        }
      }
      dot[q] = s;
    }
#pragma unroll
    for (int q = 0; q < FLIGHT; ++q) {
#pragma unroll
      for (int d = 16; d > 0; d /= 2) dot[q] += __shfl_xor_sync(~0u, dot[q], d);
    }
    if constexpr (THREADS > 32) {
      constexpr int WARPS = THREADS / 32;
#pragma unroll
      for (int q = 0; q < FLIGHT; ++q)
        if (threadIdx.x % 32 == 0) scratch[parity][q][threadIdx.x / 32] = dot[q];
      __syncthreads();
#pragma unroll
      for (int q = 0; q < FLIGHT; ++q) {
        dot[q] = 0;
#pragma unroll
        for (int i = 0; i < WARPS; ++i) dot[q] += scratch[parity][q][group * WARPS + i];
      }
      parity ^= 1;
    }
    if constexpr (KEEP)
#pragma unroll
      for (int q = 0; q < FLIGHT; ++q)
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) keep(vy[q][c]), keep(vx[q][c]);
#pragma unroll
    for (int q = 0; q < FLIGHT; ++q) {
      const i64 m = first + group + q * ROWS;
      if (m >= m_end) continue;
      const float k = dot[q] * r[q] * r[q] * r[q] * (1.0f / N);
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c) {
        if (!inside(c, t)) continue;
        float fy[VEC], fx[VEC], fw[VEC];
        unpack(vy[q][c], fy);
        unpack(vx[q][c], fx);
        unpack(HOLD ? w[HOLD ? c : 0] : ld_constant<T, VEC>(weight + c * STEP + t * VEC), fw);
#pragma unroll
        for (int i = 0; i < VEC; ++i) fx[i] = fmaf(fy[i] * fw[i], r[q], -fx[i] * k);
        st<STORE>(dx + m * N + c * STEP + t * VEC, pack<T, VEC>(fx));
      }
    }
  }
  if (m_end == 0) return;
  float* partial = (float*)a.ws + (i64)blockIdx.x * N;
  if constexpr (ROWS > 1) {  // groups add up in order
    for (int g = 0; g < ROWS; ++g) {
      if (group == g)
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c)
          if (inside(c, t))
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
              float* at = gather + c * STEP + t * VEC + i;
              *at = g == 0 ? dw[c][i] : *at + dw[c][i];
            }
      __syncthreads();
    }
    for (int i = threadIdx.x; i < N; i += THREADS * ROWS) partial[i] = gather[i];
  } else {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
      if (inside(c, t))
#pragma unroll
        for (int i = 0; i < VEC; ++i) partial[c * STEP + t * VEC + i] = dw[c][i];
  }
  if constexpr (OVERLAP) dependents_launch();
}

// 32 columns a block; LANES threads a column take every LANES-th partial.
enum : int { LANES = 32 };
extern "C" __global__ void __launch_bounds__(32 * LANES) columns(const __grid_constant__ Args a) {
  __shared__ float part[LANES][33];
  if constexpr (OVERLAP) dependency_wait();
  if (a.n[0] == 0) return;
  const int col = blockIdx.x * 32 + threadIdx.x % 32, lane = threadIdx.x / 32;
  const float* ws = (const float*)a.ws;
  float s = 0;
  if (col < N)
#pragma unroll 4
    for (u32 b = lane; b < a.blocks[0]; b += LANES) s += __ldcg(ws + (i64)b * N + col);
  part[lane][threadIdx.x % 32] = s;
  __syncthreads();
  // Warp `lane` adds column `lane` of the block.
  s = part[threadIdx.x % 32][lane];
#pragma unroll
  for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(~0u, s, d);
  const int out = blockIdx.x * 32 + lane;
  if (threadIdx.x % 32 == 0 && out < N) ((T*)a.p[5])[out] = from_float<T>(s);
}
)";

class RmsNormBackwardFamily : public CudaSpaceFamily {
 public:
  RmsNormBackwardFamily()
      : CudaSpaceFamily("rms_norm_backward.persistent", "rms_norm_backward",
                        {{"vec", {8, 4, 2, 1}},
                         {"threads", {128, 256, 64, 32, 512}},
                         {"rows", {4, 1, 2, 8}},
                         {"flight", {2, 1, 3}},
                         {"persist", {2, 1, 3, 4, 8}},
                         {"keep", {1, 0}},
                         {"hold", {1, 0}},
                         {"overlap", {0, 1}},
                         {"load", {0, 1}},
                         {"store", {0, 1}}}) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    const int64_t n = d.const_extents()[1];
    CudaKernelSource s;
    s.text = CudaSource()
                 .type("T", element(d))
                 .let("N", n)
                 .let("VEC", v["vec"])
                 .let("THREADS", v["threads"])
                 .let("ROWS", v["rows"])
                 .let("FLIGHT", v["flight"])
                 .let("KEEP", v["keep"])
                 .let("HOLD", v["hold"])
                 .let("OVERLAP", v["overlap"])
                 .let("LOAD", v["load"])
                 .let("STORE", v["store"])
                 .body(kBody)
                 .take();
    dispatch::CudaPhase rows, columns;
    rows.symbol = "rows";
    rows.factors = {{0, int64_t{v["rows"]} * v["flight"]}};
    rows.threads = v["threads"] * v["rows"];
    rows.blocks_per_sm = v["persist"];
    columns.symbol = "columns";
    columns.factors = {{1, 32}};
    columns.threads = 1024;
    columns.overlap = v["overlap"] != 0;
    s.plan.phases = {rows, columns};
    s.plan.workspace_bytes = int64_t{4} * n * v["persist"] * t.sm_count;
    s.plan.sm_count = t.sm_count;
    s.properties.batch_invariant = false;  // dw depends on how the rows fall to blocks
    s.limits = any_problem(d, v["vec"] * element_bytes(d));
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const int64_t n = d.const_extents()[1];
    const int bytes = v["vec"] * element_bytes(d), block = v["threads"] * v["rows"];
    if (bytes > 16 || n % v["vec"] != 0 || block > 1024 || block < 64) return false;
    const int64_t step = int64_t{v["vec"]} * v["threads"], chunks = (n + step - 1) / step;
    if (v["threads"] > 32 && n * 2 <= step) return false;
    const int64_t words = (bytes + 3) / 4;
    // dw in fp32, both inputs packed, weights where they are held.
    const int64_t registers = chunks * (v["vec"] + v["flight"] * 2 * words + v["hold"] * words);
    const int budget = static_cast<int>(65536 / (int64_t{v["persist"]} * block));
    if (registers + 40 > std::min(budget, 255) || registers > 128) return false;
    if (v["rows"] > 1 && n * 4 > 40960) return false;
    if (v["persist"] * block > t.threads_per_sm || (v["overlap"] && t.capability < 90)) return false;
    return bytes == 16 || (v["load"] == 0 && v["store"] == 0);
  }
  std::vector<Settings> seed_points(const Definition& d, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (int vec : {16 / element_bytes(d), 4, 2, 1})
      for (int threads : {128, 256, 64, 32, 512})
        for (int rows : {4, 2, 1, 8})
          for (int overlap : {1, 0})
            s.push_back({{"vec", vec},
                         {"threads", threads},
                         {"rows", rows},
                         {"flight", rows >= 4 ? 2 : 1},
                         {"persist", rows == 8 ? 1 : 2},
                         {"overlap", overlap}});
    return s;
  }
};

}  // namespace

void add_rms_norm_backward_family(evolve::CudaFamilyRegistry& registry) {
  registry.add(std::make_shared<RmsNormBackwardFamily>());
}

}  // namespace niche::ops_cuda
