// optimized_fm in Gram order: G = X X^T (N x N, N being small), then out = G Y, one sample after the other.
//
// G by dot products of rows, which need no transpose: only tiles at or below the diagonal (half the work),
// `gi` x 4 sums each, then mirrored. out in strips of lanes * nr columns: a strip of Y (N rows) and G stay in
// L1, and the depth of the product is N, so short that the tile's start and end count: hence `unroll`.
//
// Schedules: `lanes`; register tile `mr` x `nr` of the strips; `gi` rows of a tile of G; `unroll`; `copy` a
// strip of Y to contiguous scratch while the first tile uses it (rows of Y that are not a multiple of 64
// bytes make every second load straddle two lines); `ahead` prefetches the next strip of Y and out and,
// spread over the strips, the next sample's X; `stream` writes out past the caches; `chunk` columns a task
// (0: all), each recomputing G only when its sample changes.
#include "runtime/ops/cpu/gemm_families.h"
#include "runtime/ops/cpu/gemm_text.h"
#include "runtime/ops/cpu/space_family.h"

namespace niche::ops_cpu {
namespace {

constexpr std::string_view kBody = R"(
constexpr long GP = (N + 3) / 4 * 4, DV = D / W, CHUNKS = (K + CHUNK - 1) / CHUNK;
constexpr int D_TAIL = D % W, K_TAIL = K % W;
constexpr Blocks TILES(N, MR);
constexpr Strips STRIPS(K, CHUNK, NR);
constexpr long MOST_ROWS = largest(N, MR);

NICHE_INLINE f32x8 to8(f32x8 v) { return v; }
#if LANES == 16
NICHE_INLINE f32x8 to8(f32x16 v) { return half(v, 0) + half(v, 1); }
#endif
NICHE_INLINE f32x4 sums(const F* v) {
  const f32x8 a = to8(v[0]), b = to8(v[1]), c = to8(v[2]), d = to8(v[3]);
  const f32x8 ab = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13) +
                   __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
  const f32x8 cd = __builtin_shufflevector(c, d, 0, 8, 1, 9, 4, 12, 5, 13) +
                   __builtin_shufflevector(c, d, 2, 10, 3, 11, 6, 14, 7, 15);
  const f32x8 s = __builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) +
                  __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
  return __builtin_shufflevector(s, s, 0, 1, 2, 3) + __builtin_shufflevector(s, s, 4, 5, 6, 7);
}
// G[i .. i + R)[j .. j + 4)
template <int R> NICHE_INLINE void dots(const float* x, long i, long j, float* g) {
  const float* row[4];
  for (int q = 0; q < 4; ++q) row[q] = x + lmin(j + q, N - 1) * D;
  F acc[R][4] = {};
  const auto step = [&](auto get, long at) __attribute__((always_inline)) {
    F a[R];
    for (int r = 0; r < R; ++r) a[r] = get(x + (i + r) * D + at);
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      F b = get(row[q] + at);
      pin(b);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r][q] = fma(a[r], b, acc[r][q]);
    }
  };
#pragma GCC unroll 2
  for (long d = 0; d < DV; ++d) step([](const float* p) __attribute__((always_inline)) { return load<W>(p); }, d * W);
  if constexpr (D_TAIL > 0)
    step([](const float* p) __attribute__((always_inline)) { return load_first<D_TAIL>(p); }, DV * W);
  for (int r = 0; r < R; ++r) store_as(g + (i + r) * GP + j, sums(acc[r]));
}
template <int R> NICHE_INLINE void dots_of(long rows, const float* x, long i, long j, float* g) {
  if constexpr (R > smallest(N, GI)) {
    if (rows < R) return dots_of<R - 1>(rows, x, i, j, g);
  }
  dots<R>(x, i, j, g);
}
NICHE_INLINE void gram(const float* x, float* g) {
  constexpr Blocks blocks(N, GI);
  for (long b = 0; b < blocks.count; ++b)
    for (long i = blocks.start(b), end = blocks.start(b + 1), j = 0; j < end; j += 4) dots_of<largest(N, GI)>(end - i, x, i, j, g);
  for (long i = 0; i < N; ++i)
    for (long j = 0; j < i; ++j) g[j * GP + i] = g[i * GP + j];
}

