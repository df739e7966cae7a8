// ikbo_linear_compression on Hopper's warpgroup instructions: out[b] = Wc Ec[b] + Wu Eu[user[b]], decomposed.
//
// The product is taken transposed, n as the rows of a tile of 128 and m as its `rows` columns: 433 is 2 x 224
// with 3 % to spare, and Ec lies with n contiguous, which the instruction reads as it is. Three launches:
//   pack        weights into the images that a stage holds (swizzled, k padded with zeros) and the tensor maps of
//               Ec, Eu and out, which are written on the device: a launch carries pointers alone
//   users       the users' part, one product a user, in the order in which `run` holds its accumulators
//   run         one product a candidate; its user's part is loaded under the last steps and added
// One warp copies by TMA into `stages` stages of 64 of k, two warpgroups of 64 rows multiply. A cluster of `cn` x
// `cm` blocks has neighbouring tiles: what two of them need is fetched once and multicast; without that the L2 is
// the limit (49 bytes a clock and multiprocessor, it gives about 30). A prototype with clusters of 2 x 2 took
// 410-433 us at 433x866x256, 1024 candidates, where cuBLAS takes 450; clusters of four fill 120 of 132
// multiprocessors, and a grid of more is a second wave: hence `idle`.
#include <algorithm>

#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/cuda_wgmma.h"
#include "runtime/ops/cuda/families.h"

