// embedding_bag: sums (or means) of table rows, a bag of them an output row.
//
// `lanes` threads share a row, `groups` of them share a bag's rows (added up in shared memory), `unroll` rows
// in flight; what is left of a block's threads are further bags. Row indices come from the same address for
// all lanes of a row: one broadcast. Not run yet.
#include <algorithm>

#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/families.h"

namespace niche::ops_cuda {
namespace {

constexpr std::string_view kBody = R"(
enum : int { TEAM = LANES * GROUPS, BAGS = THREADS / TEAM, CHUNKS = (D / VEC + LANES - 1) / LANES };

extern "C" __global__ void __launch_bounds__(THREADS) run(const __grid_constant__ Args a) {
  const T* table = (const T*)a.p[0];
  const i64 *index = (const i64*)a.p[1], *offset = (const i64*)a.p[2];
  T* y = (T*)a.p[3];
  const i64 total = a.n[2], bags = a.n[3];
  const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES % GROUPS, slot = threadIdx.x / TEAM;
  for (i64 base = (i64)blockIdx.x * BAGS; base < bags; base += (i64)gridDim.x * BAGS) {
    const i64 bag = base + slot;
    const bool has = bag < bags;
    const i64 begin = has ? offset[bag] : 0;
    const i64 end = !has ? 0 : bag + 1 < bags ? offset[bag + 1] : total;
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      const int column = (chunk * LANES + lane) * VEC;
      const bool in = column < D;
      float sum[VEC] = {};
      for (i64 i = begin + group; i < end; i += UNROLL * GROUPS) {
        Vec<T, VEC> row[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
          if (in && i + u * GROUPS < end) row[u] = ld_constant<T, VEC>(table + index[i + u * GROUPS] * D + column);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
          if (in && i + u * GROUPS < end) {
            float f[VEC];
            unpack(row[u], f);
#pragma unroll
            for (int j = 0; j < VEC; ++j) sum[j] += f[j];
          }
      }
      if constexpr (GROUPS > 1) {
        __shared__ float sums[THREADS * VEC];
        __syncthreads();
#pragma unroll
        for (int j = 0; j < VEC; ++j) sums[j * THREADS + threadIdx.x] = sum[j];
        __syncthreads();
        if (group == 0)
#pragma unroll
          for (int other = 1; other < GROUPS; ++other)
#pragma unroll
            for (int j = 0; j < VEC; ++j) sum[j] += sums[j * THREADS + threadIdx.x + other * LANES];
      }
      if (!has || !in || group != 0) continue;
      if constexpr (MEAN)
        if (end > begin) {
          const float count = (float)(end - begin);
#pragma unroll
          for (int j = 0; j < VEC; ++j) sum[j] /= count;
        }
      st<0>(y + bag * D + column, pack<T, VEC>(sum));
    }
  }
}
)";

class EmbeddingBagFamily : public CudaSpaceFamily {
 public:
  EmbeddingBagFamily()
      : CudaSpaceFamily("embedding_bag.rows", "embedding_bag",
                        {{"vec", {4, 8, 2, 1}},
                         {"lanes", {16, 32, 8, 64, 128, 4}},
                         {"groups", {1, 2, 4, 8}},
                         {"unroll", {4, 2, 8, 1}},
                         {"threads", {256, 128, 512, 64}},
                         {"persist", {0, 4, 8, 16}}}) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    CudaKernelSource s;
    s.text = CudaSource()
                 .type("T", element(d))
                 .let("D", d.const_extents()[1])
                 .let("MEAN", d.attr("mean") != 0)
                 .let("VEC", v["vec"])
                 .let("LANES", v["lanes"])
                 .let("GROUPS", v["groups"])
                 .let("UNROLL", v["unroll"])
                 .let("THREADS", v["threads"])
                 .body(kBody)
                 .take();
    dispatch::CudaPhase p;
    p.symbol = "run";
    p.factors = {{3, v["threads"] / (v["lanes"] * v["groups"])}};
    p.threads = v["threads"];
    p.blocks_per_sm = v["persist"];
    s.plan.phases = {p};
    s.limits = any_problem(d, std::max(8, v["vec"] * element_bytes(d)));
    s.limits.var[0].lo = 0;  // no index at all: every bag is empty
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const int64_t width = d.const_extents()[1], vectors = width / v["vec"];
    const int team = v["lanes"] * v["groups"];
    if (v["vec"] * element_bytes(d) > 16 || width % v["vec"] != 0 || team > v["threads"]) return false;
    // Lanes that would all stand idle, and loads in flight that registers do not hold.
    if (v["lanes"] >= 2 * vectors || v["unroll"] * v["vec"] * element_bytes(d) > 128) return false;
    return v["persist"] * v["threads"] <= t.threads_per_sm;
  }
  std::vector<Settings> seed_points(const Definition& d, const CudaTarget&) const override {
    std::vector<Settings> s;
    const int64_t width = d.const_extents()[1];
    for (int vec : {16 / element_bytes(d), 4, 2, 1}) {
      int lanes = 4;
      while (lanes < 128 && lanes * vec < width) lanes *= 2;
      for (int groups : {1, 2, 4})
        for (int unroll : {4, 8, 2})
          s.push_back({{"vec", vec}, {"lanes", lanes}, {"groups", groups}, {"unroll", unroll}});
    }
    return s;
  }
};

}  // namespace

void add_embedding_bag_family(evolve::CudaFamilyRegistry& registry) {
  registry.add(std::make_shared<EmbeddingBagFamily>());
}

}  // namespace niche::ops_cuda
