// ikbo_linear_compression: out[b] = Wc Ec[b] + Wu Eu[user[b]], decomposed: the users' part once a user (fp32,
// in the workspace), then one product a candidate whose epilogue adds its user's part.
//
// Both are the same tiled product by mma.sync: tiles of `rows` x `columns` a block, steps of 32 of k through
// `stages` buffers filled by cp.async. Weight rows whose pitch is no multiple of 16 bytes (K = 866) are
// copied by 4-byte pieces, and the tail of k is zero-filled by the copies: no padded weights, no spare rows.
// The vendors' best form pads to a multiple of 8 and adds in place. Not run yet.
#include <algorithm>

#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/families.h"

namespace niche::ops_cuda {
namespace {

enum Axis { kM, kN, kKc, kKu, kB, kU };

constexpr std::string_view kBody = R"(
enum : int { THREADS = WARPS_M * WARPS_N * 32, STEP = 32, A_PITCH = STEP * 2 + 16, B_PITCH = COLUMNS * 2 + 16,
             A_BYTES = ROWS * A_PITCH, B_BYTES = STEP * B_PITCH, STAGE = A_BYTES + B_BYTES,
             TM = ROWS / WARPS_M / 16, TN = COLUMNS / WARPS_N / 16 };
extern __shared__ __align__(16) unsigned char shared[];

// One step of k of both operands: w[M, K] from row `row`, e[K, N] from column `column`.
template <int K> NI void load_step(u32 to, const T* w, const T* e, int row, int column, int k0) {
  if constexpr (K % 8 == 0) {
    for (int i = threadIdx.x; i < ROWS * (STEP / 8); i += THREADS) {
      const int r = i / (STEP / 8), c = i % (STEP / 8) * 8;
      const bool in = row + r < M && k0 + c < K;
      copy16_async_or_zero(to + r * A_PITCH + c * 2, in ? w + (i64)(row + r) * K + k0 + c : w, in);
    }
  } else {
    for (int i = threadIdx.x; i < ROWS * (STEP / 2); i += THREADS) {
      const int r = i / (STEP / 2), c = i % (STEP / 2) * 2;
      const bool in = row + r < M && k0 + c < K;
      copy4_async_or_zero(to + r * A_PITCH + c * 2, in ? w + (i64)(row + r) * K + k0 + c : w, in);
    }
  }
  for (int i = threadIdx.x; i < STEP * (COLUMNS / 8); i += THREADS) {
    const int r = i / (COLUMNS / 8), c = i % (COLUMNS / 8) * 8;
    const bool in = k0 + r < K && column + c < N;
    copy16_async_or_zero(to + A_BYTES + r * B_PITCH + c * 2, in ? e + (i64)(k0 + r) * N + column + c : e, in);
  }
  copies_commit();
}

template <int K> NI void multiply(float (&sum)[TM][2 * TN][4], const T* w, const T* e, int row, int column) {
  enum : int { STEPS = (K + STEP - 1) / STEP };
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u32 base = shared_address(shared);
  const u32 a_at = (warp / WARPS_N * (TM * 16) + lane % 16) * A_PITCH + lane / 16 * 16;
  const u32 b_at = A_BYTES + lane % 16 * B_PITCH + (warp % WARPS_N * (TN * 16) + lane / 16 * 8) * 2;
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < STEPS) load_step<K>(base + s * STAGE, w, e, row, column, s * STEP);
    else copies_commit();
  }
#pragma unroll 1
  for (int s = 0; s < STEPS; ++s) {
    copies_wait<STAGES - 2>();
    __syncthreads();
    if (s + STAGES - 1 < STEPS)
      load_step<K>(base + (s + STAGES - 1) % STAGES * STAGE, w, e, row, column, (s + STAGES - 1) * STEP);
    else copies_commit();
    const u32 from = base + s % STAGES * STAGE;
#pragma unroll
    for (int k = 0; k < STEP / 16; ++k) {
      u32 af[TM][4];
#pragma unroll
      for (int i = 0; i < TM; ++i) ldmatrix4(af[i], from + a_at + i * 16 * A_PITCH + k * 32);
#pragma unroll
      for (int j = 0; j < TN; ++j) {
        u32 bf[4];
        ldmatrix4_trans(bf, from + b_at + k * 16 * B_PITCH + j * 32);
#pragma unroll
        for (int i = 0; i < TM; ++i) {
          mma<T>(sum[i][2 * j], af[i], bf[0], bf[1]);
          mma<T>(sum[i][2 * j + 1], af[i], bf[2], bf[3]);
        }
      }
    }
  }
  copies_wait<0>();
  __syncthreads();  // before the buffers are filled again
}

// Calls f(row, column, first, second) for each pair of neighbours that this thread has.
template <class F> NI void each_pair(float (&sum)[TM][2 * TN][4], int row, int column, F f) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < 2 * TN; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = row + (warp / WARPS_N * TM + i) * 16 + h * 8 + lane / 4;
        const int c = column + (warp % WARPS_N * TN * 2 + j) * 8 + lane % 4 * 2;
        if (r < M && c < N) f(r, c, sum[i][j][2 * h], sum[i][j][2 * h + 1]);
      }
}

enum : int { TILES_M = (M + ROWS - 1) / ROWS, TILES_N = (N + COLUMNS - 1) / COLUMNS, TILES = TILES_M * TILES_N };

