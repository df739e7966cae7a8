// ikbo_linear_compression: out[b] = Wc Ec[b] + (Wu Eu)[user[b]]. Phase 1 multiplies each user once into the
// workspace; phase 2 multiplies each candidate and adds the user's term in the epilogue of its first block of
// depth. Blocks are summed apart, then added: one chain of 2,000 additions would err three times as much as
// the library.
//
// Both are products of a constant matrix (M x K) with a large row-major one (K x N), blocked for the caches:
// `depth` rows of E at a time, so that their share of the weights stays in L2 while strips of lanes * nr
// columns pass; a strip is copied to contiguous scratch by the first register tile that uses it (rows of E
// lie N floats apart: in place they would fall into a few sets of L1) and stays in L1 for all rows of the
// weights.
//
// Schedules: `lanes`; register tile `mr` x `nr`; `depth`; `columns` of N a task (0: all); `pack`: weights
// reordered once, tile by tile, by the pack entry, or read in place; `ahead` prefetches the next strip;
// `users`: largest U, which sets the workspace; `unroll` and `pin` as in gemm_text.h.
#include "runtime/ops/cpu/gemm_families.h"
#include "runtime/ops/cpu/gemm_text.h"
#include "runtime/ops/cpu/space_family.h"

namespace niche::ops_cpu {
namespace {

constexpr std::string_view kBody = R"(
constexpr Blocks TILES(M, MR);
constexpr Strips STRIPS(N, COLUMNS, NR);
constexpr long MOST_ROWS = largest(M, MR);
constexpr long CHUNKS = (N + COLUMNS - 1) / COLUMNS;
constexpr int N_TAIL = N % W;

struct Io { const float* w; const float* e; const float* first; float* out; float* copy; long depth; };

// WHERE: 0 reads E and copies, 1 reads the copy. K: row length of the weights where they are not packed.
template <int R, int NV, int LAST, int WHERE, long K> NICHE_INLINE void tile(const Io& io) {
  constexpr long A_ROW = PACK ? 1 : K, A_K = PACK ? R : 1;
  F acc[R][NV] = {};
  if constexpr (WHERE == 1) multiply<R, NV, A_ROW, A_K, NV * W>(acc, io.w, io.copy, io.depth);
  else multiply<R, NV, A_ROW, A_K, N, LAST, true, AHEAD>(acc, io.w, io.e, io.depth, {io.copy, NV * W});
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) {
      float* p = io.out + r * N + n * W;
      F v = acc[r][n];
      if (io.first != nullptr)
        v += n + 1 < NV ? load<W>(io.first + r * N + n * W) : load_first<LAST>(io.first + r * N + n * W);
      if (n + 1 < NV) store(p, v);
      else store_first<LAST>(p, v);
    }
}
template <int R, int NV, int LAST, int WHERE, long K> NICHE_INLINE void tile_of(long rows, const Io& io) {
  if constexpr (R > TILES.base) {
    if (rows < R) return tile_of<R - 1, NV, LAST, WHERE, K>(rows, io);
  }
  tile<R, NV, LAST, WHERE, K>(io);
}
template <int NV, int LAST, long K> __attribute__((noinline)) static void strip(Io io) {
  for (long i = 0; i < TILES.count; ++i) {
    const long rows = TILES.start(i + 1) - TILES.start(i);
    if (i == 0) tile_of<MOST_ROWS, NV, LAST, 0, K>(rows, io);
    else tile_of<MOST_ROWS, NV, LAST, 1, K>(rows, io);
    io.w += PACK ? rows * io.depth : rows * K;
    io.out += rows * N;
    if (io.first != nullptr) io.first += rows * N;
  }
}
template <int NV, long K> NICHE_INLINE void strip_of(long vectors, bool partial, const Io& io) {
  if constexpr (NV > STRIPS.least) {
    if (vectors < NV) return strip_of<NV - 1, K>(vectors, partial, io);
  }
  if constexpr (N_TAIL > 0) {
    if (partial) return strip<NV, N_TAIL, K>(io);
  }
  strip<NV, W, K>(io);
}

// Columns [from, to) of out = first + w e; out and first (null: zeros) point at column 0.
template <long K> NICHE_INLINE void product(const float* w, const float* e, const float* first, float* out, long from, long to,
                                            float* copy) {
  constexpr Blocks depths(K, DEPTH);
  const Blocks strips((to - from + W - 1) / W, NR);
  for (long d = 0; d < depths.count; ++d) {
    const long k = depths.start(d), depth = depths.start(d + 1) - k;
    const float* init = d == 0 ? first : out;
    for (long s = 0; s < strips.count; ++s) {
      const long at = from + strips.start(s) * W, vectors = strips.start(s + 1) - strips.start(s);
      strip_of<STRIPS.most, PACK ? 0 : K>(vectors, at + vectors * W > N,
                      {w + (PACK ? k * M : k), e + k * N + at, init != nullptr ? init + at : nullptr, out + at, copy, depth});
    }
  }
}

template <long K> NICHE_INLINE void pack_weights(const float* w, float* out) {
  constexpr Blocks depths(K, DEPTH);
  for (long d = 0; d < depths.count; ++d)
    for (long i = 0; i < TILES.count; ++i)
      for (long k = depths.start(d); k < depths.start(d + 1); ++k)
        for (long r = TILES.start(i); r < TILES.start(i + 1); ++r) *out++ = w[r * K + k];
}
extern "C" void pack@(const NicheKernelArgs* a, void* out) {
  pack_weights<KC>((const float*)a->p[0], (float*)out);
  pack_weights<KU>((const float*)a->p[1], (float*)out + M * KC);
}

extern "C" void users@(const NicheKernelArgs* a, long begin, long end) {
  alignas(64) float copy[DEPTH * NR * W];
  const float* w = PACK ? (const float*)a->packed + M * KC : (const float*)a->p[1];
  for (long task = begin; task < end; ++task) {
    const long u = task / CHUNKS, from = task % CHUNKS * COLUMNS;
    product<KU>(w, (const float*)a->p[3] + u * KU * N, nullptr, (float*)a->ws + u * M * N, from, lmin(from + COLUMNS, N),
                copy);
  }
}
extern "C" void candidates@(const NicheKernelArgs* a, long begin, long end) {
  alignas(64) float copy[DEPTH * NR * W];
  const float* w = PACK ? (const float*)a->packed : (const float*)a->p[0];
  for (long task = begin; task < end; ++task) {
    const long b = task / CHUNKS, from = task % CHUNKS * COLUMNS, u = ((const long*)a->p[4])[b];
    product<KC>(w, (const float*)a->p[2] + b * KC * N, (const float*)a->ws + u * M * N, (float*)a->p[5] + b * M * N, from,
                lmin(from + COLUMNS, N), copy);
  }
}
)";

