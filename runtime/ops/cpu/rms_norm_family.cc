// rms_norm, fused_add_rms_norm and its in-place form: one pass over a row for the sum of squares, one that
// scales.
//
// Schedules: `lanes` floats a vector; `unroll` pairs of vectors in flight in pass 1 (each pair has its own
// two accumulators), `unroll2` in pass 2; `rows` done together, so that pass 2 loads a weight once for all of
// them; `hold` keeps the row as f32 (in registers while it is short, on the stack otherwise) instead of
// reading it again: saves the second conversion of bf16, and the read-back of what pass 1 just wrote; `ahead`
// prefetches that many groups of rows ahead; `newton` replaces square root and division by an estimate and
// one step; `stream` writes y past the caches; `dot` squares bf16 pairs with vdpbf16ps; `serial` is the
// number of Ki elements from which threads are used.
#include "runtime/ops/cpu/families.h"
#include "runtime/ops/cpu/space_family.h"

namespace niche::ops_cpu {
namespace {

constexpr std::string_view kBody = R"(
constexpr long BLOCK = 2 * W, BLOCKS = N / BLOCK, ONE = N % BLOCK / W, TAIL = N % W;
constexpr long VECS = 2 * BLOCKS + ONE + (TAIL > 0);
typedef vf<W> F;
struct Io { const T* x; const T* res; T* sum; T* y; const T* w; };

NICHE_INLINE F rounded(F h) {
  if constexpr (sizeof(T) == 2) return as_bf16(h);
  else return h;
}
// An element of the row to normalise: x, or T(x + residual), which is stored on the way.
NICHE_INLINE Pair<W> first2(const Io& io, long i) {
  Pair<W> v = load2<W>(io.x + i);
  if constexpr (ADD) {
    const Pair<W> r = load2<W>(io.res + i);
    v = {v.a + r.a, v.b + r.b};
    if constexpr (sizeof(T) == 2) {
      const auto h = narrow_pair<W>(v);
      store_as(io.sum + i, h);
      v = widen_pair<W>(h);
    } else {
      store2<W>(io.sum + i, v);
    }
  }
  return v;
}
NICHE_INLINE F first1(const Io& io, long i, int n) {
  F v = n == W ? load<W>(io.x + i) : load_n<W>(io.x + i, n);
  if constexpr (ADD) {
    v = rounded(v + (n == W ? load<W>(io.res + i) : load_n<W>(io.res + i, n)));
    if (n == W) store(io.sum + i, v);
    else store_n(io.sum + i, v, n);
  }
  return v;
}

template <int R, bool NT> NICHE_INLINE void rows(const Io io) {
  F acc[R][2 * UNROLL] = {};
  F kept[R][HOLD ? VECS : 1];
  const T* again = ADD ? io.sum : io.x;
  constexpr long MAIN = BLOCKS / UNROLL * UNROLL;
  const auto square = [&](int r, long j, int u) __attribute__((always_inline)) {
#ifdef __AVX512BF16__
    if constexpr (DOT) {
      const u16x32 raw = load_as<u16x32>(io.x + r * N + j * BLOCK);
      acc[r][2 * u] = dot_pairs(acc[r][2 * u], raw, raw);
      return;
    }
#endif
    const Pair<W> v = first2(io, r * N + j * BLOCK);
    if constexpr (HOLD) kept[r][2 * j] = v.a, kept[r][2 * j + 1] = v.b;
    acc[r][2 * u] = fma(v.a, v.a, acc[r][2 * u]);
    acc[r][2 * u + 1] = fma(v.b, v.b, acc[r][2 * u + 1]);
  };
  for (long j = 0; j < MAIN; j += UNROLL) {
#pragma GCC unroll 8
    for (int u = 0; u < UNROLL; ++u)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) square(r, j + u, u);
  }
#pragma GCC unroll 8
  for (int u = 0; u < BLOCKS - MAIN; ++u)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) square(r, MAIN + u, u);
  F scale[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    if constexpr (ONE) {
      const F v = first1(io, r * N + BLOCKS * BLOCK, W);
      if constexpr (HOLD) kept[r][2 * BLOCKS] = v;
      acc[r][0] = fma(v, v, acc[r][0]);
    }
    if constexpr (TAIL) {
      const F v = first1(io, r * N + N - TAIL, TAIL);
      if constexpr (HOLD) kept[r][VECS - 1] = v;
      acc[r][1] = fma(v, v, acc[r][1]);
    }
#pragma GCC unroll 16
    for (int u = 1; u < 2 * UNROLL; ++u) acc[r][0] += acc[r][u];
    const float mean = hsum(acc[r][0]) * (1.0f / N) + EPS;
    if constexpr (NEWTON) scale[r] = rsqrt(splat<W>(mean));
    else scale[r] = splat<W>(1.0f / sqrt1(mean));
  }
  constexpr long MAIN2 = BLOCKS / UNROLL2 * UNROLL2;
  const auto scale2 = [&](long j) __attribute__((always_inline)) {
    const Pair<W> w = load2<W>(io.w + j * BLOCK);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const long i = r * N + j * BLOCK;
      if constexpr (AHEAD) {
        __builtin_prefetch(io.x + AHEAD * R * N + i);
        if constexpr (ADD) __builtin_prefetch(io.res + AHEAD * R * N + i);
      }
      Pair<W> v;
      if constexpr (HOLD) v = {kept[r][2 * j], kept[r][2 * j + 1]};
      else v = load2<W>(again + i);
      v = {v.a * scale[r] * w.a, v.b * scale[r] * w.b};
      if constexpr (NT) stream2<W>(io.y + i, v);
      else store2<W>(io.y + i, v);
    }
  };
  for (long j = 0; j < MAIN2; j += UNROLL2) {
#pragma GCC unroll 8
    for (int u = 0; u < UNROLL2; ++u) scale2(j + u);
  }
