// conv1d with three taps by Winograd's F(m, 3) along L: m + 2 products for m outputs instead of 3 m (Lavin &
// Gray, arXiv 1509.09308), as m + 2 matrix products over the input channels, with weights transformed once by
// the pack entry.
//
// A tile is m consecutive outputs of one sample. Tiles of all samples of a task range are numbered through,
// so that short samples share a panel and nothing is lost at their ends. A panel of up to `panel` tiles goes
// through three steps: input transform of all channels into V (vectors over tiles), then for each block of
// lanes * nr output channels m + 2 products V * U (rows: tiles, vectors: output channels) and the output
// transform, in L1 throughout.
//
// Schedules: `lanes`, register tile `mr` x `nr`, `panel`, `m` (2 where the error of 4 is too much; F(6, 3)
// saves a tenth of the products of F(4, 3), but errs 22 times as much as the library on extreme inputs, where
// 16 is allowed), `unroll` of the product over channels, `pin` (see gemm_text.h), `ahead`: prefetch the next
// panel's input and this block's output lines during the products (the server's activations are rarely in L2;
// without it they cost a third of the time).
#include "runtime/ops/cpu/gemm_families.h"
#include "runtime/ops/cpu/gemm_text.h"
#include "runtime/ops/cpu/space_family.h"
#include "runtime/ops/cpu/winograd_text.h"

namespace niche::ops_cpu {
namespace {

constexpr std::string_view kBody = R"(
// W tiles of one channel whose inputs start STRIDE floats apart.
template <long STRIDE> NICHE_INLINE void input_tiles(const float* p, float* v) {
  F first[4], second[4];
  f32x4 q[QUADS];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    for (int k = 0; k < QUADS; ++k) q[k] = load4(p + STRIDE * (4 * k + r));
    first[r] = join(q);
    if constexpr (M > 2) {
      for (int k = 0; k < QUADS; ++k) q[k] = load4(p + STRIDE * (4 * k + r) + 4);
      second[r] = join(q);
    }
  }
  transform_input(first, second, v);
}
// Where the inputs of W tiles are: in one piece of one row, or piece by piece.
struct Group {
  const float* inside;  // null: piece by piece
  const float* row[W];
  Piece piece[W][2];
  // Tiles [f, f + W) of the numbered-through tiles; those from `end` on repeat the last.
  void set(const float* x, long L, long tiles, long f, long end) {
    const long sample = f / tiles, tile = f - sample * tiles;
    inside = nullptr;
    if (tile + W <= tiles && M * tile >= PAD && M * (tile + W - 1) - PAD + (M == 2 ? 4 : 8) <= L) {
      inside = x + sample * CI * L + M * tile - PAD;
      return;
    }
#pragma GCC unroll 1
    for (int i = 0; i < W; ++i) {
      const long g = lmin(f + i, end - 1);
      row[i] = x + g / tiles * CI * L;
      for (int h = 0; h < 2; ++h) piece[i][h].set(M * (g % tiles) - PAD + 4 * h, L);
    }
  }
};
// Channel by channel, so that a row of V is written as a whole: V lies in L2, and its half-written lines were what
// this step waited for.
NICHE_INLINE void input_panel(const float* x, long L, long tiles, long s, long end, float* v) {
  Group groups[PANEL / W];
  const long count = (end - s + W - 1) / W;
  for (long g = 0; g < count; ++g) groups[g].set(x, L, tiles, s + g * W, end);
  for (long c = 0; c < CI; ++c, v += PANEL) {
    for (long g = 0; g < count; ++g) {
      const Group& group = groups[g];
      if (group.inside != nullptr) {
        input_tiles<M>(group.inside + c * L, v + g * W);
        continue;
      }
      alignas(32) float inputs[W * 8];
#pragma GCC unroll 1
      for (int i = 0; i < W; ++i) {
        *(f32x4*)(inputs + 8 * i) = group.piece[i][0].get(group.row[i] + c * L, L);
        *(f32x4*)(inputs + 8 * i + 4) = group.piece[i][1].get(group.row[i] + c * L, L);
      }
      input_tiles<8>(inputs, v + g * W);
    }
  }
}

template <int R> NICHE_INLINE void product(const float* v, const float* u, float* m) {
  F acc[R][NR] = {};
  multiply<R, NR, 1, PANEL, COB>(acc, v, u, CI);
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < NR; ++n) put(m + r * COB + n * W, acc[r][n]);
}
// Blocks of two or more cuts of a panel have at least MR / 2 rows; fewer are rare, and go one by one.
template <int R> NICHE_INLINE void product_of(long rows, const float* v, const float* u, float* m) {
  if constexpr (R > (MR + 1) / 2) {
    if (rows < R) return product_of<R - 1>(rows, v, u, m);
  } else if (rows < R) {
    for (; rows > 0; --rows, ++v, m += COB) product<1>(v, u, m);
    return;
  }
  product<R>(v, u, m);
}

