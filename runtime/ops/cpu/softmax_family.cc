// softmax over the last axis.
//
// Schedules: `form` 0 stores the exponentials and scales them in a last pass, 1 computes them twice and
// stores once, 2 keeps the whole row in registers (short rows). `chunk` elements (0: the row) are read, their
// maximum taken and their exponentials stored while they are in the first-level cache; the last pass then
// corrects each chunk by e^(its maximum - the row's): a long row is read once from beyond. `unroll` pairs in
// the maximum pass, `unroll2` in the exponential pass, `unroll3` in the last; `degree`, `rest`, `scale` as in
// silu_mul. bf16 rows keep their exponentials as f32 on the stack.
#include <algorithm>

#include "runtime/ops/cpu/families.h"
#include "runtime/ops/cpu/space_family.h"

namespace niche::ops_cpu {
namespace {

constexpr std::string_view kBody = R"(
typedef vf<W> F;
constexpr long BLOCK = 2 * W, STEP = CHUNK > 0 ? CHUNK : N;
constexpr float INF = __builtin_inff();
NICHE_INLINE F e_to(F x) { return exp_nonpos<DEG, REST != 0, SCALE ? Scale::kAddExponent : Scale::kMultiply>(x); }

NICHE_INLINE float exp_one(float x) { return exp_nonpos<6>(splat<8>(x))[0]; }

// Maximum of n elements (a compile-time constant once inlined).
NICHE_INLINE float max_of(const T* x, long n) {
  F m[2 * UNROLL];
#pragma GCC unroll 16
  for (int u = 0; u < 2 * UNROLL; ++u) m[u] = splat<W>(-INF);
  const long blocks = n / BLOCK, main = blocks / UNROLL * UNROLL;
  for (long j = 0; j < main; j += UNROLL) {
#pragma GCC unroll 8
    for (int u = 0; u < UNROLL; ++u) {
      const Pair<W> v = load2<W>(x + (j + u) * BLOCK);
      m[2 * u] = vmax(m[2 * u], v.a), m[2 * u + 1] = vmax(m[2 * u + 1], v.b);
    }
  }
  for (long j = main; j < blocks; ++j) {
    const Pair<W> v = load2<W>(x + j * BLOCK);
    m[0] = vmax(m[0], v.a), m[1] = vmax(m[1], v.b);
  }
  if (n % BLOCK >= W) m[0] = vmax(m[0], load<W>(x + blocks * BLOCK));
  if (n % W) m[1] = vmax(m[1], keep_n(load_n<W>(x + n - n % W, n % W), n % W, splat<W>(-INF)));
#pragma GCC unroll 16
  for (int u = 1; u < 2 * UNROLL; ++u) m[0] = vmax(m[0], m[u]);
  return hmax(m[0]);
}

// Sum of e^(x - max); each is stored in e unless e is null.
template <bool KEEP> NICHE_INLINE float exp_sum(const T* x, float* e, long n, float max) {
  const F m = splat<W>(max);
  F s[2 * UNROLL2] = {};
  const long blocks = n / BLOCK, main = blocks / UNROLL2 * UNROLL2;
  const auto block = [&](long j, int u) __attribute__((always_inline)) {
    Pair<W> v = load2<W>(x + j * BLOCK);
    v = {e_to(v.a - m), e_to(v.b - m)};
    if constexpr (KEEP) store2<W>(e + j * BLOCK, v);
    s[2 * u] += v.a, s[2 * u + 1] += v.b;
  };
  for (long j = 0; j < main; j += UNROLL2) {
#pragma GCC unroll 8
    for (int u = 0; u < UNROLL2; ++u) block(j + u, u);
  }
  for (long j = main; j < blocks; ++j) block(j, 0);
  if (n % BLOCK >= W) {
    const F v = e_to(load<W>(x + blocks * BLOCK) - m);
    if constexpr (KEEP) store(e + blocks * BLOCK, v);
    s[0] += v;
  }
  if (n % W) {
    const F v = keep_n(e_to(load_n<W>(x + n - n % W, n % W) - m), n % W, F{});
    if constexpr (KEEP) store_n(e + n - n % W, v, n % W);
    s[1] += v;
  }
#pragma GCC unroll 16
  for (int u = 1; u < 2 * UNROLL2; ++u) s[0] += s[u];
  return hsum(s[0]);
}

// y = e * factor, or e^(x - max) * factor.
template <bool KEPT> NICHE_INLINE void finish(const T* x, const float* e, T* y, long n, float max, float factor) {
  const F k = splat<W>(factor), m = splat<W>(max);
  const long blocks = n / BLOCK, main = blocks / UNROLL3 * UNROLL3;
  const auto block = [&](long j) __attribute__((always_inline)) {
    Pair<W> v;
    if constexpr (KEPT) {
      v = load2<W>(e + j * BLOCK);
    } else {
      v = load2<W>(x + j * BLOCK);
      v = {e_to(v.a - m), e_to(v.b - m)};
    }
    store2<W>(y + j * BLOCK, {v.a * k, v.b * k});
  };
  for (long j = 0; j < main; j += UNROLL3) {
#pragma GCC unroll 8
    for (int u = 0; u < UNROLL3; ++u) block(j + u);
  }
  for (long j = main; j < blocks; ++j) block(j);
  if (n % BLOCK >= W) {
    const long i = blocks * BLOCK;
    store(y + i, (KEPT ? load<W>(e + i) : e_to(load<W>(x + i) - m)) * k);
  }
  if (n % W) {
    const long i = n - n % W;
    store_n(y + i, (KEPT ? load_n<W>(e + i, n % W) : e_to(load_n<W>(x + i, n % W) - m)) * k, n % W);
  }
}

// Stores in `e` what finish<true> reads in the same order: bf16 pairs come apart into even and odd elements, which is
// undone there because f32 scratch is never looked at otherwise.
NICHE_INLINE void row(const T* x, T* y) {
  if constexpr (FORM == 2) {
    constexpr long BLOCKS = N / BLOCK, ONE = N % BLOCK / W, TAIL = N % W;
    F v[2 * BLOCKS + 2];
#pragma GCC unroll 16
    for (int j = 0; j < BLOCKS; ++j) {
      const Pair<W> p = load2<W>(x + j * BLOCK);
      v[2 * j] = p.a, v[2 * j + 1] = p.b;
    }
    v[2 * BLOCKS] = ONE ? load<W>(x + BLOCKS * BLOCK) : splat<W>(-INF);
    if constexpr (TAIL) v[2 * BLOCKS + 1] = keep_n(load_n<W>(x + N - TAIL, TAIL), TAIL, splat<W>(-INF));
    else v[2 * BLOCKS + 1] = splat<W>(-INF);
    F m = v[0];
    constexpr int LAST = 2 * BLOCKS + (TAIL ? 2 : ONE ? 1 : 0);
#pragma GCC unroll 32
    for (int j = BLOCKS ? 1 : 0; j < LAST; ++j) m = vmax(m, v[j]);
    m = splat<W>(hmax(m));
    F s[2] = {};
#pragma GCC unroll 32
    for (int j = 0; j < LAST; ++j) {
      if (!ONE && j == 2 * BLOCKS) continue;
      v[j] = e_to(v[j] - m);
      if (j == 2 * BLOCKS + 1) v[j] = keep_n(v[j], TAIL, F{});
      s[j % 2] += v[j];
    }
    const F k = splat<W>(1.0f / hsum(s[0] + s[1]));
#pragma GCC unroll 16
    for (int j = 0; j < BLOCKS; ++j) store2<W>(y + j * BLOCK, {v[2 * j] * k, v[2 * j + 1] * k});
    if constexpr (ONE) store(y + BLOCKS * BLOCK, v[2 * BLOCKS] * k);
    if constexpr (TAIL) store_n(y + N - TAIL, v[2 * BLOCKS + 1] * k, TAIL);
    return;
  }
  if constexpr (FORM == 1) {
    const float m = max_of(x, N);
    finish<false>(x, nullptr, y, N, m, 1.0f / exp_sum<false>(x, nullptr, N, m));
    return;
  }
  float scratch[sizeof(T) == 2 ? N : 1];
  float* e = sizeof(T) == 2 ? scratch : (float*)y;
  if constexpr (STEP == N) {
    const float m = max_of(x, N);
    finish<true>(x, e, y, N, m, 1.0f / exp_sum<true>(x, e, N, m));
  } else {
    constexpr long CHUNKS = (N + STEP - 1) / STEP;
    float maxima[CHUNKS], m = -INF, sum = 0;
    for (long c = 0; c < CHUNKS; ++c) {
      const long i = c * STEP, n = c + 1 < CHUNKS ? STEP : N - i;
      const float own = max_of(x + i, n);
      maxima[c] = own;
      // A chunk of -inf alone: e^(-inf - 0) stores its zeros, and the running maximum does not change.
      const float part = exp_sum<true>(x + i, e + i, n, own == -INF ? 0.0f : own);
      if (own == -INF) continue;
      const float larger = own > m ? own : m;
      sum = sum * exp_one(m - larger) + part * exp_one(own - larger);
      m = larger;
    }
    for (long c = 0; c < CHUNKS; ++c) {
      const long i = c * STEP, n = c + 1 < CHUNKS ? STEP : N - i;
      finish<true>(x + i, e + i, y + i, n, m, exp_one(maxima[c] - m) / sum);
    }
  }
}
extern "C" void run@(const NicheKernelArgs* a, long begin, long end) {
  begin *= ROWS;
  end = lmin(end * ROWS, a->n[0]);
  const T* x = (const T*)a->p[0];
  T* y = (T*)a->p[1];
  for (long m = begin; m < end; ++m) row(x + m * N, y + m * N);
}
)";

class SoftmaxFamily : public SpaceFamily {
 public:
  SoftmaxFamily()
      : SpaceFamily("softmax.rows", "softmax",
                    {{"lanes", {8, 16}},
                     {"form", {0, 1, 2}},
                     {"chunk", {0, 256, 512, 1024, 2048, 4096}},
                     {"unroll", {2, 4, 1}},
                     {"unroll2", {1, 2, 3, 4}},
                     {"unroll3", {2, 4, 1}},
                     {"degree", {6, 5, 4, 3}},
                     {"rest", {1, 0}},
                     {"scale", {0, 1}},
                     {"serial", {16, 4, 64}}}) {}

