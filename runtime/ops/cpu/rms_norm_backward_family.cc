// rms_norm_backward: dx = r w dy - x r^3 / N sum(w dy x) row by row; dw = sum over rows of dy x r.
//
// dw is summed in f32, in `parts` fixed ranges of rows, whatever the number of threads: each range has an own
// accumulator in the workspace, and where there are several a second phase adds them up in order. Within a
// range sums go to a second level every kFlush groups of rows, so that the error does not grow with the
// number of rows. Schedules: `rows` together share the loads of the weight and the read-modify-write of the
// accumulator; `early` adds to dw in the first pass, where the product dy x is at hand, else in the second;
// `unroll`, `unroll2` pairs of vectors per pass; `ahead` prefetches rows; `stream` writes dx past the caches.
#include <algorithm>

#include "runtime/ops/cpu/families.h"
#include "runtime/ops/cpu/space_family.h"

namespace niche::ops_cpu {
namespace {

constexpr std::string_view kBody = R"(
typedef vf<W> F;
constexpr long BLOCK = 2 * W, BLOCKS = N / BLOCK, ONE = N % BLOCK / W, TAIL = N % W, FLUSH = 32;
constexpr long MAIN = BLOCKS / UNROLL * UNROLL, MAIN2 = BLOCKS / UNROLL2 * UNROLL2;
struct In { const T *dy, *x, *w; const float* rstd; T* dx; };

NICHE_INLINE F some(const T* p, int n) { return n == W ? load<W>(p) : load_n<W>(p, n); }

// R rows: dx, and dy x r added to acc (padded to whole vectors).
template <int R, bool NT> NICHE_INLINE void rows(const In in, float* acc) {
  F s[R][2 * UNROLL] = {};
  float r[R];
#pragma GCC unroll 8
  for (int k = 0; k < R; ++k) r[k] = in.rstd[k];
  const auto first = [&](long j, int u) __attribute__((always_inline)) {
    const Pair<W> w = load2<W>(in.w + j * BLOCK);
    Pair<W> sum = {};
    if constexpr (EARLY) sum = load2<W>(acc + j * BLOCK);
#pragma GCC unroll 8
    for (int k = 0; k < R; ++k) {
      const Pair<W> dy = load2<W>(in.dy + k * N + j * BLOCK), x = load2<W>(in.x + k * N + j * BLOCK);
      const F a = dy.a * x.a, b = dy.b * x.b;
      s[k][2 * u] = fma(w.a, a, s[k][2 * u]), s[k][2 * u + 1] = fma(w.b, b, s[k][2 * u + 1]);
      if constexpr (EARLY) sum = {fma(a, splat<W>(r[k]), sum.a), fma(b, splat<W>(r[k]), sum.b)};
    }
    if constexpr (EARLY) store2<W>(acc + j * BLOCK, sum);
  };
  for (long j = 0; j < MAIN; j += UNROLL) {
#pragma GCC unroll 8
    for (int u = 0; u < UNROLL; ++u) first(j + u, u);
  }
#pragma GCC unroll 8
  for (int u = 0; u < BLOCKS - MAIN; ++u) first(MAIN + u, u);
  const auto rest = [&](long i, int n, int u) __attribute__((always_inline)) {
    const F w = some(in.w + i, n);
    F sum = load<W>(acc + i);
#pragma GCC unroll 8
    for (int k = 0; k < R; ++k) {
      const F a = some(in.dy + k * N + i, n) * some(in.x + k * N + i, n);
      s[k][u] = fma(w, a, s[k][u]);
      sum = fma(a, splat<W>(r[k]), sum);
    }
    store(acc + i, sum);
  };
  if constexpr (ONE) rest(BLOCKS * BLOCK, W, 0);
  if constexpr (TAIL) rest(N - TAIL, TAIL, 1);
  F scale[R], back[R];
#pragma GCC unroll 8
  for (int k = 0; k < R; ++k) {
#pragma GCC unroll 16
    for (int u = 1; u < 2 * UNROLL; ++u) s[k][0] += s[k][u];
    scale[k] = splat<W>(r[k]);
    back[k] = splat<W>(-(r[k] * r[k]) * (r[k] * (1.0f / N)) * hsum(s[k][0]));
  }
  const auto second = [&](long j) __attribute__((always_inline)) {
    const Pair<W> w = load2<W>(in.w + j * BLOCK);
    Pair<W> sum = {};
    if constexpr (!EARLY) sum = load2<W>(acc + j * BLOCK);
#pragma GCC unroll 8
    for (int k = 0; k < R; ++k) {
      const long i = k * N + j * BLOCK;
      if constexpr (AHEAD) __builtin_prefetch(in.dy + AHEAD * R * N + i), __builtin_prefetch(in.x + AHEAD * R * N + i);
      Pair<W> dy = load2<W>(in.dy + i);
      const Pair<W> x = load2<W>(in.x + i);
      dy = {dy.a * scale[k], dy.b * scale[k]};
      if constexpr (!EARLY) sum = {fma(dy.a, x.a, sum.a), fma(dy.b, x.b, sum.b)};
      const Pair<W> dx = {fma(dy.a, w.a, x.a * back[k]), fma(dy.b, w.b, x.b * back[k])};
      if constexpr (NT) stream2<W>(in.dx + i, dx);
      else store2<W>(in.dx + i, dx);
    }
    if constexpr (!EARLY) store2<W>(acc + j * BLOCK, sum);
  };
  for (long j = 0; j < MAIN2; j += UNROLL2) {
#pragma GCC unroll 8
    for (int u = 0; u < UNROLL2; ++u) second(j + u);
  }
#pragma GCC unroll 8
  for (long j = MAIN2; j < BLOCKS; ++j) second(j);
#pragma GCC unroll 8
  for (int k = 0; k < R; ++k) {
    if constexpr (ONE) {
      constexpr long i = BLOCKS * BLOCK;
      const F g = load<W>(in.dy + k * N + i) * scale[k] * load<W>(in.w + i);
      store(in.dx + k * N + i, fma(load<W>(in.x + k * N + i), back[k], g));
    }
    if constexpr (TAIL) {
      constexpr long i = N - TAIL;
      const F g = load_n<W>(in.dy + k * N + i, TAIL) * scale[k] * load_n<W>(in.w + i, TAIL);
      store_n(in.dx + k * N + i, fma(load_n<W>(in.x + k * N + i, TAIL), back[k], g), TAIL);
    }
  }
}
NICHE_INLINE void flush(float* total, float* acc) {
  for (long i = 0; i < PADDED; i += W) {
    store(total + i, load<W>(total + i) + load<W>(acc + i));
    store(acc + i, F{});
  }
}
template <bool NT> NICHE_INLINE void range(In in, long n, float* total, float* acc) {
  __builtin_memset(acc, 0, PADDED * sizeof(float));
  __builtin_memset(total, 0, PADDED * sizeof(float));
  const auto step = [&](long k) __attribute__((always_inline)) {
    in.dy += k * N, in.x += k * N, in.dx += k * N, in.rstd += k;
  };
  long m = 0, groups = 0;
  for (; m + ROWS <= n; m += ROWS, step(ROWS)) {
    rows<ROWS, NT>(in, acc);
    if (++groups % FLUSH == 0) flush(total, acc);
  }
  for (; m < n; ++m, step(1)) rows<1, NT>(in, acc);
  flush(total, acc);
}
// Writes dw from the f32 sum; bf16 sums lie as pairs of even and odd elements.
NICHE_INLINE void finish(T* dw, const float* total, long blocks) {
  for (long j = 0; j < blocks; ++j) store2<W>(dw + j * BLOCK, load2<W>(total + j * BLOCK));
}
// What whole pairs leave over; `total` starts at element `from`.
NICHE_INLINE void finish_rest(T* dw, const float* total, long from) {
  if constexpr (ONE) store(dw + BLOCKS * BLOCK, load<W>(total + BLOCKS * BLOCK - from));
  if constexpr (TAIL) store_n(dw + N - TAIL, load<W>(total + N - TAIL - from), TAIL);
}
extern "C" void run@(const NicheKernelArgs* a, long begin, long end) {
  const long m = a->n[0];
  for (long t = begin; t < end; ++t) {
    const long from = m * t / PARTS, to = m * (t + 1) / PARTS;
    const In in = {(const T*)a->p[0] + from * N, (const T*)a->p[1] + from * N, (const T*)a->p[2],
                   (const float*)a->p[3] + from, (T*)a->p[4] + from * N};
    float* total = (float*)a->ws + t * 2 * PADDED;
    if (STREAM && aligned(in.dx, W * 4)) {
      range<STREAM != 0>(in, to - from, total, total + PADDED);
      stream_fence();
    } else {
      range<false>(in, to - from, total, total + PADDED);
    }
    if constexpr (PARTS == 1) {
      finish((T*)a->p[5], total, BLOCKS);
      finish_rest((T*)a->p[5], total, 0);
    }
  }
}
extern "C" void reduce@(const NicheKernelArgs* a, long begin, long end) {
  T* dw = (T*)a->p[5];
  const float* ws = (const float*)a->ws;
  // Tasks are REDUCE elements of dw; the last one also takes what is left of whole pairs.
  for (long t = begin; t < end; ++t) {
    float sum[REDUCE];
    const long from = t * REDUCE, n = lmin(REDUCE, PADDED - from);
    for (long i = 0; i < n; i += W) {
      F v = load<W>(ws + from + i);
#pragma GCC unroll 4
      for (long p = 1; p < PARTS; ++p) v += load<W>(ws + p * 2 * PADDED + from + i);
      store(sum + i, v);
    }
    finish(dw + from, sum, lmin(BLOCKS - from / BLOCK, REDUCE / BLOCK));
    if (from + REDUCE >= N) finish_rest(dw, sum, from);
  }
}
)";

class RmsNormBackwardFamily : public SpaceFamily {
 public:
  RmsNormBackwardFamily()
      : SpaceFamily("rms_norm_backward.rows", "rms_norm_backward",
                    {{"lanes", {8, 16}},
                     {"rows", {1, 2, 3, 4}},
                     {"early", {1, 0}},
                     {"unroll", {1, 2, 4}},
                     {"unroll2", {1, 2, 4}},
                     {"ahead", {0, 1, 2}},
                     {"stream", {0, 1}},
                     {"parts", {1, 2, 4, 8, 16}}}) {}