namespace niche::ops_cuda {
namespace {

enum Axis { kM, kN, kKc, kKu, kB, kU };

constexpr int kRows = 128;       // n of a tile
constexpr int kStep = 64;        // k of a stage
constexpr int kMapsBytes = 512;  // three tensor maps of 128 bytes
constexpr int kStoreRows = 32;   // m of one store
constexpr int kSlots = 6;        // stores in flight, a warpgroup

constexpr std::string_view kBody = R"(
enum : int { STEPS_C = (KC + 63) / 64, STEPS_U = (KU + 63) / 64, MT = (M + TILE - 1) / TILE, NT = N / 128 };
enum : int { A_BYTES = 128 * 64 * 2, B_BYTES = TILE * 128, STAGE = A_BYTES + B_BYTES, SLOT = 32 * 128 };
enum : int { PEERS = CN + CM - 1, CLUSTER = CN * CM, GROUPS = MT / CM * (NT / CN), WORDS = TILE / 4 };
enum : i64 { IMAGE_C = (i64)MT * STEPS_C * B_BYTES, IMAGE_U = (i64)MT * STEPS_U * B_BYTES, USER = (i64)MT * NT * TILE * 256 };
enum : i64 { AT_C = 512, AT_U = AT_C + IMAGE_C, AT_USERS = AT_U + IMAGE_U };
extern __shared__ __align__(1024) unsigned char shared[];

#if __CUDA_ARCH_FEAT_SM90_ALL
// A map of three axes: pieces of 64 elements x `box` rows of one sample, swizzled by 128 bytes.
NI void write_map(unsigned char* map, u32 at, const void* tensor, u32 d0, u32 d1, u32 d2, u32 box) {
  for (int i = threadIdx.x; i < 32; i += 32) *(u32*)(shared + i * 4) = 0;
  __syncwarp();
  if (threadIdx.x == 0) {
    const u64 row = (u64)d0 * 2, sample = row * d1;
#define FIELD(name, type, letter, value) \
  asm volatile("tensormap.replace.tile." name ".shared::cta.b1024." type " [%0]," "%1;" :: "r"(at), letter(value) : "memory")
#define AXIS(name, axis, type, letter, value) \
  asm volatile("tensormap.replace.tile." name ".shared::cta.b1024." type " [%0], " axis ", %1;" :: "r"(at), letter(value) : "memory")
    FIELD("global_address", "b64", "l", tensor);
    asm volatile("tensormap.replace.tile.rank.shared::cta.b1024.b32 [%0], 2;" :: "r"(at) : "memory");
    AXIS("box_dim", "0", "b32", "r", 64);
    AXIS("box_dim", "1", "b32", "r", box);
    AXIS("box_dim", "2", "b32", "r", 1);
    AXIS("global_dim", "0", "b32", "r", d0);
    AXIS("global_dim", "1", "b32", "r", d1);
    AXIS("global_dim", "2", "b32", "r", d2);
    AXIS("global_stride", "0", "b64", "l", row);
    AXIS("global_stride", "1", "b64", "l", sample);
    AXIS("element_stride", "0", "b32", "r", 1);
    AXIS("element_stride", "1", "b32", "r", 1);
    AXIS("element_stride", "2", "b32", "r", 1);
    asm volatile("tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%0], 6;\n"
                 "tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [%0], 0;\n"
                 "tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%0], 3;\n"
                 "tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [%0], 0;" :: "r"(at) : "memory");
  }
  __syncwarp();
  asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;"
               :: "l"(map), "r"(at) : "memory");
  __syncwarp();
}
// Pieces of 16 bytes of the images [tile of m][step][row of m][64 k], a row's pieces permuted.
template <int K> NI void pack_weights(unsigned char* to, const u16* w) {
  enum : int { STEPS = (K + 63) / 64, PIECES = MT * STEPS * TILE * 8 };
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < PIECES; i += gridDim.x * blockDim.x) {
    const int c = i % 8, r = i / 8 % TILE, s = i / 8 / TILE % STEPS, row = i / 8 / TILE / STEPS * TILE + r, k = s * 64 + c * 8;
    u32 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const u32 lo = row < M && k + 2 * j < K ? w[(i64)row * K + k + 2 * j] : 0;
      const u32 hi = row < M && k + 2 * j + 1 < K ? w[(i64)row * K + k + 2 * j + 1] : 0;
      v[j] = hi << 16 | lo;
    }
    *(uint4*)(to + (i64)(i / 8) * 128 + (c ^ (r & 7)) * 16) = make_uint4(v[0], v[1], v[2], v[3]);
  }
}
NI u64 swizzled(u32 at) { return (u64)(at >> 4) | (u64)64 << 32 | (u64)1 << 62; }
NI void load_box(u32 to, const void* map, int x, int y, int z, u32 bar, u32 blocks) {
  if constexpr (CM > 1)
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;"
                 :: "r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar), "h"((u16)blocks) : "memory");
  else
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 :: "r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar) : "memory");
}
NI void load_image(u32 to, const void* from, u32 bytes, u32 bar, u32 blocks) {
  if constexpr (CN > 1)
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
                 :: "r"(to), "l"(from), "r"(bytes), "r"(bar), "h"((u16)blocks) : "memory");
  else bulk_load(to, from, bytes, bar);
}
NI void store_box(const void* map, u32 from, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
               :: "l"(map), "r"(x), "r"(y), "r"(z), "r"(from) : "memory");
}
NI void arrive_at(u32 bar, u32 block) {
  asm volatile("{\n.reg .b32 far;\nmapa.shared::cluster.u32 far, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [far];\n}"
               :: "r"(bar), "r"(block) : "memory");
}
NI void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
NI void group_sync(int group) { asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory"); }
NI void store_matrix4_trans(u32 at, const u32* r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};"
               :: "r"(at), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
NI void acquire_map(const void* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(map) : "memory");
}

