// layer_norm over the last axis.
//
// Schedules: `form` 0 takes the mean in one pass, the variance around it in a second, and scales in a third;
// 1 takes both in one pass around the mean of the row's first vector, and redoes a row in form 0's way where
// that shift turns out poor (mean^2 > 16 variances from it), so that a row with an outlier in front is not
// less exact. `hold` keeps the row as f32 (registers or stack); `rows` share the loads of weight and bias in
// the last pass; `unroll` pairs in the first passes, `unroll2` in the last; `newton`, `ahead`, `stream`,
// `serial` as in rms_norm.
#include "runtime/ops/cpu/families.h"
#include "runtime/ops/cpu/space_family.h"

namespace niche::ops_cpu {
namespace {

constexpr std::string_view kBody = R"(
typedef vf<W> F;
constexpr long BLOCK = 2 * W, BLOCKS = N / BLOCK, ONE = N % BLOCK / W, TAIL = N % W, VECS = 2 * BLOCKS + ONE + (TAIL > 0);
constexpr long MAIN = BLOCKS / UNROLL * UNROLL, MAIN2 = BLOCKS / UNROLL2 * UNROLL2;
struct Stats { F mean, scale; };
typedef F Kept[HOLD ? VECS : 1];

template <class Acc> NICHE_INLINE F total(Acc& acc) {
#pragma GCC unroll 16
  for (int u = 1; u < 2 * UNROLL; ++u) acc[0] += acc[u];
  return splat<W>(hsum(acc[0]));
}
NICHE_INLINE F inverse(float variance) {
  const float v = variance + EPS;
  if constexpr (NEWTON) return rsqrt(splat<W>(v));
  else return splat<W>(1.0f / sqrt1(v));
}
// f(a, b, u) for every pair, with the accumulator's number; g(v, n, u) for the single vector and the tail.
template <bool FILL, bool KEEP, class Two, class One>
NICHE_INLINE void walk(const T* x, Kept& kept, Two two, One one) {
  const auto block = [&](long j, int u) __attribute__((always_inline)) {
    Pair<W> v;
    if constexpr (KEEP && !FILL) v = {kept[2 * j], kept[2 * j + 1]};
    else v = load2<W>(x + j * BLOCK);
    if constexpr (KEEP && FILL) kept[2 * j] = v.a, kept[2 * j + 1] = v.b;
    two(v.a, v.b, u);
  };
  for (long j = 0; j < MAIN; j += UNROLL) {
#pragma GCC unroll 8
    for (int u = 0; u < UNROLL; ++u) block(j + u, u);
  }
#pragma GCC unroll 8
  for (int u = 0; u < BLOCKS - MAIN; ++u) block(MAIN + u, u);
  if constexpr (ONE) {
    F v;
    if constexpr (KEEP && !FILL) v = kept[2 * BLOCKS];
    else v = load<W>(x + BLOCKS * BLOCK);
    if constexpr (KEEP && FILL) kept[2 * BLOCKS] = v;
    one(v, W, 0);
  }
  if constexpr (TAIL) {
    F v;
    if constexpr (KEEP && !FILL) v = kept[VECS - 1];
    else v = load_n<W>(x + N - TAIL, TAIL);
    if constexpr (KEEP && FILL) kept[VECS - 1] = v;
    one(v, TAIL, 1);
  }
}
// By how much a row's mean is off. Lanes that sum like terms drift by some N/256 ulp; where the row's spread is
// far below its mean, the result would show that, magnified by up to 1/sqrt(EPS).
static __attribute__((noinline, cold)) float drift(const T* x, F mean) {
  Kept unused;
  F s[2 * UNROLL] = {};
  walk<false, false>(
      x, unused,
      [&](F a, F b, int u) __attribute__((always_inline)) { s[2 * u] += a - mean, s[2 * u + 1] += b - mean; },
      [&](F v, int n, int u) __attribute__((always_inline)) {
        v -= mean;
        if (n < W) v = keep_n(v, n, F{});
        s[u] += v;
      });
  return total(s)[0] * (1.0f / N);
}
template <bool KEEP> NICHE_INLINE Stats two_pass(const T* x, Kept& kept) {
  F s[2 * UNROLL] = {}, q[2 * UNROLL] = {};
  walk<true, KEEP>(
      x, kept, [&](F a, F b, int u) __attribute__((always_inline)) { s[2 * u] += a, s[2 * u + 1] += b; },
      [&](F v, int, int u) __attribute__((always_inline)) { s[u] += v; });
  F mean = total(s) * (1.0f / N);
  walk<false, KEEP>(
      x, kept,
      [&](F a, F b, int u) __attribute__((always_inline)) {
        a -= mean, b -= mean;
        q[2 * u] = fma(a, a, q[2 * u]), q[2 * u + 1] = fma(b, b, q[2 * u + 1]);
      },
      [&](F v, int n, int u) __attribute__((always_inline)) {
        v -= mean;
        if (n < W) v = keep_n(v, n, F{});
        q[u] = fma(v, v, q[u]);
      });
  float variance = total(q)[0] * (1.0f / N);
  if (__builtin_expect(mean[0] * mean[0] > 1024.0f * (variance + EPS), 0)) {
    const float off = drift(x, mean);
    mean += off;
    variance = variance > off * off ? variance - off * off : 0.0f;
  }
  return {mean, inverse(variance)};
}
static __attribute__((noinline, cold)) void redo(const T* x, Stats* s) {
  Kept unused;
  *s = two_pass<false>(x, unused);
}
NICHE_INLINE Stats stats(const T* x, Kept& kept) {
  if constexpr (FORM == 0) return two_pass<HOLD != 0>(x, kept);
  constexpr int HEAD = N < W ? N : W;
  const F shift = splat<W>(hsum(HEAD < W ? load_n<W>(x, HEAD) : load<W>(x)) * (1.0f / HEAD));
  F s[2 * UNROLL] = {}, q[2 * UNROLL] = {};
  walk<true, HOLD != 0>(
      x, kept,
      [&](F a, F b, int u) __attribute__((always_inline)) {
        a -= shift, b -= shift;
        s[2 * u] += a, s[2 * u + 1] += b;
        q[2 * u] = fma(a, a, q[2 * u]), q[2 * u + 1] = fma(b, b, q[2 * u + 1]);
      },
      [&](F v, int n, int u) __attribute__((always_inline)) {
        v -= shift;
        if (n < W) v = keep_n(v, n, F{});
        s[u] += v;
        q[u] = fma(v, v, q[u]);
      });
  const F off = total(s) * (1.0f / N);
  const float square = total(q)[0] * (1.0f / N), variance = square - off[0] * off[0];
  if (__builtin_expect(off[0] * off[0] <= 16.0f * variance, 1)) return {shift + off, inverse(variance)};
  Stats r;
  redo(x, &r);
  return r;
}

template <int R, bool NT> NICHE_INLINE void rows(const T* x, const T* w, const T* b, T* y) {
  Kept kept[R];
  Stats s[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) s[r] = stats(x + r * N, kept[r]);
  const auto block = [&](long j) __attribute__((always_inline)) {
    const Pair<W> g = load2<W>(w + j * BLOCK), c = load2<W>(b + j * BLOCK);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const long i = r * N + j * BLOCK;
      if constexpr (AHEAD) __builtin_prefetch(x + AHEAD * R * N + i);
      Pair<W> v;
      if constexpr (HOLD) v = {kept[r][2 * j], kept[r][2 * j + 1]};
      else v = load2<W>(x + i);
      v = {fma((v.a - s[r].mean) * s[r].scale, g.a, c.a), fma((v.b - s[r].mean) * s[r].scale, g.b, c.b)};
      if constexpr (NT) stream2<W>(y + i, v);
      else store2<W>(y + i, v);
    }
  };
  for (long j = 0; j < MAIN2; j += UNROLL2) {
#pragma GCC unroll 8
    for (int u = 0; u < UNROLL2; ++u) block(j + u);
  }
#pragma GCC unroll 8
  for (long j = MAIN2; j < BLOCKS; ++j) block(j);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    if constexpr (ONE) {
      constexpr long i = BLOCKS * BLOCK;
      F v;
      if constexpr (HOLD) v = kept[r][2 * BLOCKS];
      else v = load<W>(x + r * N + i);
      v = fma((v - s[r].mean) * s[r].scale, load<W>(w + i), load<W>(b + i));
      if constexpr (NT) stream(y + r * N + i, v);
      else store(y + r * N + i, v);
    }
    if constexpr (TAIL) {
      constexpr long i = N - TAIL;
      F v;
      if constexpr (HOLD) v = kept[r][VECS - 1];
      else v = load_n<W>(x + r * N + i, TAIL);
      v = fma((v - s[r].mean) * s[r].scale, load_n<W>(w + i, TAIL), load_n<W>(b + i, TAIL));
      store_n(y + r * N + i, v, TAIL);
    }
  }
}
template <bool NT> NICHE_INLINE void all(const NicheKernelArgs* a, long begin, long end) {
  const T *x = (const T*)a->p[0] + begin * N, *w = (const T*)a->p[1], *b = (const T*)a->p[2];
  T* y = (T*)a->p[3] + begin * N;
  for (; begin + ROWS <= end; begin += ROWS, x += ROWS * N, y += ROWS * N) rows<ROWS, NT>(x, w, b, y);
  for (; begin < end; ++begin, x += N, y += N) rows<1, NT>(x, w, b, y);
}
extern "C" void run@(const NicheKernelArgs* a, long begin, long end) {
  begin *= ROWS;
  end = lmin(end * ROWS, a->n[0]);
  if constexpr (STREAM)
    if (aligned(a->p[3], W * 4)) {
      all<true>(a, begin, end);
      stream_fence();
      return;
    }
  all<false>(a, begin, end);
}
)";