  KernelSource render(const Definition& d, const CpuTarget& t, const Point& point,
                      std::string_view suffix) const override {
    const View v(*this, point);
    const int64_t n = d.const_extents()[1], padded = (n + 31) / 32 * 32;
    const int64_t divisor = (n + v["parts"] - 1) / v["parts"];
    const int64_t parts = (n + divisor - 1) / divisor;  // tasks are counted on the axis N, which is constant
    const std::string tag(suffix);
    KernelSource s;
    s.text = SourceBuilder(suffix)
                 .type("T", element(d))
                 .let("N", n)
                 .let("PADDED", padded)
                 .let("PARTS", parts)
                 .let("REDUCE", kReduce)
                 .let("W", v["lanes"])
                 .let("ROWS", v["rows"])
                 .let("EARLY", v["early"])
                 .let("UNROLL", v["unroll"])
                 .let("UNROLL2", v["unroll2"])
                 .let("AHEAD", v["ahead"])
                 .let("STREAM", v["stream"])
                 .body(kBody)
                 .take();
    s.plan.phases = {{"run" + tag, {{1, divisor}}, 2}};
    if (parts > 1) s.plan.phases.push_back({"reduce" + tag, {{1, kReduce}}, 8});
    s.plan.workspace_bytes = parts * 2 * padded * 4;
    s.limits = any_problem(d);
    s.properties.batch_invariant = false;  // dw sums over the batch
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CpuTarget& t, const View& v) const override {
    const int64_t n = d.const_extents()[1];
    if (v["lanes"] == 16 && !t.avx512) return false;
    if (v["unroll"] > 1 && n < 2 * v["lanes"] * v["unroll"]) return false;
    if (v["unroll2"] > 1 && n < 2 * v["lanes"] * v["unroll2"]) return false;
    if (v["rows"] * v["unroll"] > (t.avx512 ? 12 : 6)) return false;
    if (v["stream"] && n % (2 * v["lanes"]) != 0) return false;
    // One thread still may want several parts, for the length of its sums; but not many.
    return v["parts"] <= std::max(2, 4 * t.threads) && (t.threads > 1 || v["parts"] <= 2);
  }

