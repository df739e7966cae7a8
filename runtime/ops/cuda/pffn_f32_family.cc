// pffn in fp32: rms_norm(rms_norm(gelu(X W1 + b1)) W2 + b2), all of a row tile in one block, by fused
// multiply-adds (tensor cores round fp32 to tf32, which no tolerance lets pass).
//
// `rows` rows of a sample lie in shared memory, transposed, so that a thread multiplies a weight that it read
// once (coalesced over the threads' columns, from L2 after the sample's first tile) with all rows, which come
// four a load as broadcasts. The first norm's factor is applied after the second product. Not run yet.
#include <algorithm>

#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/families.h"

namespace niche::ops_cuda {
namespace {

constexpr std::string_view kBody = R"(
enum : int { PITCH = ROWS + 4, TILES = (N + ROWS - 1) / ROWS };
extern __shared__ __align__(16) unsigned char shared[];

NI float gelu(float v) { return 0.5f * v * (1.0f + erff(v * 0.7071067812f)); }

// sum[r] = rows[:, r] . weight[:, column]; rows: [INNER][PITCH].
template <int INNER, int COLUMNS> NI void product(float* sum, const float* rows, const float* weight, int column) {
#pragma unroll
  for (int r = 0; r < ROWS; ++r) sum[r] = 0;
#pragma unroll UNROLL
  for (int i = 0; i < INNER; ++i) {
    const float w = __ldg(weight + i * COLUMNS + column);
#pragma unroll
    for (int r = 0; r < ROWS; r += 4) {
      float v[4];
      unpack(ld<0, float, 4>(rows + i * PITCH + r), v);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[r + j] = fmaf(v[j], w, sum[r + j]);
    }
  }
}

// factor[r] = 1 / rms of rows[:, r]; a warp a row at a time. Between two barriers.
template <int COUNT> NI void row_factors(float* factor, const float* rows) {
  for (int r = threadIdx.x / 32; r < ROWS; r += THREADS / 32) {
    float sum = 0;
    for (int i = threadIdx.x % 32; i < COUNT; i += 32) sum = fmaf(rows[i * PITCH + r], rows[i * PITCH + r], sum);
#pragma unroll
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (threadIdx.x % 32 == 0) factor[r] = rsqrtf(sum * (1.0f / COUNT) + EPS);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) run(const __grid_constant__ Args a) {
  float *x = (float*)shared, *h = x + D * PITCH, *factor = h + K * PITCH;
  for (i64 job = blockIdx.x; job < a.n[0] * TILES; job += gridDim.x) {
    const i64 sample = job / TILES;
    const int first = (int)(job % TILES) * ROWS;
    const float* from = (const float*)a.p[0] + (sample * N + first) * D;
    const float *w1 = (const float*)a.p[1] + sample * D * K, *w2 = (const float*)a.p[3] + sample * D * K;
    float* y = (float*)a.p[5] + (sample * N + first) * D;
    __syncthreads();  // the tile before is written out
    for (int i = threadIdx.x; i < ROWS * D; i += THREADS) {
      const int r = i / D, c = i % D;
      x[c * PITCH + r] = first + r < N ? __ldg(from + i) : 0.0f;
    }
    __syncthreads();
    for (int c = threadIdx.x; c < K; c += THREADS) {
      float sum[ROWS];
      product<D, K>(sum, x, w1, c);
      const float bias = __ldg((const float*)a.p[2] + c);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) h[c * PITCH + r] = gelu(sum[r] + bias);
    }
    __syncthreads();
    row_factors<K>(factor, h);
    __syncthreads();
    for (int c = threadIdx.x; c < D; c += THREADS) {
      float sum[ROWS];
      product<K, D>(sum, h, w2, c);
      const float bias = __ldg((const float*)a.p[4] + c);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) x[c * PITCH + r] = fmaf(sum[r], factor[r], bias);
    }
    __syncthreads();
    row_factors<D>(factor, x);
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * D; i += THREADS) {
      const int r = i / D, c = i % D;
      if (first + r < N) y[i] = x[c * PITCH + r] * factor[r];
    }
  }
}
)";

class PffnF32Family : public CudaSpaceFamily {
 public:
  PffnF32Family()
      : CudaSpaceFamily("pffn.columns", "pffn",
                        {{"rows", {32, 16, 8, 48, 64}},
                         {"threads", {256, 128, 512, 192, 384, 1024}},
                         {"unroll", {4, 2, 8, 1}},
                         {"persist", {0, 1, 2, 3, 4}}}) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    CudaKernelSource s;
    s.text = CudaSource()
                 .let("N", d.const_extents()[1])
                 .let("D", d.const_extents()[2])
                 .let("K", d.const_extents()[3])
                 .let("ROWS", v["rows"])
                 .let("THREADS", v["threads"])
                 .let("UNROLL", v["unroll"])
                 .let_float("EPS", d.attr("eps"))
                 .body(kBody)
                 .take();
    dispatch::CudaPhase p;
    p.symbol = "run";
    p.factors = {{0, 1}, {1, v["rows"]}};
    p.threads = v["threads"];
    p.shared_bytes = static_cast<int>(shared_bytes(d, v));
    p.blocks_per_sm = v["persist"];
    s.plan.phases = {p};
    s.limits = any_problem(d, 4);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  static int64_t shared_bytes(const Definition& d, const View& v) {
    return 4 * ((d.const_extents()[2] + d.const_extents()[3]) * (v["rows"] + 4) + v["rows"]);
  }
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const int64_t n = d.const_extents()[1];
    if (element_bytes(d) != 4 || (v["rows"] >= 2 * n && v["rows"] > 8)) return false;
    const int registers = v["rows"] + 4 * v["unroll"] + 40;
    if (registers > std::min(240, 65536 / (v["threads"] * std::max(1, v["persist"])))) return false;
    return fits(t, v["threads"], shared_bytes(d, v), v["persist"]);
  }
  std::vector<Settings> seed_points(const Definition&, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (int rows : {32, 16, 8, 64})
      for (int threads : {256, 128, 512})
        for (int unroll : {4, 2}) s.push_back({{"rows", rows}, {"threads", threads}, {"unroll", unroll}});
    return s;
  }
};

}  // namespace

void add_pffn_f32_family(evolve::CudaFamilyRegistry& registry) {
  registry.add(std::make_shared<PffnF32Family>());
}

}  // namespace niche::ops_cuda
