// conv1d by direct summation: any number of taps and any padding, weights used in place or packed.
//
// A task is up to `block` outputs of one sample. Its inputs are copied once to scratch with zeros where the
// padding is, so that the loops know no edges; then a register tile of `mr` output channels x `nr` vectors of
// outputs runs over channels and taps, loading x at every tap (unaligned loads are cheaper than shifting
// registers) and broadcasting weights.
//
// Schedules: `lanes`, `mr` x `nr`, `block`, `pack` (weights reordered tile by tile by the pack entry; worth
// little with three taps), `ahead` prefetches a tile's output lines for writing while it is summed, `unroll`
// over taps, `pin`.
#include "runtime/ops/cpu/gemm_families.h"
#include "runtime/ops/cpu/gemm_text.h"
#include "runtime/ops/cpu/space_family.h"

namespace niche::ops_cpu {
namespace {

constexpr std::string_view kBody = R"(
constexpr Blocks TILES(CO, MR);
constexpr long ROW = (BLOCK + W - 1) / W * W + K - 1;

struct Io { const float* x; const float* w; const float* bias; float* y; long Lo; int last; };

template <int R, int NV> NICHE_INLINE void tile(const Io& io) {
  constexpr long A_ROW = PACK ? 1 : CI * K, A_K = PACK ? R : 1;
  if constexpr (AHEAD)
    for (int r = 0; r < R; ++r) __builtin_prefetch(io.y + r * io.Lo, 1);
  F acc[R][NV] = {};
  for (long c = 0; c < CI; ++c) multiply<R, NV, A_ROW, A_K, 1>(acc, io.w + c * K * A_K, io.x + c * ROW, K);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const F b = splat<W>(HAS_BIAS ? io.bias[r] : 0.0f);
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) {
      float* p = io.y + r * io.Lo + n * W;
      if (n + 1 < NV || io.last == W) store(p, acc[r][n] + b);
      else store_n(p, acc[r][n] + b, io.last);
    }
  }
}
template <int R, int NV> NICHE_INLINE void tile_of(long rows, const Io& io) {
  if constexpr (R > TILES.base) {
    if (rows < R) return tile_of<R - 1, NV>(rows, io);
  }
  tile<R, NV>(io);
}
template <int NV> NICHE_INLINE void strip(long vectors, Io io) {
  if constexpr (NV > 1) {
    if (vectors < NV) return strip<NV - 1>(vectors, io);
  }
  for (long i = 0; i < TILES.count; ++i) {
    const long rows = TILES.start(i + 1) - TILES.start(i);
    tile_of<largest(CO, MR), NV>(rows, io);
    io.w += rows * CI * K, io.y += rows * io.Lo, io.bias += rows;
  }
}

extern "C" void pack@(const NicheKernelArgs* a, void* packed) {
  const float* w = (const float*)a->p[1];
  float* out = (float*)packed;
  for (long i = 0; i < TILES.count; ++i)
    for (long j = 0; j < CI * K; ++j)
      for (long r = TILES.start(i); r < TILES.start(i + 1); ++r) *out++ = w[r * CI * K + j];
}

extern "C" void run@(const NicheKernelArgs* a, long begin, long end) {
  alignas(64) float rows[CI * ROW];
  const long L = a->n[1], Lo = a->n[5], blocks = (Lo + BLOCK - 1) / BLOCK;
  const float* w = PACK ? (const float*)a->packed : (const float*)a->p[1];
  for (long task = begin; task < end; ++task) {
    const long b = task / blocks, from = task % blocks * BLOCK, n = lmin(BLOCK, Lo - from);
    const long vectors = (n + W - 1) / W, need = vectors * W + K - 1;
    // scratch index i holds input from - PAD + i
    const long low = lmin(need, lmax(0, PAD - from)), high = lmax(low, lmin(need, L + PAD - from));
    const float* x = (const float*)a->p[0] + b * CI * L;
    for (long c = 0; c < CI; ++c, x += L) {
      float* row = rows + c * ROW;
      for (long i = 0; i < low; ++i) row[i] = 0;
      if (high > low) __builtin_memcpy(row + low, x + (from - PAD + low), (high - low) * sizeof(float));
      for (long i = high; i < need; ++i) row[i] = 0;
    }
    const Blocks strips(vectors, NR);
    for (long s = 0; s < strips.count; ++s) {
      const long v = strips.start(s), until = strips.start(s + 1);
      strip<least_of(NR, (BLOCK + W - 1) / W)>(until - v, {rows + v * W, w, (const float*)a->p[2], (float*)a->p[3] + b * CO * Lo + from + v * W, Lo,
                            (int)(until == vectors ? n - (vectors - 1) * W : W)});
    }
  }
}
)";

