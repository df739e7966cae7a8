// optimized_fm: out = (X X') Y in one kernel: the Gram matrix of a sample stays in shared memory as 16-bit
// values (the library's Gram order rounds it there too), then out = G Y goes through blocks of 16 columns.
//
// Fragments come by 32-bit loads and a byte permutation, so that a row of Y may have any even length: two
// neighbouring columns of one word become columns of two tiles. `bulk` 1 (sm_90 and later): persistent, X and
// two stages of Y by the copy engine, out written over Y in its stage and stored from there; where K is no
// multiple of 8 the whole sample is one contiguous copy (rows are padded by 16 bytes otherwise, against bank
// conflicts). `bulk` 0: plain loads, one sample a block.
// On an H200, sums of G by shared-memory atomics took 88 us instead of 65, and one sample a block that is not
// persistent 68 (all blocks load, then all store).
#include <algorithm>

#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/families.h"

namespace niche::ops_cuda {
namespace {

constexpr std::string_view kBody = R"(
enum : int { MT = (N + 15) / 16, NP = MT * 16, THREADS = WARPS * 32 };
enum : int { XW = X_PITCH / 4, YW = Y_PITCH / 4, GW = (NP + 8) / 2, DK = (D + 15) / 16 };
enum : int { X_BYTES = (N * X_PITCH + 127) / 128 * 128, Y_BYTES = (N * Y_PITCH + 127) / 128 * 128 };
enum : int { BLOCKS = (K + 15) / 16 };
extern __shared__ __align__(128) unsigned char shared[];

// G = X X', tile by tile: warp w takes tiles w, w + WARPS, ...
NI void gram(const u32* x, u32* g_out) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  for (int tile = warp; tile < MT * (NP / 8); tile += WARPS) {
    const int m = tile / (NP / 8) * 16, n = tile % (NP / 8) * 8;
    float acc[2][4] = {};
    const bool r0 = N == NP || m + g < N, r1 = N == NP || m + g + 8 < N, r2 = N == NP || n + g < N;
    const u32 *p0 = x + (m + g) * XW + q, *p1 = p0 + 8 * XW, *p2 = x + (n + g) * XW + q;
#pragma unroll
    for (int k = 0; k < DK; ++k) {
      const bool lo = D % 16 == 0 || k * 16 + q * 2 < D, hi = D % 16 == 0 || k * 16 + 8 + q * 2 < D;
      const u32 a[4] = {r0 && lo ? p0[k * 8] : 0, r1 && lo ? p1[k * 8] : 0, r0 && hi ? p0[k * 8 + 4] : 0,
                        r1 && hi ? p1[k * 8 + 4] : 0};
      mma<T>(acc[k % 2], a, r2 && lo ? p2[k * 8] : 0, r2 && hi ? p2[k * 8 + 4] : 0);
    }
    g_out[(m + g) * GW + n / 2 + q] = Two<T>::pack(acc[0][0] + acc[1][0], acc[0][1] + acc[1][1]);
    g_out[(m + g + 8) * GW + n / 2 + q] = Two<T>::pack(acc[0][2] + acc[1][2], acc[0][3] + acc[1][3]);
  }
}

// Fragments of G for every tile of the product.
NI void load_gram(u32 (&a)[MT][MT][4], const u32* gram_at) {
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int k = 0; k < MT; ++k) {
      const u32* p = gram_at + (m * 16 + g) * GW + k * 8 + q;
      a[m][k][0] = p[0], a[m][k][1] = p[8 * GW], a[m][k][2] = p[4], a[m][k][3] = p[8 * GW + 4];
    }
}

// out[:, 16 columns] = G Y[:, 16 columns]; acc[m][0] holds the even columns, acc[m][1] the odd ones.
NI void product(float (&acc)[MT][2][4], const u32 (&a)[MT][MT][4], const u32* y, int block) {
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const bool inside = K % 16 == 0 || block * 16 + g * 2 < K;
  const u32* p = y + block * 8 + g;
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int i = 0; i < 8; ++i) acc[m][i / 4][i % 4] = 0.0f;
#pragma unroll
  for (int k = 0; k < MT; ++k) {
    u32 word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = k * 16 + i / 2 * 8 + q * 2 + i % 2;
      word[i] = inside && (k * 16 + i / 2 * 8 + 8 <= N || row < N) ? p[row * YW] : 0;
    }
    const u32 even0 = __byte_perm(word[0], word[1], 0x5410), odd0 = __byte_perm(word[0], word[1], 0x7632);
    const u32 even1 = __byte_perm(word[2], word[3], 0x5410), odd1 = __byte_perm(word[2], word[3], 0x7632);
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      mma<T>(acc[m][0], a[m][k], even0, even1);
      mma<T>(acc[m][1], a[m][k], odd0, odd1);
    }
  }
}