#pragma GCC unroll 8
  for (long j = MAIN2; j < BLOCKS; ++j) scale2(j);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    if constexpr (ONE) {
      constexpr long i = BLOCKS * BLOCK;
      const F v = HOLD ? kept[r][HOLD ? 2 * BLOCKS : 0] : load<W>(again + r * N + i);
      const F y = v * scale[r] * load<W>(io.w + i);
      if constexpr (NT) stream(io.y + r * N + i, y);
      else store(io.y + r * N + i, y);
    }
    if constexpr (TAIL) {
      constexpr long i = N - TAIL;
      F v;
      if constexpr (HOLD) v = kept[r][VECS - 1];
      else v = load_n<W>(again + r * N + i, TAIL);
      store_n(io.y + r * N + i, v * scale[r] * load_n<W>(io.w + i, TAIL), TAIL);
    }
  }
}

template <bool NT> NICHE_INLINE void all(Io io, long begin, long end) {
  io.x += begin * N, io.y += begin * N, io.res += begin * N, io.sum += begin * N;
  long m = begin;
  for (; m + ROWS <= end; m += ROWS) {
    rows<ROWS, NT>(io);
    io.x += ROWS * N, io.y += ROWS * N, io.res += ROWS * N, io.sum += ROWS * N;
  }
  for (; m < end; ++m) {
    rows<1, NT>(io);
    io.x += N, io.y += N, io.res += N, io.sum += N;
  }
}

extern "C" void run@(const NicheKernelArgs* a, long begin, long end) {
  begin *= ROWS;
  end = lmin(end * ROWS, a->n[0]);
  Io io;
  if constexpr (INPLACE)
    io = {(const T*)a->p[1], (const T*)a->p[2], (T*)a->p[2], (T*)a->p[1], (const T*)a->p[0]};
  else if constexpr (ADD)
    io = {(const T*)a->p[0], (const T*)a->p[1], (T*)a->p[4], (T*)a->p[3], (const T*)a->p[2]};
  else
    io = {(const T*)a->p[0], (const T*)a->p[0], (T*)a->p[2], (T*)a->p[2], (const T*)a->p[1]};
  if constexpr (STREAM)
    if (aligned(io.y, W * 4)) {
      all<true>(io, begin, end);
      stream_fence();
      return;
    }
  all<false>(io, begin, end);
}
)";

enum class Form { kPlain, kAdd, kInPlace };