// WHERE: 0 reads Y and copies or prefetches, 1 reads the copy, 2 reads Y.
template <int R, int NV, int LAST, int WHERE, bool NT> NICHE_INLINE void tile(const float* g, const float* y, float* out,
                                                                             float* copy) {
  F acc[R][NV] = {};
  if constexpr (WHERE == 1) multiply<R, NV, GP, 1, NV * W>(acc, g, copy, N);
  else multiply<R, NV, GP, 1, K, LAST, WHERE == 0 && COPY, WHERE == 0 && AHEAD>(acc, g, y, N, {copy, NV * W});
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) {
      float* p = out + r * K + n * W;
      if constexpr (NT) stream(p, acc[r][n]);
      else if (n + 1 < NV) store(p, acc[r][n]);
      else store_first<LAST>(p, acc[r][n]);
    }
}
template <int R, int NV, int LAST, int WHERE, bool NT> NICHE_INLINE void tile_of(long rows, const float* g, const float* y,
                                                                                float* out, float* copy) {
  if constexpr (R > TILES.base) {
    if (rows < R) return tile_of<R - 1, NV, LAST, WHERE, NT>(rows, g, y, out, copy);
  }
  tile<R, NV, LAST, WHERE, NT>(g, y, out, copy);
}
template <int NV, int LAST, bool NT> NICHE_INLINE void strip(const float* g, const float* y, float* out, float* copy) {
  for (long i = 0; i < TILES.count; ++i) {
    const long at = TILES.start(i), rows = TILES.start(i + 1) - at;
    if (i == 0) tile_of<MOST_ROWS, NV, LAST, 0, NT>(rows, g, y, out, copy);
    else tile_of<MOST_ROWS, NV, LAST, COPY ? 1 : AHEAD ? 2 : 0, NT>(rows, g + at * GP, y, out + at * K, copy);
    if constexpr (AHEAD && !NT)
      for (long r = at; r < at + rows; ++r) __builtin_prefetch(out + r * K + NV * W, 1);
  }
}
template <int NV, bool NT> NICHE_INLINE void strip_of(long vectors, bool partial, const float* g, const float* y, float* out,
                                                      float* copy) {
  if constexpr (NV > STRIPS.least) {
    if (vectors < NV) return strip_of<NV - 1, NT>(vectors, partial, g, y, out, copy);
  }
  if constexpr (K_TAIL > 0) {
    if (partial) return strip<NV, K_TAIL, NT>(g, y, out, copy);
  }
  strip<NV, W, NT>(g, y, out, copy);
}

template <bool NT> NICHE_INLINE void all(const NicheKernelArgs* a, long begin, long end) {
  alignas(64) float g[N * GP], copy[COPY ? N * NR * W : 1];
  long have = -1;
  for (long task = begin; task < end; ++task) {
    const long b = task / CHUNKS, from = task % CHUNKS * CHUNK, to = lmin(from + CHUNK, K);
    const float* x = (const float*)a->p[0] + b * N * D;
    const float* y = (const float*)a->p[1] + b * N * K;
    float* out = (float*)a->p[2] + b * N * K;
    if (b != have) gram(x, g), have = b;
    const Blocks strips((to - from + W - 1) / W, NR);
    for (long s = 0; s < strips.count; ++s) {
      const long v = strips.start(s), at = from + v * W, vectors = strips.start(s + 1) - v;
      if constexpr (AHEAD)
        if (to == K && task + 1 < end)
          for (long i = N * D * s / strips.count; i < N * D * (s + 1) / strips.count; i += 16)
            __builtin_prefetch(x + N * D + i);
      strip_of<STRIPS.most, NT>(vectors, at + vectors * W > K, g, y + at, out + at, copy);
    }
  }
}

extern "C" void run@(const NicheKernelArgs* a, long begin, long end) {
  if constexpr (STREAM)
    if (aligned(a->p[2], W * 4)) {
      all<true>(a, begin, end);
      stream_fence();
      return;
    }
  all<false>(a, begin, end);
}
)";