extern "C" __global__ void __launch_bounds__(THREADS) users(const __grid_constant__ Args a) {
  dependents_launch();
  for (i64 job = blockIdx.x; job < a.n[5] * TILES; job += gridDim.x) {
    const i64 user = job / TILES;
    const int row = (int)(job % TILES) / TILES_N * ROWS, column = (int)(job % TILES_N) * COLUMNS;
    float sum[TM][2 * TN][4] = {};
    multiply<KU>(sum, (const T*)a.p[1], (const T*)a.p[3] + user * KU * N, row, column);
    float* to = (float*)a.ws + user * M * N;
    each_pair(sum, row, column, [&](int r, int c, float x, float y) { *(float2*)(to + r * N + c) = make_float2(x, y); });
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) run(const __grid_constant__ Args a) {
  const i64 jobs = a.n[4] * TILES;
  bool waited = false;
  for (i64 job = blockIdx.x; job < jobs; job += gridDim.x) {
    const i64 candidate = job / TILES;
    const int row = (int)(job % TILES) / TILES_N * ROWS, column = (int)(job % TILES_N) * COLUMNS;
    float sum[TM][2 * TN][4] = {};
    multiply<KC>(sum, (const T*)a.p[0], (const T*)a.p[2] + candidate * KC * N, row, column);
    if (!waited) dependency_wait();  // the users' part is needed from here on
    waited = true;
    const float* from = (const float*)a.ws + ((const i64*)a.p[4])[candidate] * M * N;
    u32* to = (u32*)((T*)a.p[5] + candidate * M * N);
    each_pair(sum, row, column, [&](int r, int c, float x, float y) {
      const float2 u = *(const float2*)(from + r * N + c);
      to[(r * N + c) / 2] = Two<T>::pack(x + u.x, y + u.y);
    });
  }
  if (!waited) dependency_wait();
}
)";

class IkboFamily : public CudaSpaceFamily {
 public:
  IkboFamily()
      : CudaSpaceFamily("ikbo.mma", "ikbo_linear_compression",
                        {{"rows", {64, 128, 256}},
                         {"columns", {128, 64, 256}},
                         {"warps_m", {2, 1, 4}},
                         {"warps_n", {2, 4, 1}},
                         {"stages", {3, 2, 4, 5}},
                         {"persist", {0, 1, 2, 3, 4}}}) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    const auto extents = d.const_extents();
    const int64_t m = extents[kM], n = extents[kN];
    CudaKernelSource s;
    s.text = CudaSource()
                 .type("T", element(d))
                 .let("M", m)
                 .let("N", n)
                 .let("KC", extents[kKc])
                 .let("KU", extents[kKu])
                 .let("ROWS", v["rows"])
                 .let("COLUMNS", v["columns"])
                 .let("WARPS_M", v["warps_m"])
                 .let("WARPS_N", v["warps_n"])
                 .let("STAGES", v["stages"])
                 .body(kBody)
                 .take();
    dispatch::CudaPhase users;
    users.symbol = "users";
    users.factors = {{kU, 1}, {kM, v["rows"]}, {kN, v["columns"]}};
    users.threads = v["warps_m"] * v["warps_n"] * 32;
    users.shared_bytes = shared_bytes(v);
    users.blocks_per_sm = v["persist"];
    dispatch::CudaPhase run = users;
    run.symbol = "run";
    run.factors[0] = {kB, 1};
    run.overlap = t.capability >= 90;
    s.plan.phases = {users, run};
    const int64_t bytes = m * n * 4, most = std::clamp<int64_t>(kWorkspaceBytes / bytes, 1, 4096);
    s.plan.workspace_bytes = most * bytes;
    s.limits = any_problem(d, 16);
    s.limits.var[1].hi = most;
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  static constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;

  static int shared_bytes(const View& v) {
    return v["stages"] * (v["rows"] * 80 + 32 * (v["columns"] * 2 + 16));
  }
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const auto extents = d.const_extents();
    if (element_bytes(d) != 2 || extents[kN] % 8 != 0 || extents[kKc] % 2 != 0 || extents[kKu] % 2 != 0)
      return false;
    const int tm = v["rows"] / v["warps_m"], tn = v["columns"] / v["warps_n"];
    if (tm % 16 != 0 || tn % 16 != 0) return false;
    const int warps = v["warps_m"] * v["warps_n"], registers = tm * tn / 32 + tm / 4 + 60;
    if (registers > std::min(255, 65536 / (warps * 32))) return false;
    if (v["columns"] >= 2 * extents[kN] || v["rows"] >= 2 * extents[kM]) return false;
    return shared_bytes(v) <= t.shared_bytes_per_block &&
           v["persist"] * (shared_bytes(v) + 1024) <= t.shared_bytes_per_sm;
  }
  std::vector<Settings> seed_points(const Definition&, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (int rows : {128, 64, 256})
      for (int columns : {128, 64, 256})
        for (int warps_m : {2, 4, 1})
          for (int stages : {3, 4})
            s.push_back({{"rows", rows}, {"columns", columns}, {"warps_m", warps_m}, {"stages", stages}});
    return s;
  }
};

}  // namespace

void add_ikbo_family(evolve::CudaFamilyRegistry& registry) { registry.add(std::make_shared<IkboFamily>()); }

}  // namespace niche::ops_cuda
