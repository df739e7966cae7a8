// mbdt: the bin of each value among its feature's sorted borders, all features in one launch.
//
// Borders lie in shared memory; `search` 0 counts borders that do not lie at or above the value (K up to 64),
// 1 halves uniformly. `each` values a thread, 16-byte loads where the batch allows it. NaN is above every
// border, as torch.bucketize has it. In a CUDA graph this is launch and two latencies whatever is chosen.
#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/families.h"

namespace niche::ops_cuda {
namespace {

constexpr std::string_view kBody = R"(
extern "C" __global__ void __launch_bounds__(THREADS) run(const __grid_constant__ Args a) {
  __shared__ float border[K];
  const i64 batch = a.n[2];
  if (batch == 0) return;
  constexpr int PIECE = THREADS * EACH;
  const u32 pieces = (u32)((batch + PIECE - 1) / PIECE);
  const u32 f = blockIdx.x / pieces, piece = blockIdx.x - f * pieces;
  if (f >= F) return;
  const float* x = (const float*)a.p[0] + f * batch;
  i64* bin = (i64*)a.p[2] + f * batch;
  const i64 first = (i64)piece * PIECE + threadIdx.x * EACH;
  float v[EACH];
  const bool whole = first + EACH <= batch && batch % EACH == 0;
  if (whole) {
    const Vec<float, EACH> q = ld<0, float, EACH>(x + first);
    unpack(q, v);
  } else {
#pragma unroll
    for (int e = 0; e < EACH; ++e) v[e] = first + e < batch ? x[first + e] : 0.0f;
  }
  const float* edge = (const float*)a.p[1] + f * K;
  if constexpr (SHARED) {
    for (int i = threadIdx.x; i < K; i += THREADS) border[i] = edge[i];
    __syncthreads();
    edge = border;
  }
  int at[EACH] = {};
  if constexpr (SEARCH) {
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      for (int n = K; n > 1;) {
        const int half = n / 2;
        at[e] += edge[at[e] + half - 1] >= v[e] ? 0 : half;
        n -= half;
      }
      at[e] += edge[at[e]] >= v[e] ? 0 : 1;
    }
  } else {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const float b = SHARED ? edge[k] : __ldg(edge + k);
#pragma unroll
      for (int e = 0; e < EACH; ++e) at[e] += b >= v[e] ? 0 : 1;
    }
  }
  const i64 offset = (i64)f * (K + 1);
  if (whole && EACH >= 2) {
#pragma unroll
    for (int e = 0; e + 1 < EACH; e += 2) {
      longlong2 q;
      q.x = at[e] + offset, q.y = at[e + 1] + offset;
      *(longlong2*)(bin + first + e) = q;
    }
  } else {
#pragma unroll
    for (int e = 0; e < EACH; ++e)
      if (first + e < batch) bin[first + e] = at[e] + offset;
  }
}
)";

class MbdtFamily : public CudaSpaceFamily {
 public:
  MbdtFamily()
      : CudaSpaceFamily("mbdt.shared", "mbdt",
                        {{"threads", {256, 128, 64, 512, 1024}},
                         {"each", {4, 2, 1}},
                         {"search", {0, 1}},
                         {"shared", {1, 0}}}) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    CudaKernelSource s;
    s.text = CudaSource()
                 .let("F", d.const_extents()[0])
                 .let("K", d.const_extents()[1])
                 .let("THREADS", v["threads"])
                 .let("EACH", v["each"])
                 .let("SEARCH", v["search"])
                 .let("SHARED", v["shared"])
                 .body(kBody)
                 .take();
    dispatch::CudaPhase p;
    p.symbol = "run";
    p.factors = {{0, 1}, {2, int64_t{v["threads"]} * v["each"]}};
    p.threads = v["threads"];
    s.plan.phases = {p};
    s.limits = any_problem(d, 16);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CudaTarget&, const View& v) const override {
    const int64_t borders = d.const_extents()[1];
    if (v["search"] == 0 && borders > 64) return false;
    if (v["search"] == 1 && borders < 8) return false;
    return borders * 4 <= 40960 && d.const_extents()[0] < (1 << 20);
  }
  std::vector<Settings> seed_points(const Definition& d, const CudaTarget&) const override {
    std::vector<Settings> s;
    const int search = d.const_extents()[1] > 64 ? 1 : 0;
    for (int each : {4, 2, 1})
      for (int threads : {256, 128, 512})
        for (int shared : {1, 0})
          s.push_back({{"threads", threads}, {"each", each}, {"search", search}, {"shared", shared}});
    return s;
  }
};

}  // namespace

void add_mbdt_family(evolve::CudaFamilyRegistry& registry) { registry.add(std::make_shared<MbdtFamily>()); }

}  // namespace niche::ops_cuda