class DirectFamily : public SpaceFamily {
 public:
  DirectFamily()
      : SpaceFamily("conv1d.direct", "conv1d",
                    {{"lanes", {8, 16}},
                     {"mr", {6, 4, 5, 3, 8, 12, 14}},
                     {"nr", {2, 3, 4, 1}},
                     {"block", {256, 128, 192, 64, 512, 32}},
                     {"pack", {0, 1}},
                     {"ahead", {1, 0}},
                     {"unroll", {4, 1, 8}},
                     {"pin", {1, 0}},
                     {"serial", {64, 16, 256}}}) {}

  KernelSource render(const Definition& d, const CpuTarget& t, const Point& point,
                      std::string_view suffix) const override {
    const View v(*this, point);
    const int64_t ci = d.const_extents()[2], co = d.const_extents()[3], k = d.const_extents()[4];
    KernelSource s;
    s.text = SourceBuilder(suffix)
                 .let("W", v["lanes"])
                 .let("CI", ci)
                 .let("CO", co)
                 .let("K", k)
                 .let("PAD", static_cast<int64_t>(d.attr("padding")))
                 .let("HAS_BIAS", d.attr("has_bias") != 0)
                 .let("MR", tightest({co}, v["mr"]))
                 .let("NR", v["nr"])
                 .let("BLOCK", v["block"])
                 .let("PACK", v["pack"])
                 .let("AHEAD", v["ahead"])
                 .let("UNROLL", v["unroll"])
                 .let("PIN", v["pin"])
                 .body(gemm_text())
                 .body(kBody)
                 .take();
    const std::string end(suffix);
    s.plan.phases = {
        {"run" + end, {{0, 1}, {5, v["block"]}}, parallel_min_tasks(v["serial"], v["block"] * co)}};
    if (v["pack"]) {
      s.plan.pack_symbol = "pack" + end;
      s.plan.packed_bytes = co * ci * k * int64_t{sizeof(float)};
    }
    s.limits = any_problem(d);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CpuTarget& t, const View& v) const override {
    const int64_t ci = d.const_extents()[2], k = d.const_extents()[4];
    if (is_bf16(d) || (v["lanes"] == 16 && !t.avx512)) return false;
    if (tile_registers(v["mr"], v["nr"]) > (t.avx512 ? 32 : 16) || v["mr"] * v["nr"] < 8) return false;
    if (v["block"] < v["nr"] * v["lanes"]) return false;
    if (ci * (v["block"] + v["lanes"] + k) * 4 > (240 << 10)) return false;
    return t.threads > 1 || v["serial"] == params().back().values[0];
  }

  std::vector<Settings> seed_points(const Definition& d, const CpuTarget& t) const override {
    const int block = d.const_extents()[2] <= 128 ? 256 : d.const_extents()[2] <= 400 ? 128 : 32;
    std::vector<Settings> s;
    if (t.avx512) {
      s.push_back({{"lanes", 16}, {"mr", 14}, {"nr", 2}, {"block", block}});
      s.push_back({{"lanes", 16}, {"mr", 8}, {"nr", 3}, {"block", block}});
    }
    s.push_back({{"mr", 6}, {"nr", 2}, {"block", block}});
    s.push_back({{"mr", 4}, {"nr", 3}, {"block", block}});
    s.push_back({{"mr", 6}, {"nr", 2}, {"block", block}, {"pack", 1}});
    s.push_back({{"mr", 4}, {"nr", 3}, {"block", block}, {"pack", 1}});
    s.push_back({{"mr", 6}, {"nr", 2}, {"block", 64}});
    return s;
  }
};

}  // namespace

void add_conv1d_direct(evolve::FamilyRegistry& registry) { registry.add(std::make_shared<DirectFamily>()); }

}  // namespace niche::ops_cpu
