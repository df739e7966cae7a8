// pffn: rms_norm(rms_norm(gelu(X W1 + b1)) W2 + b2) in one kernel, weights of a sample in shared memory.
//
// A warp owns 16 rows from X to y: the first product's accumulators become the second one's operands in
// registers, and the first norm's row scale is applied after the second product. GELU by tanh.approx of a
// 3-term fit (2.5e-5 from erf before the instruction's own error; erff costs 37 us more on an H200's small
// shape). `warps` a block, `persist` blocks a multiprocessor: one block loads while another multiplies.
#include <algorithm>

#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/families.h"

namespace niche::ops_cuda {
namespace {

constexpr std::string_view kBody = R"(
enum : int { THREADS = WARPS * 32, P1 = K * 2 + 16, P2 = D * 2 + 16, TILES = (N + 15) / 16 };
extern __shared__ __align__(128) unsigned char shared[];

// Four words of four tiles a lane of a quad -> four words of one tile: lane q gets tile q. Its own inverse.
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
template <int PITCH, int ROW> NI void load_rows(unsigned char* to, const unsigned char* from, int rows) {
  constexpr int PER = ROW / 16;
  for (int i = threadIdx.x; i < rows * PER; i += THREADS)
    copy16_async(shared_address(to) + i / PER * PITCH + i % PER * 16, from + i * 16);
}

extern "C" __global__ void __launch_bounds__(THREADS, PERSIST) run(const __grid_constant__ Args a) {
  const i64 batch = a.n[0];
  if (batch == 0) return;
  unsigned char *w1 = shared, *w2 = w1 + D * P1;
  float *b1 = (float*)(w2 + K * P2), *b2 = b1 + K;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  for (int i = threadIdx.x; i < K; i += THREADS) b1[i] = to_float(((const T*)a.p[2])[i]);
  for (int i = threadIdx.x; i < D; i += THREADS) b2[i] = to_float(((const T*)a.p[4])[i]);
  const u32 at1 = shared_address(w1) + (lane & 15) * P1 + (lane >> 4) * 16;
  const u32 at2 = shared_address(w2) + (lane & 15) * P2 + (lane >> 4) * 16;
  for (i64 b = blockIdx.x; b < batch; b += gridDim.x) {
    __syncthreads();  // the sample before is done with the weights
    load_rows<P1, K * 2>(w1, (const unsigned char*)a.p[1] + b * D * K * 2, D);
    copies_commit();
    load_rows<P2, D * 2>(w2, (const unsigned char*)a.p[3] + b * D * K * 2, K);
    copies_commit();
    const u16* x = (const u16*)a.p[0] + b * N * D;
    u16* y = (u16*)a.p[5] + b * N * D;
#pragma unroll 1
    for (int pass = 0; pass * WARPS < TILES; ++pass) {
      const int row = (pass * WARPS + warp) * 16 + g;
      const bool has = row - g < N, r0 = row < N, r1 = row + 8 < N;
      u32 xf[D / 16][4];
#pragma unroll
      for (int k = 0; k < D / 32; ++k) {
        const uint4 zero = make_uint4(0, 0, 0, 0);
        const uint4 p = r0 ? __ldg((const uint4*)(x + row * D) + k * 4 + q) : zero;
        const uint4 s = r1 ? __ldg((const uint4*)(x + (row + 8) * D) + k * 4 + q) : zero;
        u32 lo[4] = {p.x, p.y, p.z, p.w}, hi[4] = {s.x, s.y, s.z, s.w};
        quad_transpose(lo, q);
        quad_transpose(hi, q);
        xf[2 * k][0] = lo[0], xf[2 * k][2] = lo[1], xf[2 * k + 1][0] = lo[2], xf[2 * k + 1][2] = lo[3];
        xf[2 * k][1] = hi[0], xf[2 * k][3] = hi[1], xf[2 * k + 1][1] = hi[2], xf[2 * k + 1][3] = hi[3];
      }
      if (pass == 0) {
        copies_wait<1>();
        __syncthreads();
      }
      u32 hf[K / 16][4];
      float scale0 = 0, scale1 = 0;
      if (has) {
        float acc[K / 8][4] = {};
#pragma unroll
        for (int k = 0; k < D / 16; ++k)
#pragma unroll
          for (int n = 0; n < K / 16; ++n) {
            u32 w[4];
            ldmatrix4_trans(w, at1 + k * 16 * P1 + n * 32);
            mma<T>(acc[2 * n], xf[k], w[0], w[1]);
            mma<T>(acc[2 * n + 1], xf[k], w[2], w[3]);
          }
#pragma unroll
        for (int n = 0; n < K / 8; ++n) {
          const float2 bias = *(const float2*)(b1 + n * 8 + q * 2);
          acc[n][0] = gelu(acc[n][0] + bias.x), acc[n][1] = gelu(acc[n][1] + bias.y);
          acc[n][2] = gelu(acc[n][2] + bias.x), acc[n][3] = gelu(acc[n][3] + bias.y);
          scale0 = fmaf(acc[n][0], acc[n][0], fmaf(acc[n][1], acc[n][1], scale0));
          scale1 = fmaf(acc[n][2], acc[n][2], fmaf(acc[n][3], acc[n][3], scale1));
          hf[n / 2][n % 2 * 2] = Two<T>::pack(acc[n][0], acc[n][1]);
          hf[n / 2][n % 2 * 2 + 1] = Two<T>::pack(acc[n][2], acc[n][3]);
        }
        scale0 = rsqrtf(quad_sum(scale0) * (1.0f / K) + EPS);
        scale1 = rsqrtf(quad_sum(scale1) * (1.0f / K) + EPS);
      }
      if (pass == 0) {
        copies_wait<0>();
        __syncthreads();
      }
      if (!has) continue;
      float out[D / 8][4] = {};
#pragma unroll
      for (int k = 0; k < K / 16; ++k)
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
          u32 w[4];
          ldmatrix4_trans(w, at2 + k * 16 * P2 + n * 32);
          mma<T>(out[2 * n], hf[k], w[0], w[1]);
          mma<T>(out[2 * n + 1], hf[k], w[2], w[3]);
        }
      float s0 = 0, s1 = 0;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const float2 bias = *(const float2*)(b2 + n * 8 + q * 2);
        out[n][0] = fmaf(out[n][0], scale0, bias.x), out[n][1] = fmaf(out[n][1], scale0, bias.y);
        out[n][2] = fmaf(out[n][2], scale1, bias.x), out[n][3] = fmaf(out[n][3], scale1, bias.y);
        s0 = fmaf(out[n][0], out[n][0], fmaf(out[n][1], out[n][1], s0));
        s1 = fmaf(out[n][2], out[n][2], fmaf(out[n][3], out[n][3], s1));
      }
      s0 = rsqrtf(quad_sum(s0) * (1.0f / D) + EPS);
      s1 = rsqrtf(quad_sum(s1) * (1.0f / D) + EPS);
#pragma unroll
      for (int n = 0; n < D / 32; ++n) {
        u32 lo[4], hi[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          lo[i] = Two<T>::pack(out[4 * n + i][0] * s0, out[4 * n + i][1] * s0);
          hi[i] = Two<T>::pack(out[4 * n + i][2] * s1, out[4 * n + i][3] * s1);
        }
        quad_transpose(lo, q);
        quad_transpose(hi, q);
        if (r0) *((uint4*)(y + row * D) + n * 4 + q) = make_uint4(lo[0], lo[1], lo[2], lo[3]);
        if (r1) *((uint4*)(y + (row + 8) * D) + n * 4 + q) = make_uint4(hi[0], hi[1], hi[2], hi[3]);
      }
    }
  }
}
)";

