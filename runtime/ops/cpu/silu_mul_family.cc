// silu_mul: y = gate * sigmoid(gate) * up, element by element over the flat range of a task's rows.
//
// Bound by the exponential and the division, not by memory (docs/templates.md). Schedules: `lanes`; `unroll`
// pairs of vectors in flight; `degree` of the exponential's polynomial and `rest` of its argument reduction,
// lower ones for bf16 whose rounding hides them; `scale` of 2^n by multiplication or in the exponent; `recip`
// divides, or multiplies by an estimate with one Newton step, or (bf16) by the bare estimate; `stream` past
// the caches; `ahead` bytes of prefetch.
#include <algorithm>

#include "runtime/ops/cpu/families.h"
#include "runtime/ops/cpu/space_family.h"

namespace niche::ops_cpu {
namespace {

constexpr std::string_view kBody = R"(
typedef vf<W> F;
NICHE_INLINE F silu_mul(F g, F u) {
  const F d = one_plus_exp_neg<DEG, REST != 0, SCALE ? Scale::kAddExponent : Scale::kMultiply>(g);
  if constexpr (RECIP == 0) return g * u / d;
  else if constexpr (RECIP == 1) return g * u * rcp(d);
  else return g * u * rcp_approx(d);
}
template <bool NT> NICHE_INLINE void pair(const T* g, const T* u, T* y) {
  if constexpr (AHEAD) {
    __builtin_prefetch((const char*)g + AHEAD);
    __builtin_prefetch((const char*)u + AHEAD);
  }
  const Pair<W> a = load2<W>(g), b = load2<W>(u);
  const Pair<W> v = {silu_mul(a.a, b.a), silu_mul(a.b, b.b)};
  if constexpr (NT) stream2<W>(y, v);
  else store2<W>(y, v);
}
template <bool NT> NICHE_INLINE void all(const T* g, const T* u, T* y, long n) {
  long i = 0;
  for (; i + 2 * W * UNROLL <= n; i += 2 * W * UNROLL) {
#pragma GCC unroll 8
    for (int k = 0; k < UNROLL; ++k) pair<NT>(g + i + 2 * W * k, u + i + 2 * W * k, y + i + 2 * W * k);
  }
  for (; i + W <= n; i += W) store(y + i, silu_mul(load<W>(g + i), load<W>(u + i)));
  if (i < n) store_n(y + i, silu_mul(load_n<W>(g + i, n - i), load_n<W>(u + i, n - i)), n - i);
}
extern "C" void run@(const NicheKernelArgs* a, long begin, long end) {
  begin *= ROWS;
  end = lmin(end * ROWS, a->n[0]);
  const T* g = (const T*)a->p[0] + begin * N;
  const T* u = (const T*)a->p[1] + begin * N;
  T* y = (T*)a->p[2] + begin * N;
  if constexpr (STREAM)
    if (aligned(y, W * 4)) {
      all<true>(g, u, y, (end - begin) * N);
      stream_fence();
      return;
    }
  all<false>(g, u, y, (end - begin) * N);
}
)";

constexpr int64_t kTaskElements = 2048;  // a task is at least that much work, some µs

class SiluMulFamily : public SpaceFamily {
 public:
  SiluMulFamily()
      : SpaceFamily("silu_mul.flat", "silu_mul",
                    {{"lanes", {8, 16}},
                     {"unroll", {1, 2, 3, 4}},
                     {"degree", {6, 5, 4, 3}},
                     {"rest", {1, 0}},
                     {"scale", {0, 1}},
                     {"recip", {0, 1, 2}},
                     {"stream", {0, 1}},
                     {"ahead", {0, 256, 512, 1024, 2048}},
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
                 .let("UNROLL", v["unroll"])
                 .let("DEG", v["degree"])
                 .let("REST", v["rest"])
                 .let("SCALE", v["scale"])
                 .let("RECIP", v["recip"])
                 .let("STREAM", v["stream"])
                 .let("AHEAD", v["ahead"])
                 .body(kBody)
                 .take();
    s.plan.phases = {{"run" + std::string(suffix), {{0, rows}}, parallel_min_tasks(v["serial"], n * rows)}};
    s.limits = any_problem(d);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CpuTarget& t, const View& v) const override {
    if (v["lanes"] == 16 && !t.avx512) return false;
    if (v["degree"] < 5 && !is_bf16(d)) return false;
    if (v["recip"] == 2 && !is_bf16(d)) return false;
    if (v["stream"] && d.const_extents()[1] % (2 * v["lanes"]) != 0) return false;
    if (v["rest"] == 0 && v["degree"] == 6) return false;  // the dropped rest costs more than degree 5 does
    return t.threads > 1 || v["serial"] == params().back().values[0];
  }

  std::vector<Settings> seed_points(const Definition& d, const CpuTarget& t) const override {
    const int lanes = t.avx512 ? 16 : 8;
    std::vector<Settings> s;
    if (is_bf16(d)) {
      s.push_back({{"lanes", lanes}, {"unroll", 2}, {"degree", 3}, {"rest", 0}, {"scale", 1}, {"recip", 2}});
      s.push_back({{"lanes", lanes}, {"unroll", 1}, {"degree", 3}, {"rest", 0}, {"scale", 1}, {"recip", 0}});
      s.push_back({{"lanes", lanes}, {"unroll", 2}, {"degree", 4}, {"rest", 0}, {"scale", 1}, {"recip", 1}});
    }
    s.push_back({{"lanes", lanes}, {"unroll", 2}, {"degree", 5}, {"scale", 1}});
    s.push_back({{"lanes", lanes}, {"unroll", 1}, {"degree", 5}, {"scale", 1}});
    s.push_back({{"lanes", lanes}, {"unroll", 2}, {"degree", 6}, {"scale", 1}});
    s.push_back({{"lanes", lanes}, {"unroll", 2}, {"degree", 5}, {"scale", 1}, {"recip", 1}});
    s.push_back({{"lanes", lanes}, {"unroll", 2}, {"degree", 5}, {"scale", 1}, {"stream", 1}});
    s.push_back({{"lanes", 8}, {"unroll", 1}, {"degree", 6}, {"scale", 0}});
    return s;
  }
};

}  // namespace

void add_silu_mul_family(evolve::FamilyRegistry& registry) {
  registry.add(std::make_shared<SiluMulFamily>());
}

}  // namespace niche::ops_cpu