// Lines of `rows` rows that hold the tiles [f, end); `write`: they will be written.
template <bool WRITE> NICHE_INLINE void fetch(const float* base, long channels, long row, long rows, long length, long tiles,
                                              long f, long end) {
  while (f < end) {
    const long sample = f / tiles, tile = f - sample * tiles, n = lmin(tiles - tile, end - f);
    const long from = M * tile, to = lmin(M * (tile + n), length);
    for (long r = row; r < row + rows; ++r) {
      const float* p = base + (sample * channels + r) * length;
      for (long i = from; i < to; i += 16) __builtin_prefetch(p + i, WRITE);
      __builtin_prefetch(p + to - 1, WRITE);
    }
    f += n;
  }
}

extern "C" void pack@(const NicheKernelArgs* a, void* out) {
  const float* weight = (const float*)a->p[1];
  float* u = (float*)out;
  for (long block = 0; block < BLOCKS_CO; ++block)
    for (long c = 0; c < CI; ++c)
      for (long i = 0; i < COB; ++i) {
        const long co = block * COB + i;
        double g[3] = {};
        for (int k = 0; k < 3 && co < CO; ++k) g[k] = weight[(co * CI + c) * 3 + k];
        const double sum = g[0] + g[2];
        float* t = u + block * U_BLOCK + c * COB + i;
        if constexpr (M == 2) {
          t[0] = (float)g[0], t[U_STEP] = (float)((sum + g[1]) / 2), t[2 * U_STEP] = (float)((sum - g[1]) / 2);
          t[3 * U_STEP] = (float)g[2];
        } else {
          t[0] = (float)(g[0] / 4);
          t[U_STEP] = (float)(-(sum + g[1]) / 6), t[2 * U_STEP] = (float)(-(sum - g[1]) / 6);
          t[3 * U_STEP] = (float)(g[0] / 24 + g[1] / 12 + g[2] / 6);
          t[4 * U_STEP] = (float)(g[0] / 24 - g[1] / 12 + g[2] / 6), t[5 * U_STEP] = (float)g[2];
        }
      }
}

extern "C" void run@(const NicheKernelArgs* a, long begin, long end) {
  const float* x = (const float*)a->p[0];
  const float* u_all = (const float*)a->packed;
  float* y = (float*)a->p[3];
  const long L = a->n[1], Lo = a->n[5], tiles = (Lo + M - 1) / M, tasks = (Lo + M * TASK_TILES - 1) / (M * TASK_TILES);
  alignas(64) float v[STEPS * V_STEP], m[STEPS * PANEL * COB], bias[BLOCKS_CO * COB] = {};
  if (HAS_BIAS) __builtin_memcpy(bias, a->p[2], CO * sizeof(float));
  const long first = begin / tasks * tiles + lmin(begin % tasks * TASK_TILES, tiles);
  const long last = end / tasks * tiles + lmin(end % tasks * TASK_TILES, tiles);
  const Blocks panels((last - first + W - 1) / W, PANEL / W);
  if (AHEAD) fetch<false>(x, CI, 0, CI, L, tiles, first, lmin(first + panels.start(1) * W, last));
  for (long p = 0; p < panels.count; ++p) {
    const long s = first + panels.start(p) * W, e = lmin(first + panels.start(p + 1) * W, last), n = e - s;
    const long next = p + 1 < panels.count ? lmin(first + panels.start(p + 2) * W, last) : e;
    input_panel(x, L, tiles, s, e, v);
    const Blocks blocks(n, MR);
    for (long block = 0; block < BLOCKS_CO; ++block) {
      const float* u = u_all + block * U_BLOCK;
      const long co = block * COB, channels = lmin(COB, CO - co);
      for (long t = 0; t < STEPS; ++t, u += U_STEP) {
        if constexpr (AHEAD) {
          const long part = block * STEPS + t, parts = BLOCKS_CO * STEPS;
          fetch<false>(x, CI, CI * part / parts, CI * (part + 1) / parts - CI * part / parts, L, tiles, e, next);
          fetch<true>(y, CO, co + channels * t / STEPS, channels * (t + 1) / STEPS - channels * t / STEPS, Lo, tiles, s, e);
        }
        for (long b = 0; b < blocks.count; ++b) {
          const long r = blocks.start(b);
          product_of<MR>(blocks.start(b + 1) - r, v + t * V_STEP + r, u, m + (t * PANEL + r) * COB);
        }
      }
      long sample = s / tiles, tile = s - sample * tiles;
      for (long r = 0; r < n; ++r) {
        output_tile(m + r * COB, bias, y + (sample * CO + co) * Lo + M * tile, co, Lo, Lo - M * tile);
        if (++tile == tiles) tile = 0, ++sample;
      }
    }
  }
}
)";

