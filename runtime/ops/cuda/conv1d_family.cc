// conv1d as an implicit GEMM: Y[co, l] = sum over taps and ci of W[co, ci, tap] X[ci, l + tap - padding],
// with mma.sync, all weights resident in shared memory, and X transposed to [l][ci] so that a tap is a shift
// by one row: no column matrix.
//
// `mode` 0: any length and padding; X goes through registers (`lookahead`: the next piece is loaded while
// this one is computed), results straight to memory. `mode` 1 (sm_90 and later, whole samples, "same"
// padding, L a multiple of 8): X arrives by bulk copies in `slots` raw slots, is transposed, and the result
// leaves from the slot that its input came in. A slot's reload waits until its store has been read, one
// sample later: freeing slots early and staging elsewhere lost on an H200, and two slots instead of four cost
// 91 us against 54. `mt` x `nt` tiles of 16 x 8 a warp, `warps_n` warps along l.
#include <algorithm>
#include <array>

#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/families.h"

namespace niche::ops_cuda {
namespace {

constexpr std::string_view kBody = R"(
enum : int { THREADS = WARPS_M * WARPS_N * 32, CIP = (CI + 15) / 16 * 16, COP = WARPS_M * MT * 16 };
enum : int { LT = WARPS_N * NT * 8, ROWS = LT + K + 7, PITCH = CIP * 2 + 16, PAIRS = CIP / 2 };
enum : int { W_BYTES = K * COP * PITCH, T_BYTES = ROWS * PITCH, SLOT = (CI > CO ? +CI : +CO) * LT * 2 };
extern __shared__ __align__(128) unsigned char shared[];

// W[co][ci][tap] -> [tap][co][ci], zero beyond CI and CO.
NI void load_weights(unsigned char* w, const u16* from) {
  if constexpr (CIP != CI || COP != CO) {
    for (int i = threadIdx.x; i < W_BYTES / 16; i += THREADS) ((uint4*)w)[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
  }
  constexpr int ALL = CO * CI * K;
#pragma unroll 4
  for (int i = threadIdx.x; i < ALL / 8; i += THREADS) {
    const uint4 q = __ldg((const uint4*)from + i);
    const u32 word[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int at = i * 8 + j, co = at / (CI * K), rest = at - co * (CI * K), ci = rest / K, tap = rest - ci * K;
      *(u16*)(w + (tap * COP + co) * PITCH + ci * 2) = (u16)(j % 2 ? word[j / 2] >> 16 : word[j / 2]);
    }
  }
  for (int at = ALL / 8 * 8 + threadIdx.x; at < ALL; at += THREADS) {
    const int co = at / (CI * K), rest = at - co * (CI * K), ci = rest / K, tap = rest - ci * K;
    *(u16*)(w + (tap * COP + co) * PITCH + ci * 2) = from[at];
  }
}

// Two rows of eight elements, one word an l.
NI void put_pairs(unsigned char* t, int row, int pair, const uint4& a, const uint4& b) {
  const u32 x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int r = row + 2 * j;
    u32* at = (u32*)(t + r * PITCH) + pair;
    if (MODE || (r >= 0 && r < ROWS)) *at = __byte_perm(x[j], y[j], 0x5410);
    if (MODE || (r + 1 >= 0 && r + 1 < ROWS)) at[PITCH / 4] = __byte_perm(x[j], y[j], 0x7632);
  }
}

NI void multiply(float (&acc)[MT][NT][4], const unsigned char* w, const unsigned char* t, int wm, int wn) {
  const int lane = threadIdx.x % 32;
  const u32 a_at = shared_address(w) + (wm * MT * 16 + (lane & 15)) * PITCH + (lane >> 4) * 16;
  const u32 b_at = shared_address(t) + (wn * NT * 8 + (lane & 7) + ((lane >> 4) << 3)) * PITCH + ((lane >> 3) & 1) * 16;
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int n = 0; n < NT; ++n) acc[m][n][0] = acc[m][n][1] = acc[m][n][2] = acc[m][n][3] = 0.0f;
#pragma unroll
  for (int tap = 0; tap < K; ++tap) {
#pragma unroll UNROLL
    for (int k = 0; k < CIP / 16; ++k) {
      u32 a[MT][4], b[(NT + 1) / 2][4];
#pragma unroll
      for (int m = 0; m < MT; ++m) ldmatrix4(a[m], a_at + (tap * COP + m * 16) * PITCH + k * 32);
#pragma unroll
      for (int n = 0; n < (NT + 1) / 2; ++n) ldmatrix4(b[n], b_at + (tap + n * 16) * PITCH + k * 32);
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int m = 0; m < MT; ++m) mma<T>(acc[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, PERSIST) run(const __grid_constant__ Args a) {
  const i64 batch = a.n[0];
  const int L = (int)a.n[1], Lo = (int)a.n[5];
  if (batch == 0 || Lo <= 0) return;
  unsigned char *w = shared, *t = shared + W_BYTES;
  float* bias = (float*)(t + T_BYTES);
  const u16* x = (const u16*)a.p[0];
  u16* y = (u16*)a.p[3];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, wm = warp % WARPS_M, wn = warp / WARPS_M;
  const int g = lane / 4, q2 = lane % 4 * 2;
  float acc[MT][NT][4];

  if constexpr (MODE == 1) {
#if __CUDA_ARCH__ >= 900
    unsigned char* raw = (unsigned char*)bias + (COP * 4 + 127) / 128 * 128;
    const u32 bars = shared_address(raw + SLOTS * SLOT);
    const u32 in_bytes = CI * L * 2, out_bytes = CO * L * 2;
    if (threadIdx.x == 0) {
      for (int s = 0; s < SLOTS; ++s) barrier_init(bars + 8 * s, 1);
      fence_async();
      for (int s = 0; s < SLOTS; ++s) {
        const i64 b = blockIdx.x + (i64)s * gridDim.x;
        if (b < batch) {
          barrier_expect(bars + 8 * s, in_bytes);
          bulk_load(shared_address(raw + s * SLOT), x + b * CI * L, in_bytes, bars + 8 * s);
        }
      }
    }
    for (int i = threadIdx.x; i < T_BYTES / 16; i += THREADS) ((uint4*)t)[i] = make_uint4(0, 0, 0, 0);
    load_weights(w, (const u16*)a.p[1]);
    for (int i = threadIdx.x; i < COP; i += THREADS) bias[i] = HAS_BIAS && i < CO ? to_float(((const T*)a.p[2])[i]) : 0.0f;
    __syncthreads();
    int slot = 0, parity = 0, before = -1;
    const int chunks = L / 8, work = PAIRS * chunks;
    for (i64 b = blockIdx.x; b < batch; b += gridDim.x) {
      unsigned char* in = raw + slot * SLOT;
      barrier_wait(bars + 8 * slot, parity);
      for (int i = threadIdx.x; i < work; i += THREADS) {
        const int pair = i % PAIRS, chunk = i / PAIRS;
        const uint4 zero = make_uint4(0, 0, 0, 0);
        const unsigned char* from = in + (pair * 2 * L + chunk * 8) * 2;
        const uint4 r0 = CI == CIP || pair * 2 < CI ? *(const uint4*)from : zero;
        const uint4 r1 = CI == CIP || pair * 2 + 1 < CI ? *(const uint4*)(from + L * 2) : zero;
        put_pairs(t, chunk * 8 + PAD, pair, r0, r1);
      }
      __syncthreads();
      if (threadIdx.x == 0 && before >= 0) {
        const i64 next = b + (i64)(SLOTS - 1) * gridDim.x;
        bulk_wait_read<0>();
        if (next < batch) {
          barrier_expect(bars + 8 * before, in_bytes);
          bulk_load(shared_address(raw + before * SLOT), x + next * CI * L, in_bytes, bars + 8 * before);
        }
      }
      multiply(acc, w, t, wm, wn);
#pragma unroll
      for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int co = (wm * MT + m) * 16 + g + h * 8;
          if (COP != CO && co >= CO) continue;
          const float add = bias[co];
#pragma unroll
          for (int n = 0; n < NT; ++n) {
            const int l = (wn * NT + n) * 8 + q2;
            if (l < L) *(u32*)(in + (co * L + l) * 2) = Two<T>::pack(acc[m][n][h * 2] + add, acc[m][n][h * 2 + 1] + add);
          }
        }
      fence_async();
      __syncthreads();
      if (threadIdx.x == 0) {
        bulk_store(y + b * CO * L, shared_address(in), out_bytes);
        bulk_commit();
      }
      before = slot;
      if (++slot == SLOTS) slot = 0, parity ^= 1;
    }
    if (threadIdx.x == 0) bulk_wait_all();
#endif
  } else {
    constexpr int LEAD = (PAD + 7) / 8 * 8, CHUNKS = (ROWS - PAD + LEAD + 7) / 8, WORK = PAIRS * CHUNKS;
    constexpr int EACH = (WORK + THREADS - 1) / THREADS;
    const int tiles = (Lo + LT - 1) / LT;
    const i64 tasks = batch * tiles;
    const bool aligned = L % 8 == 0;
    uint4 r0[LOOKAHEAD ? EACH : 1], r1[LOOKAHEAD ? EACH : 1];
    // Chunk `i` of a piece: eight l of two rows of X.
    const auto fetch = [&](i64 task, int i, uint4& p, uint4& q) {
      p = q = make_uint4(0, 0, 0, 0);
      const i64 b = task / tiles;
      const int l = (int)(task - b * tiles) * LT - LEAD + i / PAIRS * 8, ci = i % PAIRS * 2;
      if (task >= tasks || i >= WORK || ci >= CI) return;
      const u16* from = x + (b * CI + ci) * L + l;
      if (aligned) {
        if (l < 0 || l >= L) return;
        p = *(const uint4*)from;
        if (ci + 1 < CI) q = *(const uint4*)(from + L);
      } else {
        u32 e[4] = {}, f[4] = {};
#pragma unroll
        for (int j = 0; j < 8; ++j)
          if (l + j >= 0 && l + j < L) {
            e[j / 2] |= (u32)from[j] << (j % 2 * 16);
            if (ci + 1 < CI) f[j / 2] |= (u32)from[L + j] << (j % 2 * 16);
          }
        p = make_uint4(e[0], e[1], e[2], e[3]), q = make_uint4(f[0], f[1], f[2], f[3]);
      }
    };
    if constexpr (LOOKAHEAD)
#pragma unroll
      for (int e = 0; e < EACH; ++e) fetch(blockIdx.x, threadIdx.x + e * THREADS, r0[e], r1[e]);
    load_weights(w, (const u16*)a.p[1]);
    for (int i = threadIdx.x; i < COP; i += THREADS) bias[i] = HAS_BIAS && i < CO ? to_float(((const T*)a.p[2])[i]) : 0.0f;
    for (i64 task = blockIdx.x; task < tasks; task += gridDim.x) {
      if constexpr (LOOKAHEAD) {
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
          const int i = threadIdx.x + e * THREADS;
          if (i < WORK) put_pairs(t, i / PAIRS * 8 - LEAD + PAD, i % PAIRS, r0[e], r1[e]);
        }
      } else {
#pragma unroll 2
        for (int i = threadIdx.x; i < WORK; i += THREADS) {
          fetch(task, i, r0[0], r1[0]);
          put_pairs(t, i / PAIRS * 8 - LEAD + PAD, i % PAIRS, r0[0], r1[0]);
        }
      }
      __syncthreads();
      if constexpr (LOOKAHEAD)
#pragma unroll
        for (int e = 0; e < EACH; ++e) fetch(task + gridDim.x, threadIdx.x + e * THREADS, r0[e], r1[e]);
      multiply(acc, w, t, wm, wn);
      const i64 b = task / tiles;
      const int l0 = (int)(task - b * tiles) * LT;
#pragma unroll
      for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int co = (wm * MT + m) * 16 + g + h * 8;
          if (COP != CO && co >= CO) continue;
          const float add = bias[co];
          u16* row = y + (b * CO + co) * Lo;
#pragma unroll
          for (int n = 0; n < NT; ++n) {
            const int l = l0 + (wn * NT + n) * 8 + q2;
            const u32 v = Two<T>::pack(acc[m][n][h * 2] + add, acc[m][n][h * 2 + 1] + add);
            if (Lo % 2 == 0) {
              if (l < Lo) *(u32*)(row + l) = v;
            } else {
              if (l < Lo) row[l] = (u16)v;
              if (l + 1 < Lo) row[l + 1] = (u16)(v >> 16);
            }
          }
        }
      __syncthreads();
    }
  }
}
)";

