// pffn in one pass: a chunk of a sample's rows goes through both products while its hidden rows stay in L1 or
// L2.
//
// Product 1 writes X W1 + b1 to scratch; one pass over a hidden row applies GELU and sums squares; product 2
// takes the unscaled hidden rows, since a row's scale commutes with W2, and multiplies by it in its epilogue;
// one more pass over an output row sums squares and scales. So both norms, both biases and GELU cost two
// passes over data in L1.
//
// Schedules: `lanes`; register tile `mr` x `nr`; `rows` of a chunk, the reuse of a panel of W; `copy` a panel
// of W to contiguous scratch while the chunk's first block uses it (a row of W is 0.5-1 KiB: panels in place
// collide in L1); `ahead` prefetches the next panel meanwhile; `unroll` and `pin` as in gemm_text.h.
#include "runtime/ops/cpu/gemm_families.h"
#include "runtime/ops/cpu/gemm_text.h"
#include "runtime/ops/cpu/space_family.h"

namespace niche::ops_cpu {
namespace {

constexpr std::string_view kBody = R"(
constexpr long CHUNKS = (N + ROWS - 1) / ROWS;
constexpr long KV = (K + W - 1) / W, DV = (D + W - 1) / W, KP = KV * W, DEEP = K > D ? K : D;
constexpr Blocks CHUNK(N, ROWS);
constexpr long TALLER = CHUNK.base + (CHUNK.extra > 0);  // chunks have CHUNK.base or so many rows
constexpr long LEAST_ROWS = least_of(smallest(CHUNK.base, MR), smallest(TALLER, MR));
constexpr long MOST_ROWS = most_of(largest(CHUNK.base, MR), largest(TALLER, MR));

struct Io { const float* a; const float* w; const float* bias; const float* scale; float* out; float* copy; };

// One register tile of product PHASE. WHERE: 0 reads W and copies or prefetches, 1 reads the copy, 2 reads W.
template <int PHASE, int R, int NV, int LAST, int WHERE> NICHE_INLINE void tile(const Io& io) {
  constexpr long DEPTH = PHASE == 1 ? D : K, COLS = PHASE == 1 ? K : D, A_ROW = PHASE == 1 ? D : KP;
  constexpr long OUT_ROW = PHASE == 1 ? KP : D;
  F acc[R][NV] = {};
  if constexpr (WHERE == 1) multiply<R, NV, A_ROW, 1, NV * W>(acc, io.a, io.copy, DEPTH);
  else
    multiply<R, NV, A_ROW, 1, COLS, LAST, WHERE == 0 && COPY, WHERE == 0 && AHEAD>(acc, io.a, io.w, DEPTH,
                                                                                  {io.copy, NV * W});
#pragma GCC unroll 8
  for (int n = 0; n < NV; ++n) {
    const F b = n + 1 < NV ? load<W>(io.bias + n * W) : load_first<LAST>(io.bias + n * W);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      float* p = io.out + r * OUT_ROW + n * W;
      if constexpr (PHASE == 1) *(F*)p = acc[r][n] + b;
      else {
        const F v = fma(acc[r][n], splat<W>(io.scale[r]), b);
        if (n + 1 < NV) store(p, v);
        else store_first<LAST>(p, v);
      }
    }
  }
}
template <int PHASE, int R, int NV, int LAST, int WHERE> NICHE_INLINE void tile_of(long rows, const Io& io) {
  if constexpr (R > LEAST_ROWS) {
    if (rows < R) return tile_of<PHASE, R - 1, NV, LAST, WHERE>(rows, io);
  }
  tile<PHASE, R, NV, LAST, WHERE>(io);
}
// A panel of NV vectors of columns for all rows of the chunk.
template <int PHASE, int NV, int LAST> NICHE_INLINE void panel(const Blocks& blocks, Io io) {
  constexpr long A_ROW = PHASE == 1 ? D : KP, OUT_ROW = PHASE == 1 ? KP : D;
  for (long i = 0; i < blocks.count; ++i) {
    const long at = blocks.start(i), rows = blocks.start(i + 1) - at;
    const Io block = {io.a + at * A_ROW, io.w, io.bias, io.scale + at, io.out + at * OUT_ROW, io.copy};
    if (i == 0) tile_of<PHASE, MOST_ROWS, NV, LAST, 0>(rows, block);
    else tile_of<PHASE, MOST_ROWS, NV, LAST, COPY ? 1 : AHEAD ? 2 : 0>(rows, block);
  }
}
template <int PHASE, int NV> NICHE_INLINE void panel_of(long vectors, bool last, const Blocks& blocks, const Io& io) {
  constexpr long COLS = PHASE == 1 ? K : D, LEAST = smallest(PHASE == 1 ? KV : DV, NR);
  if constexpr (NV > LEAST) {
    if (vectors < NV) return panel_of<PHASE, NV - 1>(vectors, last, blocks, io);
  }
  if constexpr (COLS % W != 0) {
    if (last) return panel<PHASE, NV, COLS % W>(blocks, io);
  }
  panel<PHASE, NV, W>(blocks, io);
}
template <int PHASE> NICHE_INLINE void product(const Blocks& blocks, const Io& io) {
  constexpr Blocks panels(PHASE == 1 ? KV : DV, NR);
  for (long i = 0; i < panels.count; ++i) {
    const long v = panels.start(i);
    panel_of<PHASE, largest(PHASE == 1 ? KV : DV, NR)>(panels.start(i + 1) - v, i + 1 == panels.count, blocks,
                        {io.a, io.w + v * W, io.bias + v * W, io.scale, io.out + v * W, io.copy});
  }
}
NICHE_INLINE float row_scale(F sum, long n, float eps) { return 1.0f / sqrt1(hsum(sum) * (1.0f / n) + eps); }

extern "C" void run@(const NicheKernelArgs* a, long begin, long end) {
  alignas(64) float hidden[TALLER * KP], copy[COPY ? DEEP * NR * W : 1], scale[TALLER];
  for (long task = begin; task < end; ++task) {
    const long b = task / CHUNKS, from = CHUNK.start(task % CHUNKS), n = CHUNK.start(task % CHUNKS + 1) - from;
    const float* w2 = (const float*)a->p[3] + b * K * D;
    float* y = (float*)a->p[5] + (b * N + from) * D;
    const Blocks blocks(n, MR);
    product<1>(blocks, {(const float*)a->p[0] + (b * N + from) * D, (const float*)a->p[1] + b * D * K, (const float*)a->p[2],
                        scale, hidden, copy});
    for (long r = 0; r < n; ++r) {
      float* h = hidden + r * KP;
      F sum[2] = {};
      if constexpr (AHEAD)
        for (long k = K * r / n; k < K * (r + 1) / n; ++k) __builtin_prefetch(w2 + k * D);
      for (long i = 0; i < KV; ++i) {
        const F g = gelu(*(F*)(h + i * W));
        *(F*)(h + i * W) = g;
        sum[i & 1] = fma(g, g, sum[i & 1]);
      }
      scale[r] = row_scale(sum[0] + sum[1], K, EPS);
    }
    product<2>(blocks, {hidden, w2, (const float*)a->p[4], scale, y, copy});
    constexpr int LAST = D % W != 0 ? D % W : W;
    for (long r = 0; r < n; ++r, y += D) {
      F sum[2] = {}, v = load_first<LAST>(y + (DV - 1) * W);
      sum[0] = v * v;
      for (long i = 0; i + 1 < DV; ++i) {
        const F u = load<W>(y + i * W);
        sum[i & 1] = fma(u, u, sum[i & 1]);
      }
      const F s = splat<W>(row_scale(sum[0] + sum[1], D, EPS));
      for (long i = 0; i + 1 < DV; ++i) store(y + i * W, load<W>(y + i * W) * s);
      store_first<LAST>(y + (DV - 1) * W, v * s);
    }
  }
}
)";