// The products of `samples` samples; ADD: of candidates, else of users.
template <int K, bool ADD> NI void products(const Args& a, i64 samples) {
  enum : int { STEPS = (K + 63) / 64, LAST = (K - (STEPS - 1) * 64 + 15) / 16 };
  unsigned char* ws = (unsigned char*)a.ws;
  const void *map_in = ws + (ADD ? 0 : 128), *map_out = ws + 256;
  const unsigned char* image = ws + (ADD ? +AT_C : +AT_U);
  const u32 base = shared_address(shared), slots = base + STAGES * STAGE, bars = slots + 2 * SLOTS * SLOT;
  const u32 full = bars, empty = bars + 8 * STAGES;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  u32 rank = 0;
  if constexpr (CLUSTER > 1) asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  const int cn = rank % CN, cm = rank / CN;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) barrier_init(full + 8 * s, 1), barrier_init(empty + 8 * s, 2 * PEERS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async();
  }
  __syncthreads();
  if constexpr (CLUSTER > 1) cluster_sync();
  dependency_wait();
  const i64 jobs = samples * GROUPS, every = gridDim.x / CLUSTER;
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) {
      acquire_map(map_in);
      int slot = 0, parity = 1;
      for (i64 job = blockIdx.x / CLUSTER; job < jobs; job += every) {
        const int b = (int)(job / GROUPS), group = (int)(job % GROUPS);
        const int n0 = (group % (NT / CN) * CN + cn) * 128, tile = group / (NT / CN) * CM + cm;
        const unsigned char* w = image + (i64)tile * STEPS * B_BYTES;
        for (int s = 0; s < STEPS; ++s) {
          const u32 to = base + slot * STAGE, bar = full + 8 * slot;
          barrier_wait(empty + 8 * slot, parity);
          barrier_expect(bar, STAGE);
          if constexpr (CM > 1) {  // 64 of the 128 n for all that have the same n
            load_box(to + cm * 8192, map_in, n0 + cm * 64, s * 64, b, bar, (1u << cn) | (1u << (cn + CN)));
          } else {
            load_box(to, map_in, n0, s * 64, b, bar, 0);
            load_box(to + 8192, map_in, n0 + 64, s * 64, b, bar, 0);
          }
          const u32 part = B_BYTES / CN, from = cn * part;
          load_image(to + A_BYTES + from, w + (i64)s * B_BYTES + from, part, bar, 3u << (cm * CN));
          if (++slot == STAGES) slot = 0, parity ^= 1;
        }
      }
    }
    __syncwarp();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int group = warp / 4 - 1, thread = threadIdx.x % 128;
    // Whose slots this block reads from: those with the same n, those with the same m.
    const bool tells = thread % 32 == 0 && thread / 32 < PEERS;
    const int peer = thread / 32 < CN ? cm * CN + thread / 32 : (cm ^ 1) * CN + cn;
    const bool leader = thread == 0;
    int slot = 0, parity = 0, store = 0;
    const auto release = [&](int s) {
      if (tells) {
        if constexpr (CLUSTER > 1) arrive_at(empty + 8 * s, peer);
        else barrier_arrive(empty + 8 * s);
      }
    };
    if (ADD && leader) acquire_map(map_out);
    for (i64 job = blockIdx.x / CLUSTER; job < jobs; job += every) {
      const i64 b = job / GROUPS;
      const int part = (int)(job % GROUPS), nt = part % (NT / CN) * CN + cn, tile = part / (NT / CN) * CM + cm;
      float acc[TILE / 2];
      int before = -1;
      const auto step = [&](int count, bool first) {
        barrier_wait(full + 8 * slot, parity);
        const u32 at = base + slot * STAGE;
        const u64 da = swizzled(at + group * 8192), db = swizzled(at + A_BYTES);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < 4; ++k)
          if (k < count) multiply(acc, da + k * 128, db + k * 2, !(first && k == 0));
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (before >= 0) release(before);
        before = slot;
        if (++slot == STAGES) slot = 0, parity ^= 1;
      };
      constexpr int EARLY = STEPS > 6 ? STEPS - 6 : 0;
#pragma unroll 1
      for (int s = 0; s < EARLY; ++s) step(4, s == 0);
      u32 user[WORDS];
      u32* parts = (u32*)(ws + AT_USERS);
      if constexpr (ADD) {
        const i64 u = ((const i64*)a.p[4])[b];
        const uint4* from = (const uint4*)(parts + u * (USER / 4)) + (((i64)tile * NT + nt) * 2 + group) * (WORDS / 4) * 128 + thread;
#pragma unroll
        for (int i = 0; i < WORDS / 4; ++i)
          asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                       : "=r"(user[4 * i]), "=r"(user[4 * i + 1]), "=r"(user[4 * i + 2]), "=r"(user[4 * i + 3]) : "l"(from + i * 128));
      }