  KernelSource render(const Definition& d, const CpuTarget& t, const Point& point,
                      std::string_view suffix) const override {
    const View v(*this, point);
    const int64_t n = d.const_extents()[1];
    const int64_t rows = std::max<int64_t>(1, kTaskElements / n);
    KernelSource s;
    s.text = SourceBuilder(suffix)
                 .type("T", element(d))
                 .let("N", n)
                 .let("ROWS", rows)
                 .let("W", v["lanes"])
                 .let("FORM", v["form"])
                 .let("CHUNK", v["chunk"])
                 .let("UNROLL", v["unroll"])
                 .let("UNROLL2", v["unroll2"])
                 .let("UNROLL3", v["unroll3"])
                 .let("DEG", v["degree"])
                 .let("REST", v["rest"])
                 .let("SCALE", v["scale"])
                 .body(kBody)
                 .take();
    s.plan.phases = {{"run" + std::string(suffix), {{0, rows}}, parallel_min_tasks(v["serial"], n * rows)}};
    s.limits = any_problem(d);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CpuTarget& t, const View& v) const override {
    const int64_t n = d.const_extents()[1];
    const int lanes = v["lanes"], form = v["form"];
    if (lanes == 16 && !t.avx512) return false;
    if (v["degree"] < 5 && !is_bf16(d)) return false;
    if (form == 0 && is_bf16(d) && n > kScratchElements) return false;
    if (v["chunk"] != 0 && (form != 0 || v["chunk"] >= n)) return false;
    // Registers: the row, its maximum, and what the exponential needs.
    if (form == 2 &&
        (n > lanes * (t.avx512 ? 28 : 16) || v["unroll"] != 2 || v["unroll2"] != 1 || v["unroll3"] != 2))
      return false;
    if (form == 1 && v["unroll3"] > 2) return false;
    const int64_t pairs = std::max<int64_t>(1, n / (2 * lanes));
    if (v["unroll"] > std::max<int64_t>(2, pairs) || v["unroll2"] > pairs ||
        v["unroll3"] > std::max<int64_t>(2, pairs))
      return false;
    return t.threads > 1 || v["serial"] == params().back().values[0];
  }

