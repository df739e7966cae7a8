// sdpa_decode on tensor cores: the up to 16 query heads of a key head are the rows of m16n8k16.
//
// A warp has its own keys, `keys` at a time, and its own ring of `stages` tiles of K and V filled by cp.async: no
// barrier of the block until the warps' parts are merged. `split` blocks share a head's keys; a second kernel
// merges them. With 8 heads x 4096 keys and 16 splits, all that a block reads is in flight at once. The form
// without tensor cores (sdpa_decode_family.cc) held queries and sums of all heads in each lane, 237 registers,
// and took 12.5 us where SDPA takes 11.6; a prototype of this structure took 9.4.
#include <algorithm>

#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/families.h"
#include "runtime/ops/cuda/sdpa_decode_plan.h"

namespace niche::ops_cuda {
namespace {

using namespace sdpa_decode;

constexpr std::string_view kBody = R"(
enum : int { THREADS = WARPS * 32, G = HQ / HK, ROWS = G > 8 ? 2 : 1, PITCH = D * 2 + 16, TILE = KEYS * PITCH,
             STAGE = 2 * TILE, PART = D + 2, CHUNKS = D / 8 };
#define NOTHING -1e30f
extern __shared__ __align__(16) unsigned char shared[];

NI float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
  return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
}
NI float quad_sum(float v) {
  v += __shfl_xor_sync(~0u, v, 1);
  return v + __shfl_xor_sync(~0u, v, 2);
}
// KEYS rows of D values by one warp; rows from `real` on become zeros.
NI void load_rows(u32 to, const T* from, i64 real, int lane) {
#pragma unroll
  for (int i = 0; i < KEYS * CHUNKS / 32; ++i) {
    const int r = (i * 32 + lane) / CHUNKS, c = (i * 32 + lane) % CHUNKS;
    const bool in = r < real;
    copy16_async_or_zero(to + r * PITCH + c * 16, in ? from + r * D + c * 8 : from, in);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) run(const __grid_constant__ Args a) {
  const i64 batch = a.n[0], keys = a.n[1];
  if constexpr (SPLIT > 1) dependents_launch();
  if (batch == 0) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const u32 ring = shared_address(shared) + warp * (STAGES * STAGE);
  const i64 tiles = (keys + KEYS - 1) / KEYS;
  for (i64 job = blockIdx.x; job < batch * HK * SPLIT; job += gridDim.x) {
    const i64 head = job / SPLIT;  // (sequence, key head)
    const int split = (int)(job % SPLIT);
    const i64 last = tiles * (split + 1) / SPLIT;
    const T *k0 = (const T*)a.p[1] + head * keys * D, *v0 = (const T*)a.p[2] + head * keys * D;
    i64 next = tiles * split / SPLIT + warp;
    const auto load = [&](int slot) {
      if (next < last) {
        load_rows(ring + slot * STAGE, k0 + next * KEYS * D, keys - next * KEYS, lane);
        load_rows(ring + slot * STAGE + TILE, v0 + next * KEYS * D, keys - next * KEYS, lane);
      }
      copies_commit();
      next += WARPS;
    };
    i64 tile = next;
#pragma unroll
    for (int s = 0; s < STAGES; ++s) load(s);
    u32 query[D / 16][4];
    const T* rows = (const T*)a.p[0] + head * G * D;
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = g + i % 2 * 8;
        query[k][i] = row < G ? *(const u32*)(rows + row * D + k * 16 + i / 2 * 8 + q * 2) : 0;
      }
    float out[D / 8][4] = {}, top[ROWS], sum[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) top[r] = NOTHING, sum[r] = 0;
    int slot = 0;
#pragma unroll 1
    for (; tile < last; tile += WARPS) {
      copies_wait<STAGES - 1>();
      __syncwarp();
      const u32 kt = ring + slot * STAGE, vt = kt + TILE;
      float score[KEYS / 8][4] = {};
#pragma unroll
      for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
        for (int k = 0; k < D / 32; ++k) {
          u32 kf[4];
          ldmatrix4(kf, kt + (n * 8 + lane % 8) * PITCH + (k * 4 + lane / 8) * 16);
          mma<T>(score[n], query[2 * k], kf[0], kf[1]);
          mma<T>(score[n], query[2 * k + 1], kf[2], kf[3]);
        }
      const int left = (int)(keys - tile * KEYS < KEYS ? keys - tile * KEYS : KEYS);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        float higher = NOTHING;
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& s = score[n][2 * r + i];
            s = n * 8 + q * 2 + i < left ? s * SCALE_LOG2 : NOTHING;
            higher = fmaxf(higher, s);
          }
        higher = fmaxf(top[r], quad_max(higher));  // a tile has a key: not NOTHING
        const float shrink = exp2f(top[r] - higher);
        top[r] = higher;
        sum[r] *= shrink;
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) sum[r] += score[n][2 * r + i] = exp2f(score[n][2 * r + i] - higher);
#pragma unroll
        for (int n = 0; n < D / 8; ++n) out[n][2 * r] *= shrink, out[n][2 * r + 1] *= shrink;
      }
#pragma unroll
      for (int k = 0; k < KEYS / 16; ++k) {
        u32 p[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* s = score[2 * k + i / 2] + i % 2 * 2;
          p[i] = i % 2 < ROWS ? Two<T>::pack(s[0], s[1]) : 0;
        }
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
          u32 vf[4];
          ldmatrix4_trans(vf, vt + (k * 16 + lane % 16) * PITCH + (n * 2 + lane / 16) * 16);
          mma<T>(out[2 * n], p, vf[0], vf[1]);
          mma<T>(out[2 * n + 1], p, vf[2], vf[3]);
        }
      }
      __syncwarp();
      load(slot);
      if (++slot == STAGES) slot = 0;
    }
    copies_wait<0>();
    __syncthreads();  // the rings become the warps' parts
    float* part = (float*)shared + warp * (G * PART);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int row = g + r * 8;
      const float total = quad_sum(sum[r]);
      if (row < G) {
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
          *(float2*)(part + row * PART + n * 8 + q * 2) = make_float2(out[n][2 * r], out[n][2 * r + 1]);
        if (q == 0) part[row * PART + D] = top[r], part[row * PART + D + 1] = total;
      }
    }
    __syncthreads();
    for (int o = threadIdx.x; o < G * D; o += THREADS) {
      const int row = o / D, i = o % D;
      const float* p = (const float*)shared + row * PART;
      float higher = NOTHING, total = 0, v = 0;
#pragma unroll
      for (int w = 0; w < WARPS; ++w) higher = fmaxf(higher, p[w * G * PART + D]);
#pragma unroll
      for (int w = 0; w < WARPS; ++w) {
        const float share = exp2f(p[w * G * PART + D] - higher);
        total = fmaf(p[w * G * PART + D + 1], share, total);
        v = fmaf(p[w * G * PART + i], share, v);
      }
      if constexpr (SPLIT > 1) {
        float* to = (float*)a.ws + ((head * G + row) * SPLIT + split) * PART;
        to[i] = v;
        if (i == 0) to[D] = higher, to[D + 1] = total;
      } else {
        ((T*)a.p[3])[(head * G + row) * D + i] = from_float<T>(v / total);
      }
    }
    __syncthreads();
  }
}