// The 4 x 2 values of a thread as words of rows g and g + 8: columns 4q .. 4q+3 of the block.
template <class PUT> NI void emit(const float (&acc)[MT][2][4], int block, const PUT& put) {
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = m * 16 + h * 8 + g, word = block * 8 + q * 2;
      if (N != NP && row >= N) continue;
      put(row, word, Two<T>::pack(acc[m][0][h * 2], acc[m][1][h * 2]),
          Two<T>::pack(acc[m][0][h * 2 + 1], acc[m][1][h * 2 + 1]));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, PERSIST) run(const __grid_constant__ Args args) {
  const i64 batch = args.n[0];
  if (batch == 0) return;
  const int warp = threadIdx.x / 32;
  const unsigned char *xs = (const unsigned char*)args.p[0], *ys = (const unsigned char*)args.p[1];
  unsigned char* out = (unsigned char*)args.p[2];
  float acc[MT][2][4];
  u32 a[MT][MT][4];
  if constexpr (BULK) {
#if __CUDA_ARCH__ >= 900
    unsigned char *y_at = shared, *x_at = shared + STAGES * Y_BYTES;
    u32* g_at = (u32*)(x_at + X_BYTES);
    const u32 x_bar = shared_address(g_at + NP * GW), y_bar = x_bar + 8;
    const auto load_x = [&](i64 b) {
      barrier_expect(x_bar, N * D * 2);
      if constexpr (X_PITCH == D * 2) bulk_load(shared_address(x_at), xs + b * N * D * 2, N * D * 2, x_bar);
      else
        for (int r = 0; r < N; ++r) bulk_load(shared_address(x_at) + r * X_PITCH, xs + (b * N + r) * D * 2, D * 2, x_bar);
    };
    const auto load_y = [&](i64 b, int s) {
      const u32 to = shared_address(y_at + s * Y_BYTES), bar = y_bar + 8 * s;
      barrier_expect(bar, N * K * 2);
      if constexpr (Y_PITCH == K * 2) bulk_load(to, ys + b * N * K * 2, N * K * 2, bar);
      else
        for (int r = 0; r < N; ++r) bulk_load(to + r * Y_PITCH, ys + (b * N + r) * K * 2, K * 2, bar);
    };
    if (threadIdx.x == 0) {
      for (int i = 0; i < 1 + STAGES; ++i) barrier_init(x_bar + 8 * i, 1);
      fence_async();
      load_x(blockIdx.x);
      for (int s = 0; s < STAGES; ++s)
        if (blockIdx.x + (i64)s * gridDim.x < batch) load_y(blockIdx.x + (i64)s * gridDim.x, s);
    }
    __syncthreads();
    int stage = 0, parity = 0, x_parity = 0, before = -1;
    for (i64 b = blockIdx.x; b < batch; b += gridDim.x) {
      barrier_wait(x_bar, x_parity);
      x_parity ^= 1;
      gram((const u32*)x_at, g_at);
      __syncthreads();
      if (threadIdx.x == 0) {
        if (b + gridDim.x < batch) load_x(b + gridDim.x);
        // By now the store of the sample before has been read: its stage takes the next one.
        const i64 next = b + (i64)(STAGES - 1) * gridDim.x;
        if (before >= 0) {
          bulk_wait_read<0>();
          if (next < batch) load_y(next, before);
        }
      }
      load_gram(a, g_at);
      barrier_wait(y_bar + 8 * stage, parity);
      u32* y = (u32*)(y_at + stage * Y_BYTES);
      for (int block = warp; block < BLOCKS; block += WARPS) {
        product(acc, a, y, block);
        __syncwarp();
        emit(acc, block, [&](int row, int word, u32 lo, u32 hi) {
          u32* to = y + row * YW + word;
          if (K % 16 == 0 || word * 2 < K) to[0] = lo;
          if (K % 16 == 0 || word * 2 + 2 < K) to[1] = hi;
        });
      }
      fence_async();
      __syncthreads();
      if (threadIdx.x == 0) {
        const u32 from = shared_address(y);
        if constexpr (Y_PITCH == K * 2) bulk_store(out + b * N * K * 2, from, N * K * 2);
        else
          for (int r = 0; r < N; ++r) bulk_store(out + (b * N + r) * K * 2, from + r * Y_PITCH, K * 2);
        bulk_commit();
      }
      before = stage;
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    if (threadIdx.x == 0) bulk_wait_all();
#endif
  } else {
    unsigned char* x_at = shared;
    u32* g_at = (u32*)(x_at + X_BYTES);
    for (i64 b = blockIdx.x; b < batch; b += gridDim.x) {
      const u32* from = (const u32*)(xs + b * N * D * 2);
      for (int i = threadIdx.x; i < N * D / 2; i += THREADS) ((u32*)x_at)[i / (D / 2) * XW + i % (D / 2)] = from[i];
      __syncthreads();
      gram((const u32*)x_at, g_at);
      __syncthreads();
      load_gram(a, g_at);
      const u32* y = (const u32*)(ys + b * N * K * 2);
      u32* to = (u32*)(out + b * N * K * 2);
      for (int block = warp; block < BLOCKS; block += WARPS) {
        product(acc, a, y, block);
        emit(acc, block, [&](int row, int word, u32 lo, u32 hi) {
          u32* at = to + row * (K / 2) + word;
          if (K % 16 == 0 || word * 2 < K) at[0] = lo;
          if (K % 16 == 0 || word * 2 + 2 < K) at[1] = hi;
        });
      }
    }
  }
}
)";

