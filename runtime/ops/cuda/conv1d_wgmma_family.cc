// conv1d on Hopper's warpgroup instructions: the implicit GEMM of conv1d_family.cc with weights as A in
// registers and X as B in shared memory, by roles.
//
// One warp loads whole samples by bulk copies into `slots` raw slots; three warps transpose each into
// [ci/8][l][8 ci] (ldmatrix.trans, stmatrix), in which a tap is 16 bytes on the descriptor's start; one
// warpgroup for 64 output channels multiplies and writes its rows back into the raw slot, from which they are
// stored. The structure is that of the H200 prototype (50.5 us at B=2048 where a copy takes 39): raw slots
// matter most there (2 of them: 91 us). Weights come through shared memory (`staged`), in rows padded by 16 bytes so
// that a warp's words lie in different banks; gathered from global memory they kept small batches waiting. With four
// slots they borrow the last two, which are filled with samples once the weights are in registers.
#include <algorithm>

#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/cuda_wgmma.h"
#include "runtime/ops/cuda/families.h"

namespace niche::ops_cuda {
namespace {

constexpr std::string_view kBody = R"(
// A row of T is an l, OFF rows before the piece's first one. CUT: pieces of a sample, with 8 l more on either side.
enum : int { KS = CI / 16, OFF = CUT ? 8 : +PAD, LP = CUT ? NT + 16 : NT + K - 1, T_BYTES = CI / 8 * LP * 16 };
enum : int { RAW_PITCH = (NT + 16) * 2, SLOT = (CI > CO ? +CI : +CO) * (CUT ? +RAW_PITCH : NT * 2) };
enum : int { THREADS = 128 + WGS * 128, W_ROW = CI * K * 2, W_PITCH = W_ROW + 16, BORROWED = STAGED && SLOTS >= 4 ? 2 : 0 };
extern __shared__ __align__(128) unsigned char shared[];

#if __CUDA_ARCH_FEAT_SM90_ALL
NI void store_matrix4(u32 at, const u32* r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};"
               :: "r"(at), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
NI void group_sync(int group) { asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory"); }

// A of row block `row` for every tap and 16 input channels: words of two channels of one tap, put together
// from W[co][ci][tap] as it lies.
NI void load_weights(u32 (&w)[K][KS][4], const u16* from, int row, int q) {
#pragma unroll
  for (int k = 0; k < KS; ++k)
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int co = row + part % 2 * 8, ci = k * 16 + part / 2 * 8 + q * 2;
      u32 word[K];  // 2 K elements: the taps of ci, then those of ci + 1
      const u32* p = (const u32*)(from + (STAGED ? co * (W_PITCH / 2) + ci * K : (co * CI + ci) * K));
#pragma unroll
      for (int i = 0; i < K; ++i) word[i] = co < CO ? (STAGED ? p[i] : __ldg(p + i)) : 0;
#pragma unroll
      for (int tap = 0; tap < K; ++tap) {
        const int a = tap, b = K + tap;
        const u32 lo = a % 2 ? 0x32 : 0x10, hi = b % 2 ? 0x76 : 0x54;
        w[tap][k][part] = __byte_perm(word[a / 2], word[b / 2], hi << 8 | lo);
      }
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1) run(const __grid_constant__ Args a) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  const int L = (int)a.n[1];
  const u32 pieces = CUT ? (L + NT - 1) / NT : 1;
  const i64 tasks = a.n[0] * pieces;
  if (tasks == 0) return;
  unsigned char *raw = shared, *t = shared + SLOTS * SLOT;
  const u32 bars = shared_address(t + TS * T_BYTES);
  const u32 raw_full = bars, raw_free = bars + 8 * SLOTS, t_full = bars + 16 * SLOTS, t_free = t_full + 8 * TS;
  const u32 w_full = t_free + 8 * TS, w_taken = w_full + 8;
  unsigned char* staged = BORROWED ? raw + (SLOTS - 2) * SLOT : t + TS * T_BYTES + 16 * (SLOTS + TS + 1);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u32 in_bytes = CI * L * 2, pitch = CUT ? +RAW_PITCH : L * 2;
  const unsigned char* x = (const unsigned char*)a.p[0];
  // One sample, or the rows of one piece (by the whole warp).
  const auto load = [&](i64 task, int slot) {
    const u32 bar = raw_full + 8 * slot, to = shared_address(raw + slot * SLOT);
    if constexpr (CUT) {
      const i64 b = task / pieces;
      const int l0 = (int)(task - b * pieces) * NT, from = l0 > 8 ? l0 - 8 : 0, end = l0 + NT + 8 < L ? l0 + NT + 8 : L;
      const u32 bytes = (end - from) * 2;
      if (lane == 0) barrier_expect(bar, CI * bytes);
      __syncwarp();
      for (int ci = lane; ci < CI; ci += 32) bulk_load(to + ci * RAW_PITCH, x + ((b * CI + ci) * L + from) * 2, bytes, bar);
    } else if (lane == 0) {
      barrier_expect(bar, in_bytes);
      bulk_load(to, x + task * in_bytes, in_bytes, bar);
    }
  };
  if (warp == 0) {
    if (lane == 0) {
      for (int s = 0; s < SLOTS; ++s) barrier_init(raw_full + 8 * s, 1), barrier_init(raw_free + 8 * s, WGS);
      for (int s = 0; s < TS; ++s) barrier_init(t_full + 8 * s, 96), barrier_init(t_free + 8 * s, 4 * WGS);
      barrier_init(w_full, 1), barrier_init(w_taken, 4 * WGS);
      fence_async();
    }
    __syncwarp();
    for (int s = 0; s < SLOTS - BORROWED; ++s) {
      if (blockIdx.x + (i64)s * gridDim.x < tasks) load(blockIdx.x + (i64)s * gridDim.x, s);
      if constexpr (STAGED) {
        if (s == 0) {
          if (lane == 0) barrier_expect(w_full, CO * W_ROW);
          __syncwarp();
          for (int r = lane; r < CO; r += 32)
            bulk_load(shared_address(staged) + r * W_PITCH, (const unsigned char*)a.p[1] + r * W_ROW, W_ROW, w_full);
        }
      }
    }
  } else {
    for (int i = threadIdx.x - 32; i < TS * T_BYTES / 16; i += THREADS - 32) ((uint4*)t)[i] = make_uint4(0, 0, 0, 0);
    fence_async();
  }
  __syncthreads();
  if (warp < 4) {
    if constexpr (WGS > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (warp == 0) {
      if constexpr (BORROWED > 0) {
        barrier_wait(w_taken, 0);
        for (int s = SLOTS - BORROWED; s < SLOTS; ++s)
          if (blockIdx.x + (i64)s * gridDim.x < tasks) load(blockIdx.x + (i64)s * gridDim.x, s);
      }
      int slot = 0, parity = 0;
      for (i64 task = blockIdx.x + (i64)SLOTS * gridDim.x; task < tasks; task += gridDim.x) {
        if (CUT || lane == 0) {
          barrier_wait(raw_free + 8 * slot, parity);
          load(task, slot);
        }
        if (++slot == SLOTS) slot = 0, parity ^= 1;
      }
    } else {
      int slot = 0, parity = 0, stage = 0, t_parity = 1;
      // Four blocks of 8 channels at one block of 8 l: a lane's row of a block, in and out.
      const u32 in_lane = lane * pitch, out_lane = (lane / 8) * (LP * 16) + lane % 8 * 16;
      for (i64 task = blockIdx.x; task < tasks; task += gridDim.x) {
        barrier_wait(t_free + 8 * stage, t_parity);
        barrier_wait(raw_full + 8 * slot, parity);
        const int l0 = CUT ? (int)(task % pieces) * NT : 0, l_from = CUT && l0 > 8 ? l0 - 8 : 0;
        const int l_end = CUT && l0 + NT + 8 < L ? l0 + NT + 8 : L, blocks = (l_end - l_from) / 8, work = CI / 32 * blocks;
        const u32 from = shared_address(raw + slot * SLOT) + in_lane;
        const u32 to = shared_address(t + stage * T_BYTES) + out_lane + (l_from - l0 + OFF) * 16;
        int block = warp - 1, left = (work - block + 2) / 3;
        u32 in = from + block * 16, out = to + block * 128;
        if constexpr (CUT) {  // what lies outside the sample is 0, whatever the piece before left there
          const int low = l_from - l0 + OFF, high = l_end - l0 + OFF, rows = low + LP - high;
          for (int i = (warp - 1) * 32 + lane; i < CI / 8 * rows; i += 96) {
            const int r = i % rows;
            ((uint4*)(t + stage * T_BYTES))[i / rows * LP + (r < low ? r : r - low + high)] = make_uint4(0, 0, 0, 0);
          }
        }
        const u32 in_wrap = 32 * pitch - blocks * 16, out_wrap = 4 * (LP * 16) - blocks * 128;
        while (block >= blocks) block -= blocks, in += in_wrap, out += out_wrap;
        while (left > 0) {
          u32 r[BATCH][4], at[BATCH];
#pragma unroll
          for (int j = 0; j < BATCH; ++j) {
            at[j] = out;
            if (j < left) ldmatrix4_trans(r[j], in);
            block += 3, in += 48, out += 384;
            while (block >= blocks) block -= blocks, in += in_wrap, out += out_wrap;
          }
#pragma unroll
          for (int j = 0; j < BATCH; ++j)
            if (j < left) store_matrix4(at[j], r[j]);
          left -= BATCH;
        }
        fence_async();
        barrier_arrive(t_full + 8 * stage);
        if (++slot == SLOTS) slot = 0, parity ^= 1;
        if (++stage == TS) stage = 0, t_parity ^= 1;
      }
    }
  } else {
    if constexpr (WGS > 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(WGS == 2 ? 232 : 152));
    const int group = warp / 4 - 1, g = lane / 4, q = lane % 4, row = group * 64 + warp % 4 * 16 + g;
    u32 w[K][KS][4];
    if constexpr (STAGED) {
      barrier_wait(w_full, 0);
      load_weights(w, (const u16*)staged, row, q);
      // In registers, before the slots are filled again.
#pragma unroll
      for (int tap = 0; tap < K; ++tap)
#pragma unroll
        for (int k = 0; k < KS; ++k)
#pragma unroll
          for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(w[tap][k][i])::"memory");
      __syncwarp();
      if (lane == 0) barrier_arrive(w_taken);
    } else {
      load_weights(w, (const u16*)a.p[1], row, q);
    }
    float add[2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
      add[h] = HAS_BIAS && row + h * 8 < CO ? to_float(((const T*)a.p[2])[row + h * 8]) : 0.0f;
    unsigned char* y = (unsigned char*)a.p[3];
    const int rows = CO - group * 64 < 64 ? CO - group * 64 : 64;
    const bool leader = threadIdx.x % 128 == 0;
    int slot = 0, stage = 0, t_parity = 0, before = -1;
    for (i64 task = blockIdx.x; task < tasks; task += gridDim.x) {
      const i64 b = CUT ? task / pieces : task;
      const int l0 = CUT ? (int)(task - b * pieces) * NT : 0, count = CUT && l0 + NT < L ? +NT : L - l0;
      barrier_wait(t_full + 8 * stage, t_parity);
      // Start address, then strides between blocks of 8 channels and of 8 l; no swizzle.
      const u64 desc = (u64)((shared_address(t + stage * T_BYTES) >> 4) + OFF - PAD) | (u64)LP << 16 | (u64)8 << 32;
      float acc[NT / 2];
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
      for (int k = 0; k < KS; ++k)
#pragma unroll
        for (int tap = 0; tap < K; ++tap)
          wgmma(acc, w[tap][k], desc + k * 2 * LP + tap, k + tap > 0);
      asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
      for (int i = 0; i < NT / 2; ++i) asm volatile("" : "+f"(acc[i])::"memory");
      if (lane == 0) barrier_arrive(t_free + 8 * stage);
      unsigned char* out = raw + slot * SLOT;
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (row + h * 8 < CO) {
#pragma unroll
          for (int n = 0; n < NT / 8; ++n)
            if (n * 8 < count)
              *(u32*)(out + (row + h * 8) * pitch + (n * 8 + q * 2) * 2) =
                  Two<T>::pack(acc[n * 4 + h * 2] + add[h], acc[n * 4 + h * 2 + 1] + add[h]);
        }
      if constexpr (CUT) {
        group_sync(group);
        const int per = count / 8;
        for (int i = threadIdx.x % 128; i < rows * per; i += 128) {
          const int r = group * 64 + i / per, c = i % per;
          *(uint4*)(y + ((b * CO + r) * L + l0 + c * 8) * 2) = *(const uint4*)(out + r * pitch + c * 16);
        }
        group_sync(group);
        if (leader) barrier_arrive(raw_free + 8 * slot);
      } else {
        fence_async();
        group_sync(group);
        if (leader) {
          bulk_store(y + (b * CO + group * 64) * L * 2, shared_address(out) + group * 64 * L * 2, rows * L * 2);
          bulk_commit();
          if (before >= 0) {
            bulk_wait_read<1>();
            barrier_arrive(raw_free + 8 * before);
          }
        }
      }
      before = slot;
      if (++slot == SLOTS) slot = 0;
      if (++stage == TS) stage = 0, t_parity ^= 1;
    }
    if (leader) bulk_wait_all();
  }
#endif
}
)";

class Conv1dWgmmaFamily : public CudaSpaceFamily {
 public:
  Conv1dWgmmaFamily()
      : CudaSpaceFamily("conv1d.wgmma", "conv1d",
                        {{"staged", {1, 0}},
                         {"cut", {0, 1}},
                         {"n", {200, 56, 64, 72, 96, 104, 128, 160, 192, 208, 256}},
                         {"slots", {4, 3, 2, 1}},
                         {"ts", {2, 1}},
                         {"batch", {1, 2, 4, 5}}}) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    const auto c = d.const_extents();
    CudaKernelSource s;
    s.text = CudaSource()
                 .type("T", element(d))
                 .let("CI", c[2])
                 .let("CO", c[3])
                 .let("K", c[4])
                 .let("PAD", static_cast<int64_t>(d.attr("padding")))
                 .let("HAS_BIAS", d.attr("has_bias") != 0)
                 .let("STAGED", v["staged"])
                 .let("CUT", v["cut"])
                 .let("NT", v["n"])
                 .let("SLOTS", v["slots"])
                 .let("TS", v["ts"])
                 .let("BATCH", v["batch"])
                 .let("WGS", groups(d))
                 .body(wgmma_text({"wgmma", v["n"], element(d) == "bf16"}))
                 .body(kBody)
                 .take();
    dispatch::CudaPhase p;
    p.symbol = "run";
    p.factors = {{0, 1}};
    if (v["cut"]) p.factors.push_back({1, v["n"]});
    p.threads = static_cast<int>(128 + groups(d) * 128);
    p.shared_bytes = static_cast<int>(shared_bytes(d, v));
    p.blocks_per_sm = 1;
    s.plan.phases = {p};
    s.limits = any_problem(d, 16);
    s.limits.var[1] = {8, v["cut"] ? 1 << 20 : v["n"], 8};
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  static int64_t groups(const Definition& d) { return (d.const_extents()[3] + 63) / 64; }
  static int64_t shared_bytes(const Definition& d, const View& v) {
    const auto c = d.const_extents();
    const int64_t pitch = v["cut"] ? v["n"] + 16 : v["n"], rows = v["cut"] ? v["n"] + 16 : v["n"] + c[4] - 1;
    return v["slots"] * std::max(c[2], c[3]) * pitch * 2 + v["ts"] * c[2] * rows * 2 + 16 * v["slots"] +
           16 * v["ts"] + 16 + (v["staged"] != 0 && v["slots"] < 4 ? staged_bytes(d) : 0);
  }
  static int64_t staged_bytes(const Definition& d) {
    const auto c = d.const_extents();
    return c[3] * (c[2] * c[4] * 2 + 16);
  }
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const auto c = d.const_extents();
    if (t.capability != 90 || element_bytes(d) != 2 || c[2] % 32 != 0 || c[3] % 8 != 0 || groups(d) > 2)
      return false;
    if (v["cut"] ? c[4] > 9 : v["slots"] < 2) return false;
    if (v["staged"] != 0) {
      if (v["cut"] || c[2] * c[4] % 8 != 0) return false;
      if (v["slots"] >= 4 && staged_bytes(d) > 2 * std::max(c[2], c[3]) * v["n"] * 2) return false;
    }
    if (2 * static_cast<int64_t>(d.attr("padding")) != c[4] - 1 || (c[2] * c[4]) % 2 != 0) return false;
    const int64_t registers = c[4] * c[2] / 16 * 4 + v["n"] / 2 + 40;
    return registers <= (groups(d) == 1 ? 255 : 232) && shared_bytes(d, v) <= t.shared_bytes_per_block;
  }
  std::vector<Settings> seed_points(const Definition&, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (int staged : {1, 0})
      for (int n : {200, 256, 128, 64})
        for (int slots : {4, 3, 2})
          for (int ts : {2, 1})
            for (int batch : {2, 1})
              s.push_back({{"staged", staged}, {"n", n}, {"slots", slots}, {"ts", ts}, {"batch", batch}});
    for (int n : {104, 72, 56, 64, 128})
      for (int batch : {2, 4})
        s.push_back({{"staged", 0}, {"cut", 1}, {"n", n}, {"slots", 1}, {"ts", 1}, {"batch", batch}});
    return s;
  }
};

}  // namespace

void add_conv1d_wgmma_family(evolve::CudaFamilyRegistry& registry) {
  registry.add(std::make_shared<Conv1dWgmmaFamily>());
}

}  // namespace niche::ops_cuda