  std::vector<Settings> seed_points(const Definition&, const CpuTarget& t) const override {
    const int lanes = t.avx512 ? 16 : 8, parts = t.threads > 4   ? 16
                                                 : t.threads > 2 ? 8
                                                 : t.threads > 1 ? 2
                                                                 : 1;
    const auto with = [&](Settings more) {
      more.emplace_back("lanes", lanes);
      more.emplace_back("parts", parts);
      return more;
    };
    return {with({{"rows", 2}, {"early", 1}, {"unroll", 1}, {"unroll2", 1}}),
            with({{"rows", 4}, {"early", 1}, {"unroll", 1}, {"unroll2", 1}}),
            with({{"rows", 2}, {"early", 0}, {"unroll", 2}, {"unroll2", 1}}),
            with({{"rows", 1}, {"early", 1}, {"unroll", 2}, {"unroll2", 2}}),
            with({{"rows", 2}, {"early", 1}, {"unroll", 1}, {"unroll2", 1}, {"stream", 1}}),
            with({{"rows", 2}, {"early", 1}, {"unroll", 1}, {"unroll2", 1}, {"ahead", 1}}),
            {{"lanes", lanes}, {"rows", 2}, {"early", 1}, {"parts", 1}},
            {{"lanes", 8}, {"rows", 1}}};
  }

 private:
  static constexpr int64_t kReduce = 1024;  // a multiple of every pair of vectors
};

}  // namespace

void add_rms_norm_backward_family(evolve::FamilyRegistry& registry) {
  registry.add(std::make_shared<RmsNormBackwardFamily>());
}

}  // namespace niche::ops_cpu