#pragma unroll 1
      for (int s = EARLY; s < STEPS - 1; ++s) step(4, s == 0);
      step(LAST, STEPS == 1);
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
      for (int i = 0; i < TILE / 2; ++i) asm volatile("" : "+f"(acc[i])::"memory");
      release(before);
      u32 w[WORDS];
#pragma unroll
      for (int i = 0; i < WORDS; ++i) {
        float x = acc[2 * i], y = acc[2 * i + 1];
        if constexpr (ADD) {
          const float2 u = Two<T>::unpack(user[i]);
          x += u.x, y += u.y;
        }
        w[i] = Two<T>::pack(x, y);
      }
      if constexpr (!ADD) {
        uint4* to = (uint4*)(parts + b * (USER / 4)) + (((i64)tile * NT + nt) * 2 + group) * (WORDS / 4) * 128 + thread;
#pragma unroll
        for (int i = 0; i < WORDS / 4; ++i) to[i * 128] = make_uint4(w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]);
      } else {
        const u32 mine = slots + group * (SLOTS * SLOT) + (lane % 8 + lane / 16 * 8) * 128 + (((warp % 4 * 2 + lane / 8 % 2) ^ (lane % 8)) * 16);
#pragma unroll
        for (int c = 0; c < TILE / 32; ++c) {
#pragma unroll
          for (int j = 0; j < 2; ++j) store_matrix4_trans(mine + store * SLOT + j * 2048, w + (c * 2 + j) * 4);
          fence_async();
          if (leader) bulk_wait_read<SLOTS - 2>();  // the next slot's store, SLOTS - 1 ago, has been read
          group_sync(group);
          if (leader) {
            store_box(map_out, slots + group * (SLOTS * SLOT) + store * SLOT, nt * 128 + group * 64, tile * TILE + c * 32, (int)b);
            bulk_commit();
          }
          if (++store == SLOTS) store = 0;
        }
      }
    }
    if (ADD && leader) bulk_wait_all();
  }
  if constexpr (CLUSTER > 1) cluster_sync();  // peers may still write here and arrive here
}
#endif

extern "C" __global__ void __launch_bounds__(256) pack(const __grid_constant__ Args a) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  dependents_launch();
  if (a.n[4] == 0) return;
  unsigned char* ws = (unsigned char*)a.ws;
  if (blockIdx.x == 0 && threadIdx.x < 32) {
    const u32 at = shared_address(shared);
    write_map(ws, at, a.p[2], N, KC, (u32)a.n[4], 64);
    write_map(ws + 128, at, a.p[3], N, KU, (u32)a.n[5], 64);
    write_map(ws + 256, at, a.p[5], N, M, (u32)a.n[4], 32);
  }
  pack_weights<KC>(ws + AT_C, (const u16*)a.p[0]);
  pack_weights<KU>(ws + AT_U, (const u16*)a.p[1]);
#endif
}

extern "C" __global__ void __launch_bounds__(384, 1) users(const __grid_constant__ Args a) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  dependents_launch();
  if (a.n[4] == 0) return;
  products<KU, false>(a, a.n[5]);
#endif
}

extern "C" __global__ void __launch_bounds__(384, 1) run(const __grid_constant__ Args a) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  if (a.n[4] == 0) return;
  products<KC, true>(a, a.n[4]);
#endif
}
)";