struct Sizes {
  int64_t threads, tile, shared;
};

class Conv1dFamily : public CudaSpaceFamily {
 public:
  Conv1dFamily()
      : CudaSpaceFamily("conv1d.implicit_gemm", "conv1d",
                        {{"mode", {0, 1}},
                         {"mt", {3, 1, 2, 4, 6}},
                         {"nt", {5, 2, 3, 4, 6, 7, 8, 10, 13}},
                         {"warps_n", {5, 1, 2, 3, 4, 6, 7, 8}},
                         {"slots", {1, 2, 3, 4}},
                         {"persist", {1, 2, 3}},
                         {"lookahead", {0, 1}},
                         {"unroll", {2, 1, 6}}}) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    const auto c = d.const_extents();
    const Sizes z = sizes(d, v);
    CudaKernelSource s;
    s.text = CudaSource()
                 .type("T", element(d))
                 .let("CI", c[2])
                 .let("CO", c[3])
                 .let("K", c[4])
                 .let("PAD", static_cast<int64_t>(d.attr("padding")))
                 .let("HAS_BIAS", d.attr("has_bias") != 0)
                 .let("MODE", v["mode"])
                 .let("MT", v["mt"])
                 .let("NT", v["nt"])
                 .let("WARPS_M", warps_m(d, v))
                 .let("WARPS_N", v["warps_n"])
                 .let("SLOTS", v["slots"])
                 .let("PERSIST", v["persist"])
                 .let("LOOKAHEAD", v["lookahead"])
                 .let("UNROLL", v["unroll"])
                 .body(kBody)
                 .take();
    dispatch::CudaPhase p;
    p.symbol = "run";
    p.factors = {{0, 1}, {5, z.tile}};
    p.threads = static_cast<int>(z.threads);
    p.shared_bytes = static_cast<int>(z.shared);
    p.blocks_per_sm = v["persist"];
    s.plan.phases = {p};
    s.limits = any_problem(d, 16);
    if (v["mode"] == 1) s.limits.var[1] = {8, z.tile, 8};
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  static int64_t warps_m(const Definition& d, const View& v) {
    return (d.const_extents()[3] + 16 * v["mt"] - 1) / (16 * v["mt"]);
  }
  static Sizes sizes(const Definition& d, const View& v) {
    const auto c = d.const_extents();
    const int64_t cip = (c[2] + 15) / 16 * 16, cop = warps_m(d, v) * v["mt"] * 16, pitch = cip * 2 + 16;
    Sizes z{};
    z.threads = warps_m(d, v) * v["warps_n"] * 32;
    z.tile = int64_t{v["warps_n"]} * v["nt"] * 8;
    z.shared = c[4] * cop * pitch + (z.tile + c[4] + 7) * pitch + (cop * 4 + 127) / 128 * 128;
    if (v["mode"] == 1) z.shared += v["slots"] * std::max(c[2], c[3]) * z.tile * 2 + 8 * v["slots"];
    return z;
  }
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const auto c = d.const_extents();
    if (element_bytes(d) != 2 || d.attr("padding") < 0 || c[4] > 16)
      return false;  // fp32 needs its own family
    const Sizes z = sizes(d, v);
    if (z.threads > 1024 || z.threads < 64 || z.tile > 512) return false;
    // No warp with nothing but padding.
    if (warps_m(d, v) * v["mt"] * 16 - c[3] >= 16 * v["mt"]) return false;
    const int64_t registers = int64_t{v["mt"]} * v["nt"] * 4 + v["mt"] * 4 + v["nt"] * 2;
    const int64_t pairs = (c[2] + 15) / 16 * 8, work = pairs * ((z.tile + c[4] + 22) / 8);
    const int64_t ahead = v["lookahead"] ? 8 * ((work + z.threads - 1) / z.threads) : 0;
    if (registers + ahead + 36 > std::min<int64_t>(255, 65536 / (z.threads * v["persist"]))) return false;
    if (v["mode"] == 1) {
      if (t.capability < 90 || v["slots"] < 2 || v["lookahead"] ||
          2 * static_cast<int64_t>(d.attr("padding")) != c[4] - 1)
        return false;
    } else if (v["slots"] != 1) {
      return false;
    }
    return z.shared <= t.shared_bytes_per_block && v["persist"] * (z.shared + 1024) <= t.shared_bytes_per_sm;
  }
  std::vector<Settings> seed_points(const Definition&, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (int slots : {3, 2}) {
      for (auto [mt, nt, wn] : {std::array{3, 5, 5},
                                {6, 5, 5},
                                {2, 5, 5},
                                {3, 7, 4},
                                {6, 7, 4},
                                {2, 7, 4},
                                {3, 13, 2},
                                {3, 4, 7},
                                {2, 13, 2},
                                {6, 4, 7},
                                {1, 13, 2},
                                {4, 5, 4},
                                {2, 5, 4},
                                {4, 4, 5},
                                {2, 10, 2}})
        s.push_back({{"mode", 1}, {"mt", mt}, {"nt", nt}, {"warps_n", wn}, {"slots", slots}});
    }
    for (int persist : {2, 1, 3})
      for (int lookahead : {1, 0})
        for (auto [mt, nt, wn] : {std::array{3, 5, 5},
                                  {3, 7, 4},
                                  {2, 7, 4},
                                  {3, 13, 1},
                                  {3, 7, 2},
                                  {2, 13, 1},
                                  {3, 4, 3},
                                  {1, 7, 2},
                                  {3, 5, 3},
                                  {4, 5, 4},
                                  {2, 5, 2},
                                  {1, 5, 2}})
          s.push_back({{"mode", 0},
                       {"mt", mt},
                       {"nt", nt},
                       {"warps_n", wn},
                       {"persist", persist},
                       {"lookahead", lookahead}});
    return s;
  }
};

}  // namespace

void add_conv1d_family(evolve::CudaFamilyRegistry& registry) {
  registry.add(std::make_shared<Conv1dFamily>());
}

}  // namespace niche::ops_cuda
