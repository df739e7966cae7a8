// optimized_fm in fp32, Gram order: out = (X X') Y, all of a sample in one block. Tensor cores round fp32 to
// tf32, which no tolerance lets pass, so this is fused multiply-adds: 2 N^2 (D + K) of them are few beside
// the bytes of Y and out.
//
// X of a sample in shared memory, G = X X' from it (each of its values by one thread, in the order of d), then
// every thread takes `columns` columns of Y through all N rows of G, which it reads as broadcasts. `persist`
// blocks a multiprocessor load and multiply beside each other. Not run yet.
#include <algorithm>

#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/families.h"

namespace niche::ops_cuda {
namespace {

constexpr std::string_view kBody = R"(
enum : int { X_PITCH = D + 1, PAIRS = N * (N + 1) / 2, G_PITCH = (N + 3) / 4 * 4 };
extern __shared__ __align__(16) unsigned char shared[];

extern "C" __global__ void __launch_bounds__(THREADS) run(const __grid_constant__ Args a) {
  float *g = (float*)shared, *x = g + N * G_PITCH;
  for (i64 sample = blockIdx.x; sample < a.n[0]; sample += gridDim.x) {
    const float *from = (const float*)a.p[0] + sample * N * D, *y = (const float*)a.p[1] + sample * N * K;
    float* out = (float*)a.p[2] + sample * N * K;
    __syncthreads();  // the sample before is done with both
    for (int i = threadIdx.x; i < N * D; i += THREADS) x[i / D * X_PITCH + i % D] = __ldg(from + i);
    __syncthreads();
    for (int p = threadIdx.x; p < N * N; p += THREADS) {
      const int i = p / N, j = p % N;
      if (j > i) continue;  // G is symmetric
      float sum = 0;
      for (int d = 0; d < D; ++d) sum = fmaf(x[i * X_PITCH + d], x[j * X_PITCH + d], sum);
      g[i * G_PITCH + j] = g[j * G_PITCH + i] = sum;
    }
    __syncthreads();
    for (int k = threadIdx.x * COLUMNS; k < K; k += THREADS * COLUMNS) {
      float sum[N][COLUMNS] = {};
#pragma unroll 4
      for (int n = 0; n < N; ++n) {
        float v[COLUMNS];
        unpack(ld<LOAD, float, COLUMNS>(y + n * K + k), v);
#pragma unroll
        for (int i = 0; i < N; ++i)
#pragma unroll
          for (int c = 0; c < COLUMNS; ++c) sum[i][c] = fmaf(g[n * G_PITCH + i], v[c], sum[i][c]);
      }
#pragma unroll
      for (int i = 0; i < N; ++i) st<0>(out + i * K + k, pack<float, COLUMNS>(sum[i]));
    }
  }
}
)";

class OptimizedFmF32Family : public CudaSpaceFamily {
 public:
  OptimizedFmF32Family()
      : CudaSpaceFamily("optimized_fm.columns", "optimized_fm",
                        {{"columns", {1, 2, 4}},
                         {"threads", {256, 512, 128, 384, 1024}},
                         {"persist", {2, 1, 3, 4, 6, 8}},
                         {"load", {0, 1, 2}}}) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    CudaKernelSource s;
    s.text = CudaSource()
                 .let("N", d.const_extents()[1])
                 .let("D", d.const_extents()[2])
                 .let("K", d.const_extents()[3])
                 .let("COLUMNS", v["columns"])
                 .let("THREADS", v["threads"])
                 .let("LOAD", v["load"])
                 .body(kBody)
                 .take();
    dispatch::CudaPhase p;
    p.symbol = "run";
    p.factors = {{0, 1}};
    p.threads = v["threads"];
    p.shared_bytes = static_cast<int>(shared_bytes(d));
    p.blocks_per_sm = v["persist"];
    s.plan.phases = {p};
    s.limits = any_problem(d, v["columns"] * 4);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  static int64_t shared_bytes(const Definition& d) {
    const int64_t n = d.const_extents()[1], width = d.const_extents()[2];
    return 4 * (n * ((n + 3) / 4 * 4) + n * (width + 1));
  }
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const int64_t n = d.const_extents()[1], k = d.const_extents()[3];
    if (element_bytes(d) != 4 || n > 128 || k % v["columns"] != 0) return false;
    const int64_t registers = n * v["columns"] + 40;
    if (registers > std::min<int64_t>(240, 65536 / (v["threads"] * v["persist"]))) return false;
    if (v["load"] != 0 && v["columns"] != 4) return false;
    return fits(t, v["threads"], shared_bytes(d), v["persist"]);
  }
  std::vector<Settings> seed_points(const Definition&, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (int columns : {2, 1, 4})
      for (int threads : {256, 512, 128})
        for (int persist : {2, 3, 1, 4})
          s.push_back({{"columns", columns}, {"threads", threads}, {"persist", persist}});
    return s;
  }
};

}  // namespace

void add_optimized_fm_f32_family(evolve::CudaFamilyRegistry& registry) {
  registry.add(std::make_shared<OptimizedFmF32Family>());
}

}  // namespace niche::ops_cuda