  std::vector<Settings> seed_points(const Definition& d, const CpuTarget& t) const override {
    const int lanes = t.avx512 ? 16 : 8, degree = is_bf16(d) ? 3 : 5, rest = is_bf16(d) ? 0 : 1;
    const std::vector<Setting> shared = {{"lanes", lanes}, {"degree", degree}, {"rest", rest}};
    const auto with = [&](Settings more) {
      Settings s = shared;
      s.insert(s.end(), more.begin(), more.end());
      return s;
    };
    return {with({{"form", 2}, {"scale", 1}}),
            with({{"unroll", 4}, {"unroll2", 2}, {"unroll3", 4}, {"scale", 1}}),
            with({{"unroll", 4}, {"unroll2", 2}, {"unroll3", 4}}),
            with({{"unroll", 4}, {"unroll2", 1}, {"unroll3", 2}, {"scale", 1}}),
            with({{"chunk", 1024}, {"unroll", 4}, {"unroll2", 2}, {"unroll3", 4}, {"scale", 1}}),
            with({{"form", 1}, {"unroll", 4}, {"unroll2", 2}, {"unroll3", 2}, {"scale", 1}}),
            with({{"form", 2}}),
            {{"lanes", lanes}, {"degree", 6}, {"unroll", 4}, {"unroll2", 2}, {"unroll3", 4}},
            {{"lanes", 8}, {"degree", 6}}};
  }

 private:
  static constexpr int64_t kTaskElements = 2048;      // a task is at least that much work, some µs
  static constexpr int64_t kScratchElements = 65536;  // f32 row on the stack, 256 KiB
};

}  // namespace

void add_softmax_family(evolve::FamilyRegistry& registry) { registry.add(std::make_shared<SoftmaxFamily>()); }

}  // namespace niche::ops_cpu