class PffnFamily : public CudaSpaceFamily {
 public:
  PffnFamily()
      : CudaSpaceFamily("pffn.warp_rows", "pffn",
                        {{"warps", {8, 7, 5, 4, 10, 3, 13}}, {"persist", {1, 2, 3, 4}}}) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    CudaKernelSource s;
    s.text = CudaSource()
                 .type("T", element(d))
                 .let("N", d.const_extents()[1])
                 .let("D", d.const_extents()[2])
                 .let("K", d.const_extents()[3])
                 .let("WARPS", v["warps"])
                 .let("PERSIST", v["persist"])
                 .let_float("EPS", d.attr("eps"))
                 .body(kBody)
                 .take();
    dispatch::CudaPhase p;
    p.symbol = "run";
    p.factors = {{0, 1}};
    p.threads = v["warps"] * 32;
    p.shared_bytes = static_cast<int>(shared_bytes(d));
    p.blocks_per_sm = v["persist"];
    s.plan.phases = {p};
    s.limits = any_problem(d, 16);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  static int64_t shared_bytes(const Definition& d) {
    const int64_t dd = d.const_extents()[2], k = d.const_extents()[3];
    return dd * (k * 2 + 16) + k * (dd * 2 + 16) + 4 * (dd + k);
  }
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const int64_t n = d.const_extents()[1], dd = d.const_extents()[2], k = d.const_extents()[3];
    if (element_bytes(d) != 2 || dd % 32 != 0 || k % 16 != 0 || v["warps"] > (n + 15) / 16) return false;
    const int64_t registers = std::max(k / 2 + dd / 4, dd / 2 + k / 4) + 40;
    if (registers > std::min(255, 65536 / (v["warps"] * 32 * v["persist"]))) return false;
    return shared_bytes(d) <= t.shared_bytes_per_block &&
           v["persist"] * (shared_bytes(d) + 1024) <= t.shared_bytes_per_sm;
  }
  std::vector<Settings> seed_points(const Definition&, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (int persist : {2, 1, 3, 4})
      for (int warps : {7, 5, 8, 4, 10, 3, 13}) s.push_back({{"warps", warps}, {"persist", persist}});
    return s;
  }
};

}  // namespace

void add_pffn_family(evolve::CudaFamilyRegistry& registry) { registry.add(std::make_shared<PffnFamily>()); }

}  // namespace niche::ops_cuda