class PffnFamily : public SpaceFamily {
 public:
  PffnFamily()
      : SpaceFamily("pffn.fused", "pffn",
                    {{"lanes", {8, 16}},
                     {"mr", {6, 4, 5, 3, 8, 10, 12, 14}},
                     {"nr", {2, 3, 4, 1}},
                     {"rows", {32, 24, 12, 16, 48, 64, 96, 160}},
                     {"copy", {1, 0}},
                     {"ahead", {1, 0}},
                     {"unroll", {1, 2, 4}},
                     {"pin", {1, 0}},
                     {"serial", {64, 16, 256}}}) {}

  KernelSource render(const Definition& d, const CpuTarget& t, const Point& point,
                      std::string_view suffix) const override {
    const View v(*this, point);
    const auto n = d.const_extents();
    // Chunks have `rows` or one less: as many as it takes to have them equal.
    const int64_t rows = tightest({n[1]}, v["rows"]), chunks = (n[1] + rows - 1) / rows;
    const auto vectors = [&](int64_t k) { return (k + v["lanes"] - 1) / v["lanes"]; };
    KernelSource s;
    s.text = SourceBuilder(suffix)
                 .let("W", v["lanes"])
                 .let("N", n[1])
                 .let("D", n[2])
                 .let("K", n[3])
                 .let("MR", tightest({n[1] / chunks, rows}, v["mr"]))
                 .let("NR", tightest({vectors(n[2]), vectors(n[3])}, v["nr"]))
                 .let("ROWS", rows)
                 .let("COPY", v["copy"])
                 .let("AHEAD", v["ahead"])
                 .let("UNROLL", v["unroll"])
                 .let("PIN", v["pin"])
                 .let_float("EPS", d.attr("eps"))
                 .body(gemm_text())
                 .body(kBody)
                 .take();
    s.plan.phases = {
        {"run" + std::string(suffix), {{0, 1}, {1, rows}}, parallel_min_tasks(v["serial"], rows * n[2])}};
    s.limits = any_problem(d);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CpuTarget& t, const View& v) const override {
    const auto n = d.const_extents();
    if (is_bf16(d)) return false;
    if (v["lanes"] == 16 && !t.avx512) return false;
    if (tile_registers(v["mr"], v["nr"]) > (t.avx512 ? 32 : 16) || v["mr"] * v["nr"] < 8) return false;
    if (v["rows"] < v["mr"] || (v["rows"] > 16 && v["rows"] >= 2 * n[1])) return false;
    const int64_t lanes = v["lanes"], padded = (n[3] + lanes - 1) / lanes * lanes;
    const int64_t hidden = (std::min<int64_t>(v["rows"], n[1]) + 1) * padded;
    const int64_t copy = v["copy"] ? std::max(n[2], n[3]) * v["nr"] * lanes : 0;
    if ((hidden + copy) * 4 > (224 << 10)) return false;
    return t.threads > 1 || v["serial"] == params().back().values[0];
  }

  std::vector<Settings> seed_points(const Definition&, const CpuTarget& t) const override {
    std::vector<Settings> s;
    if (t.avx512) {
      s.push_back({{"lanes", 16}, {"mr", 14}, {"nr", 2}, {"rows", 64}});
      s.push_back({{"lanes", 16}, {"mr", 8}, {"nr", 3}, {"rows", 48}});
    }
    s.push_back({{"mr", 6}, {"nr", 2}, {"rows", 32}});
    s.push_back({{"mr", 4}, {"nr", 3}, {"rows", 32}});
    s.push_back({{"mr", 6}, {"nr", 2}, {"rows", 48}, {"unroll", 2}});
    s.push_back({{"mr", 6}, {"nr", 2}, {"rows", 24}, {"copy", 0}});
    s.push_back({{"mr", 6}, {"nr", 2}, {"rows", 12}});
    s.push_back({{"mr", 5}, {"nr", 2}, {"rows", 48}, {"ahead", 0}});
    return s;
  }
};

}  // namespace

void add_pffn(evolve::FamilyRegistry& registry) { registry.add(std::make_shared<PffnFamily>()); }

}  // namespace niche::ops_cpu
