// sdpa_decode: attention of one new token a sequence over its S keys, grouped queries: the G = Hq / Hk query
// heads of a key head read its keys and values once.
//
// `lanes` lanes hold one key's D values, the other lanes of a warp further keys, `unroll` keys each in
// flight; `warps` warps of a block and `split` blocks share a head's keys, each with its own running maximum
// and sum; they are merged through shared memory, and over the blocks by a second kernel. No tensor cores:
// with up to 8 query heads a key head the arithmetic is a fifth of what the memory takes. A prototype with
// 16 splits read 8 x 4096 keys on an H200 in 9.4 us; 32 and 64 splits lost, and so did a cluster a head. Not
// run yet.
#include <algorithm>

#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/families.h"
#include "runtime/ops/cuda/sdpa_decode_plan.h"

namespace niche::ops_cuda {
namespace {

using namespace sdpa_decode;

constexpr std::string_view kBody = R"(
enum : int { THREADS = WARPS * 32, G = HQ / HK, PER = D / LANES, VEC = 16 / (int)sizeof(T), CHUNKS = PER / VEC,
             KEYS = 32 / LANES, STEP = KEYS * UNROLL, PART = D + 2 };
#define NOTHING -1e30f

// One lane's share of a key's or a query's D values.
template <int HINT> NI void load_share(const T* row, int lane, Vec<T, VEC>* v) {
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) v[c] = ld<HINT, T, VEC>(row + (c * LANES + lane) * VEC);
}
NI void unpack_share(const Vec<T, VEC>* v, float* f) {
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) unpack(v[c], f + c * VEC);
}

extern "C" __global__ void __launch_bounds__(THREADS) run(const __grid_constant__ Args a) {
  const T *query = (const T*)a.p[0], *key = (const T*)a.p[1], *value = (const T*)a.p[2];
  const i64 batch = a.n[0], keys = a.n[1];
  if constexpr (SPLIT > 1) dependents_launch();
  if (batch == 0) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % LANES, slot = threadIdx.x % 32 / LANES;
  __shared__ float parts[WARPS][G][PART];
  for (i64 job = blockIdx.x; job < batch * HK * SPLIT; job += gridDim.x) {
    const i64 head = job / SPLIT;  // (sequence, key head)
    const int split = (int)(job % SPLIT);
    const i64 each = (keys + SPLIT - 1) / SPLIT, begin = split * each;
    const i64 end = begin + each < keys ? begin + each : keys;
    float q[G][PER], out[G][PER] = {}, top[G], sum[G] = {};
#pragma unroll
    for (int g = 0; g < G; ++g) {
      Vec<T, VEC> v[CHUNKS];
      load_share<0>(query + (head * G + g) * D, lane, v);
      unpack_share(v, q[g]);
#pragma unroll
      for (int i = 0; i < PER; ++i) q[g][i] *= SCALE_LOG2;
      top[g] = NOTHING;
    }
    const T *k0 = key + head * keys * D, *v0 = value + head * keys * D;
    for (i64 at = begin + warp * STEP; at < end; at += WARPS * STEP) {
      Vec<T, VEC> kv[UNROLL][CHUNKS], vv[UNROLL][CHUNKS];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        const i64 k = at + u * KEYS + slot;
        load_share<LOAD>(k0 + (k < end ? k : end - 1) * D, lane, kv[u]);
      }
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        const i64 k = at + u * KEYS + slot;
        load_share<LOAD>(v0 + (k < end ? k : end - 1) * D, lane, vv[u]);
      }
      float score[UNROLL][G];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        float f[PER];
        unpack_share(kv[u], f);
        const bool in = at + u * KEYS + slot < end;
#pragma unroll
        for (int g = 0; g < G; ++g) {
          float s = 0;
#pragma unroll
          for (int i = 0; i < PER; ++i) s = fmaf(q[g][i], f[i], s);
#pragma unroll
          for (int d = LANES / 2; d > 0; d /= 2) s += __shfl_xor_sync(~0u, s, d);
          score[u][g] = in ? s : NOTHING;
        }
      }
#pragma unroll
      for (int g = 0; g < G; ++g) {
        float higher = top[g];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) higher = fmaxf(higher, score[u][g]);
        const float shrink = exp2f(top[g] - higher);
        top[g] = higher;
        sum[g] *= shrink;
#pragma unroll
        for (int i = 0; i < PER; ++i) out[g][i] *= shrink;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
          // A lane without a key yet has no maximum either: its difference would be 0.
          score[u][g] = score[u][g] <= NOTHING ? 0.0f : exp2f(score[u][g] - higher);
          sum[g] += score[u][g];
        }
      }
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        float f[PER];
        unpack_share(vv[u], f);
#pragma unroll
        for (int g = 0; g < G; ++g)
#pragma unroll
          for (int i = 0; i < PER; ++i) out[g][i] = fmaf(score[u][g], f[i], out[g][i]);
      }
    }
    // The lanes of a warp that had other keys, then the warps.
#pragma unroll
    for (int g = 0; g < G; ++g)
#pragma unroll
      for (int d = LANES; d < 32; d *= 2) {
        const float other = __shfl_xor_sync(~0u, top[g], d), higher = fmaxf(top[g], other);
        const float mine = exp2f(top[g] - higher), theirs = exp2f(other - higher);
        top[g] = higher;
        sum[g] = sum[g] * mine + __shfl_xor_sync(~0u, sum[g], d) * theirs;
#pragma unroll
        for (int i = 0; i < PER; ++i) out[g][i] = out[g][i] * mine + __shfl_xor_sync(~0u, out[g][i], d) * theirs;
      }
    __syncthreads();
    if (slot == 0)
