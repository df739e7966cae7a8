// pffn on Hopper's warpgroup instructions, by roles: one warpgroup copies weights and tiles of 64 rows of X
// into swizzled shared memory, the others take a tile each from X to y.
//
// The first product's accumulators become the second one's operands in registers; `halves` does the first
// product in two parts, which leaves registers for three consumers. `wst` stages of weights, `xs` tiles of X.
// 64-byte swizzle: rows of 32 elements, so that K and D need be multiples of 32 alone. The structure is that
// of the H200 prototype (117 us and 46 us where a copy takes 91 and 34), with copies by threads in place of
// tensor maps.
#include <algorithm>

#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/cuda_wgmma.h"
#include "runtime/ops/cuda/families.h"

namespace niche::ops_cuda {
namespace {

constexpr std::string_view kBody = R"(
enum : int { THREADS = 128 * (1 + GROUPS), TILES = (N + 63) / 64, X_BYTES = 64 * D * 2, W_BYTES = D * K * 2 };
enum : int { KH = K / HALVES };
extern __shared__ __align__(1024) unsigned char shared[];

NI float gelu(float x) {
  const float z = fminf(x * x, 36.0f);
  const float u = x * fmaf(z, fmaf(z, -3.51517e-4f, 0.0370056506f), 0.79750788f);
  float t;
  asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(u));
  const float half = 0.5f * x;
  return fmaf(half, t, half);
}
NI float quad_sum(float v) {
  v += __shfl_xor_sync(~0u, v, 1);
  return v + __shfl_xor_sync(~0u, v, 2);
}
// Four words of four tiles a lane of a quad -> four words of one tile: lane q gets tile q.
NI void quad_transpose(u32 (&w)[4], int q) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const u32 got = __shfl_xor_sync(~0u, q & 1 ? w[i] : w[i + 1], 1);
    if (q & 1) w[i] = got;
    else w[i + 1] = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const u32 got = __shfl_xor_sync(~0u, q & 2 ? w[i] : w[i + 2], 2);
    if (q & 2) w[i] = got;
    else w[i + 2] = got;
  }
}
#if __CUDA_ARCH_FEAT_SM90_ALL
NI void copies_arrive(u32 bar) { asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(bar) : "memory"); }
// A matrix of ROWS x COLS -> [COLS / 32][ROWS][64 bytes], 16-byte pieces permuted within a row. Where a thread's
// pieces go repeats every PERIOD pieces, a multiple of 8 rows further on: all but PERIOD addresses are constants
// away from one that is known. (With the arithmetic done for each piece, four copying warps were the kernel's
// limit: 290 cycles a piece.)
template <int ROWS, int COLS, int PERIOD> NI void copy_swizzled(u32 to, const unsigned char* from, int rows) {
  constexpr int PER = COLS / 8, ALL = ROWS * PER, FURTHER = 128 * PERIOD / PER * 64;
  u32 at[PERIOD];
#pragma unroll
  for (int j = 0; j < PERIOD; ++j) {
    const int i = threadIdx.x + j * 128, r = i / PER, c = i % PER;
    at[j] = to + c / 4 * (ROWS * 64) + r * 64 + ((c % 4) ^ ((r >> 1) & 3)) * 16;
  }
  const unsigned char* p = from + threadIdx.x * 16;
  // Not unrolled further: the copying warps have 40 registers.
#pragma unroll 1
  for (int i = threadIdx.x; i < ALL; i += 128 * PERIOD) {
#pragma unroll
    for (int j = 0; j < PERIOD; ++j) {
      if (ALL % (128 * PERIOD) == 0 || i + j * 128 < ALL) {
        if (rows >= ROWS) {
          copy16_async(at[j], p + j * 2048);
        } else {
          const bool real = i + j * 128 < rows * PER;
          copy16_async_or_zero(at[j], real ? p + j * 2048 : from, real);
        }
      }
      at[j] += FURTHER;
    }
    p += PERIOD * 2048;
  }
}
NI u64 descriptor(u32 at, u32 lead, u32 stride) {
  return (u64)(at >> 4) | (u64)(lead >> 4) << 16 | (u64)(stride >> 4) << 32 | (u64)2 << 62;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1) run(const __grid_constant__ Args a) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  const i64 batch = a.n[0];
  if (batch == 0) return;
  const u32 w1 = shared_address(shared), w2 = w1 + WST * W_BYTES, xt = w2 + WST * W_BYTES;
  float *b1 = (float*)(shared + 2 * WST * W_BYTES + XS * X_BYTES), *b2 = b1 + K;
  const u32 bars = shared_address(b2 + D);
  const u32 w1_full = bars, w1_free = w1_full + 8 * WST, w2_full = w1_free + 8 * WST, w2_free = w2_full + 8 * WST;
  const u32 x_full = w2_free + 8 * WST, x_free = x_full + 8 * XS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < WST; ++s) {
      barrier_init(w1_full + 8 * s, 128), barrier_init(w2_full + 8 * s, 128);
      barrier_init(w1_free + 8 * s, 4 * TILES), barrier_init(w2_free + 8 * s, 4 * TILES);
    }
    for (int s = 0; s < XS; ++s) barrier_init(x_full + 8 * s, 128), barrier_init(x_free + 8 * s, 4);
    fence_async();
  }
  for (int i = threadIdx.x; i < K; i += THREADS) b1[i] = to_float(((const T*)a.p[2])[i]);
  for (int i = threadIdx.x; i < D; i += THREADS) b2[i] = to_float(((const T*)a.p[4])[i]);
  __syncthreads();
  if (warp < 4) {
    if constexpr (GROUPS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if constexpr (GROUPS == 3) asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
    const unsigned char *x = (const unsigned char*)a.p[0], *v1 = (const unsigned char*)a.p[1], *v2 = (const unsigned char*)a.p[3];
    int stage = 0, w_parity = 1, slot = 0, x_parity = 1;
    const auto load_x = [&](i64 b, int tile) {
      barrier_wait(x_free + 8 * slot, x_parity);
      copy_swizzled<64, D, PERIOD_D>(xt + slot * X_BYTES, x + (b * N + tile * 64) * D * 2, N - tile * 64);
      copies_arrive(x_full + 8 * slot);
      if (++slot == XS) slot = 0, x_parity ^= 1;
    };
    constexpr int EARLY = XS < TILES ? XS : TILES;
    for (i64 b = blockIdx.x; b < batch; b += gridDim.x) {
      barrier_wait(w1_free + 8 * stage, w_parity);
      copy_swizzled<D, K, PERIOD_K>(w1 + stage * W_BYTES, v1 + b * W_BYTES, D);
      copies_arrive(w1_full + 8 * stage);
      for (int t = 0; t < EARLY; ++t) load_x(b, t);
      barrier_wait(w2_free + 8 * stage, w_parity);
      copy_swizzled<K, D, PERIOD_D>(w2 + stage * W_BYTES, v2 + b * W_BYTES, K);
      copies_arrive(w2_full + 8 * stage);
      for (int t = EARLY; t < TILES; ++t) load_x(b, t);
      if (++stage == WST) stage = 0, w_parity ^= 1;
    }
    copies_commit();
    copies_wait<0>();
  } else {
    if constexpr (GROUPS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    if constexpr (GROUPS == 3) asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
    const int group = warp / 4 - 1, g = lane / 4, q = lane % 4;
    for (int at = group;; at += GROUPS) {
      const int nth = at / TILES, tile = at - nth * TILES;
      const i64 b = blockIdx.x + (i64)nth * gridDim.x;
      if (b >= batch) break;
      const int stage = nth % WST, w_parity = nth / WST & 1, slot = at % XS, x_parity = at / XS & 1;
      barrier_wait(w1_full + 8 * stage, w_parity);
      barrier_wait(x_full + 8 * slot, x_parity);
      fence_async();
      u32 hf[K / 16][4];
      float scale0 = 0, scale1 = 0;
#pragma unroll
      for (int h = 0; h < HALVES; ++h) {
        float acc[KH / 2];
        const u64 da = descriptor(xt + slot * X_BYTES, 16, 512);
        const u64 db = descriptor(w1 + stage * W_BYTES + h * (KH / 32) * (D * 64), D * 64, 512);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < D / 16; ++k) first(acc, da + k / 2 * 256 + k % 2 * 2, db + k * 64, k > 0);
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
        for (int i = 0; i < KH / 2; ++i) asm volatile("" : "+f"(acc[i])::"memory");
        if (h == HALVES - 1 && lane == 0) barrier_arrive(x_free + 8 * slot), barrier_arrive(w1_free + 8 * stage);
#pragma unroll
        for (int n = 0; n < KH / 8; ++n) {
          const float2 bias = *(const float2*)(b1 + h * KH + n * 8 + q * 2);
          float* v = acc + n * 4;
          v[0] = gelu(v[0] + bias.x), v[1] = gelu(v[1] + bias.y), v[2] = gelu(v[2] + bias.x), v[3] = gelu(v[3] + bias.y);
          scale0 = fmaf(v[0], v[0], fmaf(v[1], v[1], scale0));
          scale1 = fmaf(v[2], v[2], fmaf(v[3], v[3], scale1));
          const int j = h * (KH / 8) + n;
          hf[j / 2][j % 2 * 2] = Two<T>::pack(v[0], v[1]);
          hf[j / 2][j % 2 * 2 + 1] = Two<T>::pack(v[2], v[3]);
        }
      }
      scale0 = rsqrtf(quad_sum(scale0) * (1.0f / K) + EPS);
      scale1 = rsqrtf(quad_sum(scale1) * (1.0f / K) + EPS);
      barrier_wait(w2_full + 8 * stage, w_parity);
      fence_async();
      float out[D / 2];
      const u64 d2 = descriptor(w2 + stage * W_BYTES, K * 64, 512);
#pragma unroll
      for (int k = 0; k < K / 16; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(hf[k][i])::"memory");
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
      for (int k = 0; k < K / 16; ++k) second(out, hf[k], d2 + k * 64, k > 0);
      asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
      for (int i = 0; i < D / 2; ++i) asm volatile("" : "+f"(out[i])::"memory");
      if (lane == 0) barrier_arrive(w2_free + 8 * stage);
      float s0 = 0, s1 = 0;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const float2 bias = *(const float2*)(b2 + n * 8 + q * 2);
        float* v = out + n * 4;
        v[0] = fmaf(v[0], scale0, bias.x), v[1] = fmaf(v[1], scale0, bias.y);
        v[2] = fmaf(v[2], scale1, bias.x), v[3] = fmaf(v[3], scale1, bias.y);
        s0 = fmaf(v[0], v[0], fmaf(v[1], v[1], s0));
        s1 = fmaf(v[2], v[2], fmaf(v[3], v[3], s1));
      }
      s0 = rsqrtf(quad_sum(s0) * (1.0f / D) + EPS);
      s1 = rsqrtf(quad_sum(s1) * (1.0f / D) + EPS);
      const int row = tile * 64 + warp % 4 * 16 + g;
      u16* y = (u16*)a.p[5] + (b * N + row) * D;
#pragma unroll
      for (int n = 0; n < D / 32; ++n) {
        u32 lo[4], hi[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* v = out + (4 * n + i) * 4;
          lo[i] = Two<T>::pack(v[0] * s0, v[1] * s0);
          hi[i] = Two<T>::pack(v[2] * s1, v[3] * s1);
        }
        quad_transpose(lo, q);
        quad_transpose(hi, q);
        if (row < N) *((uint4*)y + n * 4 + q) = make_uint4(lo[0], lo[1], lo[2], lo[3]);
        if (row + 8 < N) *((uint4*)(y + 8 * D) + n * 4 + q) = make_uint4(hi[0], hi[1], hi[2], hi[3]);
      }
    }
  }