class WinogradFamily : public SpaceFamily {
 public:
  WinogradFamily()
      : SpaceFamily("conv1d.winograd", "conv1d",
                    {{"lanes", {8, 16}},
                     {"mr", {6, 4, 5, 3, 8, 12, 14}},
                     {"nr", {2, 3, 4, 1}},
                     {"panel", {24, 32, 48, 16, 40, 64, 8}},
                     {"m", {4, 2}},
                     {"unroll", {1, 2, 4}},
                     {"pin", {1, 0}},
                     {"ahead", {1, 0}},
                     {"serial", {64, 16, 256}}}) {}

  KernelSource render(const Definition& d, const CpuTarget& t, const Point& point,
                      std::string_view suffix) const override {
    const View v(*this, point);
    const int64_t ci = d.const_extents()[2], co = d.const_extents()[3], steps = v["m"] + 2;
    const int64_t block = int64_t{v["lanes"]} * v["nr"];
    KernelSource s;
    s.text = SourceBuilder(suffix)
                 .body("#undef LANES\n#define LANES " + std::to_string(v["lanes"]) + "\n")
                 .let("W", v["lanes"])
                 .let("CI", ci)
                 .let("CO", co)
                 .let("PAD", static_cast<int64_t>(d.attr("padding")))
                 .let("HAS_BIAS", d.attr("has_bias") != 0)
                 .let("M", v["m"])
                 .let("MR", v["mr"])
                 .let("NR", v["nr"])
                 .let("PANEL", v["panel"])
                 .let("UNROLL", v["unroll"])
                 .let("PIN", v["pin"])
                 .let("AHEAD", v["ahead"])
                 .body(gemm_text())
                 .body(winograd_text())
                 .body(kBody)
                 .take();
    const std::string end(suffix);
    // A task is 8 tiles of one sample; a range of tasks is cut into panels of its own.
    s.plan.phases = {
        {"run" + end, {{0, 1}, {5, 8 * int64_t{v["m"]}}}, parallel_min_tasks(v["serial"], 8 * v["m"] * co)}};
    s.plan.pack_symbol = "pack" + end;
    s.plan.packed_bytes = (co + block - 1) / block * block * ci * steps * int64_t{sizeof(float)};
    s.limits = any_problem(d);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CpuTarget& t, const View& v) const override {
    const int64_t ci = d.const_extents()[2], k = d.const_extents()[4], steps = v["m"] + 2;
    if (is_bf16(d) || k != 3) return false;
    if (v["lanes"] == 16 && !t.avx512) return false;
    if (tile_registers(v["mr"], v["nr"]) > (t.avx512 ? 32 : 16)) return false;
    if (v["mr"] * v["nr"] < 8 || v["panel"] % v["lanes"] != 0 || v["panel"] < v["mr"]) return false;
    const int64_t floats = steps * v["panel"] * (ci + int64_t{v["lanes"]} * v["nr"]);
    if (floats * 4 > (224 << 10)) return false;
    return t.threads > 1 || v["serial"] == params().back().values[0];
  }

  std::vector<Settings> seed_points(const Definition&, const CpuTarget& t) const override {
    std::vector<Settings> s;
    if (t.avx512) {
      s.push_back({{"lanes", 16}, {"mr", 14}, {"nr", 2}, {"panel", 32}, {"unroll", 2}});
      s.push_back({{"lanes", 16}, {"mr", 8}, {"nr", 3}, {"panel", 32}, {"unroll", 2}});
    }
    s.push_back({{"mr", 6}, {"nr", 2}, {"panel", 24}, {"unroll", 2}});
    s.push_back({{"mr", 4}, {"nr", 3}, {"panel", 24}, {"unroll", 2}});
    s.push_back({{"mr", 6}, {"nr", 2}, {"panel", 8}});
    s.push_back({{"mr", 6}, {"nr", 2}, {"panel", 24}, {"m", 2}});
    return s;
  }
};

}  // namespace

void add_conv1d_winograd(evolve::FamilyRegistry& registry) {
  registry.add(std::make_shared<WinogradFamily>());
}

}  // namespace niche::ops_cpu