class IkboWgmmaFamily : public CudaSpaceFamily {
 public:
  IkboWgmmaFamily()
      : CudaSpaceFamily("ikbo.wgmma", "ikbo_linear_compression",
                        {{"rows", {224, 256, 192, 160, 128, 96, 64}},
                         {"cn", {2, 1}},
                         {"cm", {2, 1}},
                         {"stages", {4, 3, 5, 6}},
                         {"idle", {0, 12}}}) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    const auto c = d.const_extents();
    CudaKernelSource s;
    s.text = CudaSource()
                 .type("T", element(d))
                 .let("M", c[kM])
                 .let("N", c[kN])
                 .let("KC", c[kKc])
                 .let("KU", c[kKu])
                 .let("TILE", v["rows"])
                 .let("CN", v["cn"])
                 .let("CM", v["cm"])
                 .let("STAGES", v["stages"])
                 .let("SLOTS", kSlots)
                 .body(wgmma_text({"multiply", v["rows"], element(d) == "bf16", false, false, true}))
                 .body(kBody)
                 .take();
    dispatch::CudaPhase pack;
    pack.symbol = "pack";
    pack.factors = {{kM, 1}, {kKu, 32}};
    pack.threads = 256;
    pack.shared_bytes = 128;
    pack.blocks_per_sm = 4;
    dispatch::CudaPhase users;
    users.symbol = "users";
    users.factors = {{kU, 1}, {kM, v["rows"]}, {kN, kRows}};
    users.threads = 384;
    users.shared_bytes = static_cast<int>(shared_bytes(v));
    users.blocks_per_sm = 1;
    users.cluster = v["cn"] * v["cm"];
    users.overlap = true;
    dispatch::CudaPhase run = users;
    run.symbol = "run";
    run.factors[0] = {kB, 1};
    s.plan.phases = {pack, users, run};
    s.plan.sm_count = t.sm_count - v["idle"];
    const int64_t user = tiles(c[kM], v["rows"]) * (c[kN] / kRows) * v["rows"] * 256;
    const int64_t fixed = kMapsBytes + tiles(c[kM], v["rows"]) * v["rows"] * 128 *
                                           (tiles(c[kKc], kStep) + tiles(c[kKu], kStep));
    const int64_t most = std::clamp<int64_t>((kWorkspaceBytes - fixed) / user, 1, 4096);
    s.plan.workspace_bytes = fixed + most * user;
    s.limits = any_problem(d, 16);
    s.limits.var[1].hi = most;
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  static constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;

  static int64_t tiles(int64_t extent, int64_t each) { return (extent + each - 1) / each; }
  static int64_t shared_bytes(const View& v) {
    return v["stages"] * (kRows * kStep * 2 + v["rows"] * kStep * 2) + 2 * kSlots * kStoreRows * 128 +
           16 * v["stages"];
  }
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const auto c = d.const_extents();
    if (t.capability != 90 || element_bytes(d) != 2 || c[kN] % kRows != 0) return false;
    if (c[kN] / kRows % v["cn"] != 0 || tiles(c[kM], v["rows"]) % v["cm"] != 0) return false;
    if (tiles(c[kM], v["rows"]) * v["rows"] >= c[kM] + 128 && v["rows"] > 64) return false;
    // Other clusters than those of four find room everywhere.
    if (v["idle"] != 0 && v["cn"] * v["cm"] != 4) return false;
    if (v["rows"] / 2 + v["rows"] / 4 + 40 > 232) return false;
    if (c[kM] * c[kN] > 1 << 22 || c[kM] * (c[kKc] + c[kKu]) > 1 << 22) return false;
    return shared_bytes(v) <= t.shared_bytes_per_block;
  }
  std::vector<Settings> seed_points(const Definition&, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (int rows : {224, 256, 192, 160, 128, 96, 64})
      for (int cn : {2, 1})
        for (int cm : {2, 1})
          for (int stages : {4, 5, 3})
            for (int idle : {12, 0})
              s.push_back({{"rows", rows}, {"cn", cn}, {"cm", cm}, {"stages", stages}, {"idle", idle}});
    return s;
  }
};

}  // namespace

void add_ikbo_wgmma_family(evolve::CudaFamilyRegistry& registry) {
  registry.add(std::make_shared<IkboWgmmaFamily>());
}

}  // namespace niche::ops_cuda