class RmsNormFamily : public SpaceFamily {
 public:
  RmsNormFamily(Form form, const std::string& op)
      : SpaceFamily(op + ".rows", op,
                    {{"lanes", {8, 16}},
                     {"unroll", {1, 2, 4, 8}},
                     {"unroll2", {1, 2, 4, 8}},
                     {"rows", {1, 2, 3, 4}},
                     {"hold", {0, 1}},
                     {"ahead", {0, 1, 2, 4}},
                     {"newton", {0, 1}},
                     {"stream", {0, 1}},
                     {"dot", {0, 1}},
                     {"serial", {64, 16, 256}}}),
        form_(form) {}

  KernelSource render(const Definition& d, const CpuTarget& t, const Point& point,
                      std::string_view suffix) const override {
    const View v(*this, point);
    const int64_t n = d.const_extents()[1];
    KernelSource s;
    s.text = SourceBuilder(suffix)
                 .type("T", element(d))
                 .let("N", n)
                 .let("W", v["lanes"])
                 .let("UNROLL", v["unroll"])
                 .let("UNROLL2", v["unroll2"])
                 .let("ROWS", v["rows"])
                 .let("HOLD", v["hold"])
                 .let("AHEAD", v["ahead"])
                 .let("NEWTON", v["newton"])
                 .let("STREAM", v["stream"])
                 .let("DOT", v["dot"])
                 .let("ADD", form_ != Form::kPlain)
                 .let("INPLACE", form_ == Form::kInPlace)
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
    const int registers = t.avx512 ? 32 : 16;
    if (v["lanes"] == 16 && !t.avx512) return false;
    if (v["rows"] * v["unroll"] * 2 > registers) return false;
    if (v["unroll"] > 1 && n < 2 * v["lanes"] * v["unroll"]) return false;
    if (v["unroll2"] > 1 && n < 2 * v["lanes"] * v["unroll2"]) return false;
    if (v["hold"] && n * v["rows"] * 4 > (64 << 10)) return false;
    if (v["stream"] && (n % (2 * v["lanes"]) != 0 || form_ == Form::kInPlace)) return false;
    if (v["dot"] && (!t.avx512_bf16 || !is_bf16(d) || v["lanes"] != 16 || form_ != Form::kPlain || v["hold"]))
      return false;
    return t.threads > 1 || v["serial"] == params().back().values[0];
  }

  std::vector<Settings> seed_points(const Definition& d, const CpuTarget& t) const override {
    const int lanes = t.avx512 ? 16 : 8;
    std::vector<Settings> s;
    if (is_bf16(d)) s.push_back({{"lanes", lanes}, {"unroll", 4}, {"unroll2", 2}, {"rows", 1}, {"dot", 1}});
    s.push_back({{"lanes", lanes}, {"unroll", 4}, {"unroll2", 2}, {"rows", 1}});
    s.push_back({{"lanes", lanes}, {"unroll", 2}, {"unroll2", 2}, {"rows", 2}});
    s.push_back({{"lanes", lanes}, {"unroll", 4}, {"unroll2", 2}, {"rows", 1}, {"hold", 1}});
    s.push_back({{"lanes", lanes}, {"unroll", 2}, {"unroll2", 2}, {"rows", 2}, {"hold", 1}});
    s.push_back({{"lanes", lanes}, {"unroll", 2}, {"unroll2", 2}, {"rows", 2}, {"ahead", 1}});
    s.push_back({{"lanes", lanes}, {"unroll", 1}, {"unroll2", 1}, {"rows", 4}, {"newton", 1}});
    s.push_back({{"lanes", lanes}, {"unroll", 2}, {"unroll2", 2}, {"rows", 2}, {"stream", 1}});
    s.push_back({{"lanes", 8}, {"unroll", 1}, {"unroll2", 1}, {"rows", 1}});
    return s;
  }

 private:
  Form form_;
};

}  // namespace

void add_rms_norm_families(evolve::FamilyRegistry& registry) {
  registry.add(std::make_shared<RmsNormFamily>(Form::kPlain, "rms_norm"));
  registry.add(std::make_shared<RmsNormFamily>(Form::kAdd, "fused_add_rms_norm"));
  registry.add(std::make_shared<RmsNormFamily>(Form::kInPlace, "fused_add_rms_norm_inplace"));
}

}  // namespace niche::ops_cpu