#endif
}
)";

class PffnWgmmaFamily : public CudaSpaceFamily {
 public:
  PffnWgmmaFamily()
      : CudaSpaceFamily(
            "pffn.wgmma", "pffn",
            {{"groups", {2, 3, 1}}, {"xs", {2, 1, 3, 4, 5, 6}}, {"wst", {1, 2}}, {"halves", {1, 2}}}) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    const auto c = d.const_extents();
    const bool bf16 = element(d) == "bf16";
    CudaKernelSource s;
    s.text = CudaSource()
                 .type("T", element(d))
                 .let("N", c[1])
                 .let("D", c[2])
                 .let("K", c[3])
                 .let("GROUPS", v["groups"])
                 .let("XS", v["xs"])
                 .let("WST", v["wst"])
                 .let("HALVES", v["halves"])
                 .let("PERIOD_D", period(c[2] / 8))
                 .let("PERIOD_K", period(c[3] / 8))
                 .let_float("EPS", d.attr("eps"))
                 .body(wgmma_text({"first", static_cast<int>(c[3]) / v["halves"], bf16, false, true}))
                 .body(wgmma_text({"second", static_cast<int>(c[2]), bf16, true, true}))
                 .body(kBody)
                 .take();
    dispatch::CudaPhase p;
    p.symbol = "run";
    p.factors = {{0, 1}};
    p.threads = 128 * (1 + v["groups"]);
    p.shared_bytes = static_cast<int>(shared_bytes(d, v));
    p.blocks_per_sm = 1;
    s.plan.phases = {p};
    s.limits = any_problem(d, 16);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  // The least number of pieces a thread (of 128) after which rows of `per` pieces start anew, 8 rows or a
  // multiple further on.
  static int64_t period(int64_t per) {
    int64_t p = 1;
    while (128 * p % per != 0 || 128 * p / per % 8 != 0) ++p;
    return p;
  }
  static int64_t shared_bytes(const Definition& d, const View& v) {
    const auto c = d.const_extents();
    return 2 * v["wst"] * c[2] * c[3] * 2 + v["xs"] * 64 * c[2] * 2 + 4 * (c[2] + c[3]) + 32 * v["wst"] +
           16 * v["xs"];
  }
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const auto c = d.const_extents();
    const int64_t dd = c[2], k = c[3], part = k / v["halves"];
    if (t.capability != 90 || element_bytes(d) != 2 || dd % 32 != 0 || k % 32 != 0 || dd > 256) return false;
    // A group that waits for a slot's next filling must have seen the one before it (a barrier tells only odd
    // from even fillings): so no fewer slots, and no fewer tiles a sample, than groups.
    if (v["xs"] < v["groups"] || (c[1] + 63) / 64 < v["groups"]) return false;
    if (part % 32 != 0 || part > 256 || dd * k % 512 != 0) return false;
    const int64_t registers = std::max(part / 2 + k / 4, dd / 2 + k / 4) + 36;
    if (registers > (v["groups"] == 3 ? 160 : v["groups"] == 2 ? 232 : 255)) return false;
    return shared_bytes(d, v) <= t.shared_bytes_per_block;
  }
  std::vector<Settings> seed_points(const Definition&, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (int groups : {2, 3, 1})
      for (int wst : {2, 1})
        for (int xs : {6, 5, 4, 3, 2})
          for (int halves : {1, 2})
            s.push_back({{"groups", groups}, {"xs", xs}, {"wst", wst}, {"halves", halves}});
    return s;
  }
};

}  // namespace

void add_pffn_wgmma_family(evolve::CudaFamilyRegistry& registry) {
  registry.add(std::make_shared<PffnWgmmaFamily>());
}

}  // namespace niche::ops_cuda