// One query head a block: its splits' parts into the answer.
extern "C" __global__ void __launch_bounds__(D) merge(const __grid_constant__ Args a) {
  dependency_wait();
  const int i = threadIdx.x;
  for (i64 head = blockIdx.x; head < a.n[0] * HQ; head += gridDim.x) {
    const float* from = (const float*)a.ws + head * SPLIT * PART;
    float tops[SPLIT], sums[SPLIT], values[SPLIT], higher = NOTHING, total = 0, v = 0;
#pragma unroll
    for (int s = 0; s < SPLIT; ++s) {
      values[s] = from[s * PART + i];
      const float2 end = *(const float2*)(from + s * PART + D);
      tops[s] = end.x, sums[s] = end.y;
    }
#pragma unroll
    for (int s = 0; s < SPLIT; ++s) higher = fmaxf(higher, tops[s]);
#pragma unroll
    for (int s = 0; s < SPLIT; ++s) {
      const float share = exp2f(tops[s] - higher);
      total = fmaf(sums[s], share, total);
      v = fmaf(values[s], share, v);
    }
    ((T*)a.p[3])[head * D + i] = from_float<T>(v / total);
  }
}
)";

class SdpaDecodeMmaFamily : public CudaSpaceFamily {
 public:
  SdpaDecodeMmaFamily()
      : CudaSpaceFamily("sdpa_decode.mma", "sdpa_decode",
                        {{"keys", {32, 16, 64}},
                         {"warps", {8, 4, 2, 16}},
                         {"stages", {1, 2, 3, 4}},
                         {"split", {16, 1, 2, 4, 8, 32}}}) {}

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
                 .let("KEYS", v["keys"])
                 .let("WARPS", v["warps"])
                 .let("STAGES", v["stages"])
                 .let("SPLIT", v["split"])
                 .let_float("SCALE_LOG2", scale_log2(d))
                 .body(kBody)
                 .take();
    dispatch::CudaPhase p;
    p.symbol = "run";
    p.factors = {{kB, 1}, {kHk, 1}, {kD, width / v["split"]}};
    p.threads = v["warps"] * 32;
    p.shared_bytes = static_cast<int>(shared_bytes(d, v));
    s.plan.phases = {p};
    s.limits = any_problem(d, 16);
    merge_splits(&s, d, t, v["split"], static_cast<int>(width));
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  static int64_t shared_bytes(const Definition& d, const View& v) {
    const auto extents = d.const_extents();
    const int64_t width = extents[kD], heads = extents[kHq] / extents[kHk];
    return std::max(v["warps"] * v["stages"] * 2 * v["keys"] * (width * 2 + 16),
                    v["warps"] * heads * (width + 2) * 4);
  }
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const auto extents = d.const_extents();
    const int64_t width = extents[kD];
    if (element_bytes(d) != 2 || extents[kHq] % extents[kHk] != 0 || extents[kHq] / extents[kHk] > 16)
      return false;
    if (width % 32 != 0 || width > 256 || width % v["split"] != 0 || v["keys"] * width % 256 != 0)
      return false;
    const int64_t registers = width / 4 + width / 2 + v["keys"] / 2 + 40;
    if (registers > std::min<int64_t>(255, 65536 / (v["warps"] * 32))) return false;
    return shared_bytes(d, v) <= t.shared_bytes_per_block;
  }
  std::vector<Settings> seed_points(const Definition&, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (int split : {16, 8, 4, 2, 1})
      for (int keys : {32, 16})
        for (int warps : {8, 4})
          for (int stages : {1, 2, 3})
            s.push_back({{"keys", keys}, {"warps", warps}, {"stages", stages}, {"split", split}});
    return s;
  }
};

}  // namespace

void add_sdpa_decode_mma_family(evolve::CudaFamilyRegistry& registry) {
  registry.add(std::make_shared<SdpaDecodeMmaFamily>());
}

}  // namespace niche::ops_cuda