class LayerNormFamily : public SpaceFamily {
 public:
  LayerNormFamily()
      : SpaceFamily("layer_norm.rows", "layer_norm",
                    {{"lanes", {8, 16}},
                     {"form", {0, 1}},
                     {"unroll", {1, 2, 3, 4}},
                     {"unroll2", {1, 2, 4}},
                     {"rows", {1, 2, 3, 4}},
                     {"hold", {0, 1}},
                     {"ahead", {0, 1, 2}},
                     {"newton", {0, 1}},
                     {"stream", {0, 1}},
                     {"serial", {64, 16, 256}}}) {}

  KernelSource render(const Definition& d, const CpuTarget& t, const Point& point,
                      std::string_view suffix) const override {
    const View v(*this, point);
    const int64_t n = d.const_extents()[1];
    KernelSource s;
    s.text = SourceBuilder(suffix)
                 .type("T", element(d))
                 .let("N", n)
                 .let("W", v["lanes"])
                 .let("FORM", v["form"])
                 .let("UNROLL", v["unroll"])
                 .let("UNROLL2", v["unroll2"])
                 .let("ROWS", v["rows"])
                 .let("HOLD", v["hold"])
                 .let("AHEAD", v["ahead"])
                 .let("NEWTON", v["newton"])
                 .let("STREAM", v["stream"])
                 .let_float("EPS", d.attr("eps"))
                 .body(kBody)
                 .take();
    s.plan.phases = {
        {"run" + std::string(suffix), {{0, v["rows"]}}, parallel_min_tasks(v["serial"], n * v["rows"])}};
    s.limits = any_problem(d);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CpuTarget& t, const View& v) const override {
    const int64_t n = d.const_extents()[1];
    if (v["lanes"] == 16 && !t.avx512) return false;
    if (v["unroll"] > 1 && n < 2 * v["lanes"] * v["unroll"]) return false;
    if (v["unroll2"] > 1 && n < 2 * v["lanes"] * v["unroll2"]) return false;
    if (v["hold"] && n * v["rows"] * 4 > (64 << 10)) return false;
    if (v["stream"] && n % (2 * v["lanes"]) != 0) return false;
    return t.threads > 1 || v["serial"] == params().back().values[0];
  }