class IkboFamily : public SpaceFamily {
 public:
  IkboFamily()
      : SpaceFamily("ikbo_linear_compression.panels", "ikbo_linear_compression",
                    {{"lanes", {8, 16}},
                     {"mr", {6, 4, 5, 3, 8, 12, 14}},
                     {"nr", {2, 3, 4, 1}},
                     {"depth", {192, 128, 160, 256, 320, 448, 64}},
                     {"columns", {0, 128, 64, 32}},
                     {"pack", {1, 0}},
                     {"ahead", {1, 0}},
                     {"unroll", {2, 1, 4}},
                     {"pin", {1, 0}},
                     {"users", {16, 4, 64}},
                     {"serial", {64, 16, 256}}}) {}

  KernelSource render(const Definition& d, const CpuTarget& t, const Point& point,
                      std::string_view suffix) const override {
    const View v(*this, point);
    const auto n = d.const_extents();
    const int64_t columns = v["columns"] ? v["columns"] : n[1];
    KernelSource s;
    s.text = SourceBuilder(suffix)
                 .let("W", v["lanes"])
                 .let("M", n[0])
                 .let("N", n[1])
                 .let("KC", n[2])
                 .let("KU", n[3])
                 .let("MR", tightest({n[0]}, v["mr"]))
                 .let("NR", tightest_strips(n[1], columns, v["lanes"], v["nr"]))
                 .let("DEPTH", tightest({n[2], n[3]}, v["depth"]))
                 .let("COLUMNS", columns)
                 .let("PACK", v["pack"])
                 .let("AHEAD", v["ahead"])
                 .let("UNROLL", v["unroll"])
                 .let("PIN", v["pin"])
                 .body(gemm_text())
                 .body(kBody)
                 .take();
    const std::string end(suffix);
    const int64_t least = parallel_min_tasks(v["serial"], n[0] * columns);
    s.plan.phases = {{"users" + end, {{5, 1}, {1, columns}}, least},
                     {"candidates" + end, {{4, 1}, {1, columns}}, least}};
    if (v["pack"]) {
      s.plan.pack_symbol = "pack" + end;
      s.plan.packed_bytes = n[0] * (n[2] + n[3]) * int64_t{sizeof(float)};
    }
    s.plan.workspace_bytes = v["users"] * n[0] * n[1] * int64_t{sizeof(float)};
    s.limits = any_problem(d);
    s.limits.var[1].hi = v["users"];
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CpuTarget& t, const View& v) const override {
    const auto n = d.const_extents();
    if (is_bf16(d) || (v["lanes"] == 16 && !t.avx512)) return false;
    if (tile_registers(v["mr"], v["nr"]) > (t.avx512 ? 32 : 16) || v["mr"] * v["nr"] < 8) return false;
    if (int64_t{v["depth"]} * v["nr"] * v["lanes"] * 4 > (96 << 10)) return false;
    if (v["columns"] && (v["columns"] >= n[1] || v["columns"] % v["lanes"] != 0)) return false;
    return t.threads > 1 || v["serial"] == params().back().values[0];
  }

  std::vector<Settings> seed_points(const Definition&, const CpuTarget& t) const override {
    std::vector<Settings> s;
    if (t.avx512) {
      s.push_back({{"lanes", 16}, {"mr", 14}, {"nr", 2}, {"columns", t.threads > 1 ? 128 : 0}});
      s.push_back({{"lanes", 16}, {"mr", 8}, {"nr", 3}, {"columns", t.threads > 1 ? 128 : 0}});
    }
    if (t.threads > 1) s.push_back({{"mr", 6}, {"nr", 2}, {"columns", 128}});
    s.push_back({{"mr", 6}, {"nr", 2}, {"depth", 192}});
    s.push_back({{"mr", 4}, {"nr", 3}, {"depth", 192}});
    s.push_back({{"mr", 6}, {"nr", 2}, {"depth", 320}});
    s.push_back({{"mr", 6}, {"nr", 2}, {"depth", 128}, {"unroll", 4}});
    s.push_back({{"mr", 6}, {"nr", 2}, {"depth", 256}, {"pack", 0}});
    return s;
  }
};

}  // namespace

void add_ikbo(evolve::FamilyRegistry& registry) { registry.add(std::make_shared<IkboFamily>()); }

}  // namespace niche::ops_cpu