class OptimizedFmFamily : public CudaSpaceFamily {
 public:
  OptimizedFmFamily()
      : CudaSpaceFamily("optimized_fm.gram", "optimized_fm",
                        {{"bulk", {1, 0}},
                         {"stages", {2, 1, 3}},
                         {"warps", {16, 8, 7, 4, 6, 12}},
                         {"persist", {1, 2, 3, 4, 6, 8}}}) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    const Layout l = layout(d, v);
    CudaKernelSource s;
    s.text = CudaSource()
                 .type("T", element(d))
                 .let("N", d.const_extents()[1])
                 .let("D", d.const_extents()[2])
                 .let("K", d.const_extents()[3])
                 .let("BULK", v["bulk"])
                 .let("STAGES", v["stages"])
                 .let("WARPS", v["warps"])
                 .let("PERSIST", v["persist"])
                 .let("X_PITCH", l.x_pitch)
                 .let("Y_PITCH", l.y_pitch)
                 .body(kBody)
                 .take();
    dispatch::CudaPhase p;
    p.symbol = "run";
    p.factors = {{0, 1}};
    p.threads = v["warps"] * 32;
    p.shared_bytes = static_cast<int>(l.shared);
    p.blocks_per_sm = v["persist"];
    s.plan.phases = {p};
    s.limits = any_problem(d, 16);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  struct Layout {
    int64_t x_pitch, y_pitch, shared;
  };
  static Layout layout(const Definition& d, const View& v) {
    const int64_t n = d.const_extents()[1], dd = d.const_extents()[2], k = d.const_extents()[3];
    const int64_t np = (n + 15) / 16 * 16;
    Layout l{};
    // 4 words beyond a multiple of 8: eight rows and four columns meet no bank twice. Rows that the copy
    // engine takes alone must be multiples of 16 bytes.
    l.x_pitch = v["bulk"] && dd % 8 != 0 ? dd * 2 : (dd * 2 + 31) / 32 * 32 + 16;
    if (v["bulk"])
      l.y_pitch = k % 8 != 0 ? k * 2 : k * 2 + 16;
    else
      l.y_pitch = k * 2;
    const int64_t x_bytes = (n * l.x_pitch + 127) / 128 * 128, y_bytes = (n * l.y_pitch + 127) / 128 * 128;
    l.shared = x_bytes + np * (np + 8) * 2;
    if (v["bulk"]) l.shared += v["stages"] * y_bytes + 8 * (1 + v["stages"]);
    return l;
  }
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const int64_t n = d.const_extents()[1], dd = d.const_extents()[2], k = d.const_extents()[3];
    if (element_bytes(d) != 2 || dd % 2 != 0 || k % 2 != 0 || n > 64) return false;
    if (v["bulk"]) {
      if (t.capability < 90) return false;
      // One copy a sample: its bytes are a multiple of 16.
      if ((dd % 8 != 0 && n * dd % 8 != 0) || (k % 8 != 0 && n * k % 8 != 0)) return false;
    } else if (v["stages"] != 1) {
      return false;
    }
    const int64_t mt = (n + 15) / 16;
    if (mt * mt * 4 + mt * 8 + 40 > std::min(255, 65536 / (v["warps"] * 32 * v["persist"]))) return false;
    return fits(t, v["warps"] * 32, layout(d, v).shared, v["persist"]);
  }
  std::vector<Settings> seed_points(const Definition&, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (int stages : {2, 3, 1})
      for (int persist : {1, 2, 3, 4})
        for (int warps : {16, 8, 7, 4, 12})
          s.push_back({{"bulk", 1}, {"stages", stages}, {"warps", warps}, {"persist", persist}});
    for (int persist : {2, 4, 3, 8})
      for (int warps : {8, 4, 16})
        s.push_back({{"bulk", 0}, {"stages", 1}, {"warps", warps}, {"persist", persist}});
    return s;
  }
};

}  // namespace

void add_optimized_fm_family(evolve::CudaFamilyRegistry& registry) {
  registry.add(std::make_shared<OptimizedFmFamily>());
}

}  // namespace niche::ops_cuda