  std::vector<Settings> seed_points(const Definition& d, const CpuTarget& t) const override {
    const int lanes = t.avx512 ? 16 : 8;
    const auto with = [&](Settings more) {
      more.emplace_back("lanes", lanes);
      return more;
    };
    (void)d;
    return {with({{"form", 1}, {"unroll", 2}, {"unroll2", 2}, {"rows", 2}}),
            with({{"form", 1}, {"unroll", 2}, {"unroll2", 2}, {"rows", 1}}),
            with({{"form", 0}, {"unroll", 4}, {"unroll2", 2}, {"rows", 2}}),
            with({{"form", 1}, {"unroll", 2}, {"unroll2", 2}, {"rows", 2}, {"hold", 1}}),
            with({{"form", 0}, {"unroll", 4}, {"unroll2", 2}, {"rows", 2}, {"hold", 1}}),
            with({{"form", 1}, {"unroll", 2}, {"unroll2", 1}, {"rows", 4}}),
            with({{"form", 1}, {"unroll", 1}, {"unroll2", 1}, {"rows", 1}, {"newton", 1}}),
            with({{"form", 1}, {"unroll", 2}, {"unroll2", 2}, {"rows", 2}, {"stream", 1}})};
  }
};

}  // namespace

void add_layer_norm_family(evolve::FamilyRegistry& registry) {
  registry.add(std::make_shared<LayerNormFamily>());
}

}  // namespace niche::ops_cpu
