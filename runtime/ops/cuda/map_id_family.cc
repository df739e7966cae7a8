// map_id: 1 + position of an id in a sorted table, 0 where it is not there.
//
// `table` 1: the whole table in shared memory (80 KB for 10,000 ids), searched without branches by uniform
// halving (n -> n - n/2): a power-of-two window makes all probes of a level collide in the banks (31.5 us
// against 13 for a million values on an H200). `table` 0: every `every`-th id in shared memory, then the rest
// of the way in global memory, for tables that do not fit. `bulk` loads by the copy engine.
#include <algorithm>

#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/families.h"

namespace niche::ops_cuda {
namespace {

constexpr std::string_view kBody = R"(
extern __shared__ __align__(16) unsigned char shared[];

// First position in [0, n) whose id is not below v, counted from `from`: uniform halving.
template <int COUNT> NI int lower(const i64* table, i64 v) {
  int at = 0;
#pragma unroll
  for (int n = COUNT; n > 1;) {
    const int half = n / 2;
    at += table[at + half - 1] < v ? half : 0;
    n -= half;
  }
  return at + (table[at] < v ? 1 : 0);
}

extern "C" __global__ void __launch_bounds__(THREADS) run(const __grid_constant__ Args a) {
  i64* ids = (i64*)shared;
  const i64* table = (const i64*)a.p[1];
  const i64 count = a.n[0];
  if (count == 0) return;
#if __CUDA_ARCH__ >= 900
  if constexpr (TABLE && BULK) {
    __shared__ __align__(8) u64 barrier;
    const u32 bar = shared_address(&barrier);
    constexpr u32 BYTES = T * 8 / 16 * 16;
    if (threadIdx.x == 0) {
      barrier_init(bar, 1);
      fence_async();
      barrier_expect(bar, BYTES);
      constexpr u32 PIECE = 32768;
      for (u32 at = 0; at < BYTES; at += PIECE)
        bulk_load(shared_address(ids) + at, (const char*)table + at, BYTES - at < PIECE ? BYTES - at : PIECE, bar);
      if constexpr (T % 2 != 0) ids[T - 1] = table[T - 1];
    }
    __syncthreads();
    barrier_wait(bar, 0);
  } else
#endif
  if constexpr (TABLE) {
    for (int i = threadIdx.x; i < T / 2; i += THREADS) copy16_async(shared_address(ids) + i * 16, table + i * 2);
    if (T % 2 != 0 && threadIdx.x == 0) ids[T - 1] = table[T - 1];
    copies_commit();
    copies_wait<0>();
    __syncthreads();
  } else {
    for (int i = threadIdx.x; i < MARKS; i += THREADS) {
      const int at = (i + 1) * EVERY - 1;
      ids[i] = table[at < T ? at : T - 1];
    }
    __syncthreads();
  }
  const i64* values = (const i64*)a.p[0];
  i64* index = (i64*)a.p[2];
  for (i64 base = (i64)blockIdx.x * THREADS * EACH; base < count; base += (i64)gridDim.x * THREADS * EACH) {
    i64 v[EACH];
    int at[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const i64 i = base + e * THREADS + threadIdx.x;
      v[e] = i < count ? values[i] : 0;
    }
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      if constexpr (TABLE) {
        at[e] = lower<T>(ids, v[e]);
      } else {
        const int mark = lower<MARKS>(ids, v[e]);
        int lo = (mark < MARKS ? mark : MARKS - 1) * EVERY, n = T - lo < EVERY ? T - lo : EVERY;
        while (n > 1) {
          const int half = n / 2;
          lo += __ldg(table + lo + half - 1) < v[e] ? half : 0;
          n -= half;
        }
        at[e] = lo + (__ldg(table + lo) < v[e] ? 1 : 0);
      }
    }
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const i64 i = base + e * THREADS + threadIdx.x;
      if (i >= count) continue;
      const bool found = at[e] < T && (TABLE ? ids[at[e] < T ? at[e] : 0] : __ldg(table + (at[e] < T ? at[e] : 0))) == v[e];
      index[i] = found ? at[e] + 1 : 0;
    }
  }
}
)";

class MapIdFamily : public CudaSpaceFamily {
 public:
  MapIdFamily()
      : CudaSpaceFamily("map_id.shared", "map_id",
                        {{"table", {1, 0}},
                         {"every", {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048}},
                         {"threads", {512, 256, 1024, 128}},
                         {"each", {1, 2, 4}},
                         {"persist", {2, 1, 4, 8}},
                         {"bulk", {1, 0}}}) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    const int64_t ids = d.const_extents()[1];
    const int64_t marks = (ids + v["every"] - 1) / v["every"];
    CudaKernelSource s;
    s.text = CudaSource()
                 .let("T", ids)
                 .let("TABLE", v["table"])
                 .let("EVERY", v["every"])
                 .let("MARKS", marks)
                 .let("THREADS", v["threads"])
                 .let("EACH", v["each"])
                 .let("BULK", v["bulk"])
                 .body(kBody)
                 .take();
    dispatch::CudaPhase p;
    p.symbol = "run";
    p.factors = {{0, int64_t{v["threads"]} * v["each"]}};
    p.threads = v["threads"];
    p.shared_bytes = static_cast<int>(8 * (v["table"] ? ids : marks));
    p.blocks_per_sm = v["persist"];
    s.plan.phases = {p};
    s.limits = any_problem(d, v["table"] ? 16 : 8);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const int64_t ids = d.const_extents()[1];
    if (v["table"] != (v["every"] == 1 ? 1 : 0) || (v["bulk"] && (t.capability < 90 || !v["table"])))
      return false;
    if (ids > (int64_t{1} << 30)) return false;
    const int64_t bytes = 8 * (v["table"] ? ids : (ids + v["every"] - 1) / v["every"]);
    if (bytes + 64 > t.shared_bytes_per_block) return false;
    // 1 KB a block is the system's.
    return v["persist"] * (bytes + 1024 + 64) <= t.shared_bytes_per_sm &&
           v["persist"] * v["threads"] <= t.threads_per_sm;
  }
  std::vector<Settings> seed_points(const Definition& d, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (int bulk : {0, 1})
      for (int persist : {2, 1, 4})
        for (int threads : {1024, 512, 256})
          s.push_back({{"threads", threads}, {"persist", persist}, {"bulk", bulk}});
    const int64_t ids = d.const_extents()[1];
    int every = 8;
    while (every < 128 && ids / every > 10000) every *= 2;
    // Every block reads the marks from memory first, 32 bytes for each: few marks, where few values come.
    for (int e : {every, 512, 1024, 2048, 256})
      for (int persist : {2, 1, 4})
        s.push_back({{"table", 0}, {"every", e}, {"threads", 512}, {"persist", persist}, {"bulk", 0}});
    return s;
  }
};

}  // namespace

void add_map_id_family(evolve::CudaFamilyRegistry& registry) {
  registry.add(std::make_shared<MapIdFamily>());
}

}  // namespace niche::ops_cuda