#pragma unroll
      for (int g = 0; g < G; ++g) {
#pragma unroll
        for (int i = 0; i < PER; ++i) parts[warp][g][(i / VEC * LANES + lane) * VEC + i % VEC] = out[g][i];
        if (lane == 0) parts[warp][g][D] = top[g], parts[warp][g][D + 1] = sum[g];
      }
    __syncthreads();
    for (int o = threadIdx.x; o < G * D; o += THREADS) {
      const int g = o / D, i = o % D;
      float higher = NOTHING, total = 0, v = 0;
#pragma unroll
      for (int w = 0; w < WARPS; ++w) higher = fmaxf(higher, parts[w][g][D]);
#pragma unroll
      for (int w = 0; w < WARPS; ++w) {
        const float share = exp2f(parts[w][g][D] - higher);
        total = fmaf(parts[w][g][D + 1], share, total);
        v = fmaf(parts[w][g][i], share, v);
      }
      if constexpr (SPLIT > 1) {
        float* to = (float*)a.ws + ((head * G + g) * SPLIT + split) * PART;
        to[i] = v;
        if (i == 0) to[D] = higher, to[D + 1] = total;
      } else {
        ((T*)a.p[3])[(head * G + g) * D + i] = from_float<T>(v / total);
      }
    }
  }
}

// One query head a block: its splits' parts into the answer.
extern "C" __global__ void __launch_bounds__(128) merge(const __grid_constant__ Args a) {
  dependency_wait();
  for (i64 head = blockIdx.x; head < a.n[0] * HQ; head += gridDim.x) {
    const float* from = (const float*)a.ws + head * SPLIT * PART;
    float higher = NOTHING;
#pragma unroll
    for (int s = 0; s < SPLIT; ++s) higher = fmaxf(higher, from[s * PART + D]);
    float total = 0;
#pragma unroll
    for (int s = 0; s < SPLIT; ++s) total = fmaf(from[s * PART + D + 1], exp2f(from[s * PART + D] - higher), total);
    for (int i = threadIdx.x; i < D; i += 128) {
      float v = 0;
#pragma unroll
      for (int s = 0; s < SPLIT; ++s) v = fmaf(from[s * PART + i], exp2f(from[s * PART + D] - higher), v);
      ((T*)a.p[3])[head * D + i] = from_float<T>(v / total);
    }
  }
}
)";

class SdpaDecodeFamily : public CudaSpaceFamily {
 public:
  SdpaDecodeFamily()
      : CudaSpaceFamily("sdpa_decode.lanes", "sdpa_decode",
                        {{"lanes", {16, 8, 32, 4}},
                         {"unroll", {4, 2, 1, 8}},
                         {"warps", {8, 4, 2, 16}},
                         {"split", {16, 1, 2, 4, 8, 32, 64}},
                         {"load", {1, 0, 2}}}) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    const auto extents = d.const_extents();
    const int64_t hq = extents[kHq], hk = extents[kHk], width = extents[kD];
    CudaKernelSource s;
    s.text = CudaSource()
                 .type("T", element(d))
                 .let("HQ", hq)
                 .let("HK", hk)
                 .let("D", width)
                 .let("LANES", v["lanes"])
                 .let("UNROLL", v["unroll"])
                 .let("WARPS", v["warps"])
                 .let("SPLIT", v["split"])
                 .let("LOAD", v["load"])
                 .let_float("SCALE_LOG2", scale_log2(d))
                 .body(kBody)
                 .take();
    dispatch::CudaPhase p;
    p.symbol = "run";
    p.factors = {{kB, 1}, {kHk, 1}, {kD, width / v["split"]}};
    p.threads = v["warps"] * 32;
    s.plan.phases = {p};
    s.limits = any_problem(d, 16);
    merge_splits(&s, d, t, v["split"], 128);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CudaTarget&, const View& v) const override {
    const auto extents = d.const_extents();
    const int64_t width = extents[kD], vec = 16 / element_bytes(d);
    if (extents[kHq] % extents[kHk] != 0 || width % (v["lanes"] * vec) != 0 || width % v["split"] != 0)
      return false;
    const int64_t heads = extents[kHq] / extents[kHk], per = width / v["lanes"];
    // Queries, sums and what is in flight, a lane; the parts of all warps.
    const int64_t registers =
        2 * heads * per + heads * (2 + v["unroll"]) + 2 * v["unroll"] * per * element_bytes(d) / 4 + per + 30;
    if (registers > std::min<int64_t>(240, 65536 / (v["warps"] * 32))) return false;
    return v["warps"] * heads * (width + 2) * 4 <= 48 << 10;
  }
  std::vector<Settings> seed_points(const Definition& d, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (int lanes : {16, 8, 32, 4})
      for (int split : {16, 8, 4, 2, 1})
        for (int unroll : {4, 2, 1})
          for (int warps : {8, 4})
            if (d.const_extents()[kD] / lanes <= 32)
              s.push_back({{"lanes", lanes}, {"split", split}, {"unroll", unroll}, {"warps", warps}});
    return s;
  }
};

}  // namespace

void add_sdpa_decode_family(evolve::CudaFamilyRegistry& registry) {
  registry.add(std::make_shared<SdpaDecodeFamily>());
}

}  // namespace niche::ops_cuda