class GramFamily : public SpaceFamily {
 public:
  GramFamily()
      : SpaceFamily("optimized_fm.gram", "optimized_fm",
                    {{"lanes", {8, 16}},
                     {"mr", {6, 5, 4, 3, 8, 10, 12, 14, 24}},
                     {"nr", {2, 3, 4, 1}},
                     {"gi", {3, 2, 4, 6}},
                     {"unroll", {4, 2, 8, 1}},
                     {"copy", {0, 1}},
                     {"ahead", {1, 0}},
                     {"pin", {1, 0}},
                     {"stream", {0, 1}},
                     {"chunk", {0, 512, 256, 128}},
                     {"serial", {64, 16, 256}}}) {}

  KernelSource render(const Definition& d, const CpuTarget& t, const Point& point,
                      std::string_view suffix) const override {
    const View v(*this, point);
    const auto n = d.const_extents();
    const int64_t chunk = v["chunk"] ? v["chunk"] : n[3];
    KernelSource s;
    s.text = SourceBuilder(suffix)
                 .body("#undef LANES\n#define LANES " + std::to_string(v["lanes"]) + "\n")
                 .let("W", v["lanes"])
                 .let("N", n[1])
                 .let("D", n[2])
                 .let("K", n[3])
                 .let("MR", tightest({n[1]}, v["mr"]))
                 .let("NR", tightest_strips(n[3], chunk, v["lanes"], v["nr"]))
                 .let("GI", tightest({n[1]}, v["gi"]))
                 .let("UNROLL", v["unroll"])
                 .let("COPY", v["copy"])
                 .let("AHEAD", v["ahead"])
                 .let("PIN", v["pin"])
                 .let("STREAM", v["stream"])
                 .let("CHUNK", chunk)
                 .body(gemm_text())
                 .body(kBody)
                 .take();
    s.plan.phases = {{"run" + std::string(suffix),
                      {{0, 1}, {3, chunk}},
                      parallel_min_tasks(v["serial"], n[1] * std::min(chunk, n[3]))}};
    s.limits = any_problem(d);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CpuTarget& t, const View& v) const override {
    const auto n = d.const_extents();
    const int registers = t.avx512 ? 32 : 16, lanes = v["lanes"];
    if (is_bf16(d) || (lanes == 16 && !t.avx512)) return false;
    if (tile_registers(v["mr"], v["nr"]) > registers || v["mr"] * v["nr"] < 8) return false;
    if (v["gi"] * 5 + 1 > registers) return false;
    // The other association is cheaper: N^2 (D / 2 + K) > 2 N D K.
    if (n[1] * (n[2] / 2 + n[3]) > 2 * n[2] * n[3]) return false;
    if ((n[1] * (n[1] + 3) + (v["copy"] ? n[1] * v["nr"] * lanes : 0)) * 4 > (224 << 10)) return false;
    if (v["stream"] && n[3] % lanes != 0) return false;
    if (v["chunk"] && (t.threads == 1 || v["chunk"] >= n[3])) return false;
    return t.threads > 1 || v["serial"] == params().back().values[0];
  }

  std::vector<Settings> seed_points(const Definition& d, const CpuTarget& t) const override {
    const int odd = d.const_extents()[3] % 16 != 0;
    std::vector<Settings> s;
    if (t.avx512) {
      s.push_back({{"lanes", 16}, {"mr", 14}, {"nr", 2}, {"gi", 6}, {"copy", odd}});
      s.push_back({{"lanes", 16}, {"mr", 24}, {"nr", 1}, {"gi", 6}, {"copy", odd}});
    }
    s.push_back({{"mr", 6}, {"nr", 2}, {"copy", odd}});
    s.push_back({{"mr", 4}, {"nr", 3}, {"copy", odd}});
    s.push_back({{"mr", 5}, {"nr", 2}, {"unroll", 8}, {"copy", odd}});
    s.push_back({{"mr", 6}, {"nr", 2}, {"unroll", 8}, {"ahead", 0}});
    s.push_back({{"mr", 6}, {"nr", 2}, {"copy", 1}, {"unroll", 2}});
    s.push_back({{"mr", 6}, {"nr", 2}, {"gi", 2}, {"stream", 1}});
    return s;
  }
};

}  // namespace

void add_optimized_fm(evolve::FamilyRegistry& registry) { registry.add(std::make_shared<GramFamily>()); }

}  // namespace niche::ops_cpu
