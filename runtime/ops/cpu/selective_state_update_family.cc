// selective_state_update: Mamba's decode step, fused: the state is read and written once, nothing else leaves
// the registers. Bound by the exponential: e^(dt A) for every element of the state.
//
// e^(dt A) is 2^((dt log2 e) A): the factor log2 e is applied once a channel, so that the argument reduction
// needs no second constant. A vector of channels shares one softplus and one silu. Schedules: `pair` channels
// run side by side (8: their products are added across lanes together); `degree` of the exponential; `keep`
// holds B and C of the batch row as f32 (registers while they are short); `ahead` bytes of the state are
// prefetched; `rows` channels make a task.
#include <algorithm>

#include "runtime/ops/cpu/families.h"
#include "runtime/ops/cpu/space_family.h"

namespace niche::ops_cpu {
namespace {

constexpr std::string_view kBody = R"(
typedef vf<W> F;
constexpr long VECS = S / W, TAIL = S % W, ALL = VECS + (TAIL > 0), G = W;
NICHE_INLINE F some(const T* p, int n) { return n == W ? load<W>(p) : load_n<W>(p, n); }
NICHE_INLINE void put(T* p, F v, int n) {
  if (n == W) store(p, v);
  else store_n(p, v, n);
}
// B and C of a batch row, as f32.
struct Row { F b[KEEP ? ALL : 1], c[KEEP ? ALL : 1]; };

// P channels from d on: updates their state; acc[p] holds the products with C, not yet summed across lanes.
template <int P> NICHE_INLINE void channels(const T* A, const T* B, const T* C, const Row& row, T* state, const float* rate,
                                            const float* input, F* acc) {
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) acc[p] = F{};
  const auto vector = [&](long k, int n) __attribute__((always_inline)) {
    F b, c;
    if constexpr (KEEP) b = row.b[k], c = row.c[k];
    else b = some(B + k * W, n), c = some(C + k * W, n);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      if constexpr (AHEAD) __builtin_prefetch((const char*)(state + p * S + k * W) + AHEAD);
      const F decay = exp2<DEG>(some(A + p * S + k * W, n) * rate[p]);
      const F s = fma(some(state + p * S + k * W, n), decay, b * input[p]);
      put(state + p * S + k * W, s, n);
      acc[p] = fma(s, c, acc[p]);
    }
  };
#pragma GCC unroll 4
  for (long k = 0; k < VECS; ++k) vector(k, W);
  if constexpr (TAIL) vector(VECS, TAIL);
}

NICHE_INLINE void group(const NicheKernelArgs* a, long batch, long d, int n, const Row& row) {
  const long at = batch * D + d;
  const T* x = (const T*)a->p[0] + at;
  F dt = some((const T*)a->p[1] + at, n);
  if constexpr (HAS_BIAS) dt += some((const T*)a->p[7] + d, n);
  if constexpr (SOFTPLUS) dt = softplus(dt);
  const F xv = some(x, n);
  float rate[G], input[G], total[G] = {};
  store(rate, dt * 1.44269504f), store(input, dt * xv);
  const T *A = (const T*)a->p[2] + d * S, *B = (const T*)a->p[3] + batch * S, *C = (const T*)a->p[4] + batch * S;
  T* state = (T*)a->p[8] + at * S;
  int g = 0;
  for (; g + PAIR <= n; g += PAIR) {
    F acc[PAIR];
    channels<PAIR>(A + g * S, B, C, row, state + g * S, rate + g, input + g, acc);
    if constexpr (PAIR == 8) {
      store(total + g, hsum8(acc));
    } else {
#pragma GCC unroll 8
      for (int p = 0; p < PAIR; ++p) total[g + p] = hsum(acc[p]);
    }
  }
  for (; g < n; ++g) {
    F acc[1];
    channels<1>(A + g * S, B, C, row, state + g * S, rate + g, input + g, acc);
    total[g] = hsum(acc[0]);
  }
  F y = load<W>(total);
  if constexpr (HAS_D) y = fma(xv, some((const T*)a->p[5] + d, n), y);
  if constexpr (HAS_Z) {
    const F z = some((const T*)a->p[6] + at, n);
    y = y * z / one_plus_exp_neg<DEG>(z);
  }
  put((T*)a->p[9] + at, y, n);
}

extern "C" void run@(const NicheKernelArgs* a, long begin, long end) {
  constexpr long BLOCKS = (D + CHANNELS - 1) / CHANNELS;
  for (long t = begin; t < end; ++t) {
    const long batch = t / BLOCKS, from = t % BLOCKS * CHANNELS, to = lmin(D, from + CHANNELS);
    Row row;
    if constexpr (KEEP) {
      const T *B = (const T*)a->p[3] + batch * S, *C = (const T*)a->p[4] + batch * S;
#pragma GCC unroll 8
      for (int k = 0; k < VECS; ++k) row.b[k] = load<W>(B + k * W), row.c[k] = load<W>(C + k * W);
      if constexpr (TAIL) row.b[ALL - 1] = load_n<W>(B + VECS * W, TAIL), row.c[ALL - 1] = load_n<W>(C + VECS * W, TAIL);
    }
    long d = from;
    for (; d + G <= to; d += G) group(a, batch, d, G, row);
    if (D % G != 0 && d < to) group(a, batch, d, D % G, row);
  }
}
)";

class SelectiveStateUpdateFamily : public SpaceFamily {
 public:
  SelectiveStateUpdateFamily()
      : SpaceFamily("selective_state_update.channels", "selective_state_update",
                    {{"lanes", {8, 16}},
                     {"pair", {2, 1, 4, 8}},
                     {"degree", {6, 5, 4, 3}},
                     {"keep", {1, 0}},
                     {"ahead", {0, 1024, 4096}},
                     {"rows", {128, 16, 32, 64, 256, 512, 1024}},
                     {"serial", {16, 4, 64}}}) {}

  KernelSource render(const Definition& d, const CpuTarget& t, const Point& point,
                      std::string_view suffix) const override {
    const View v(*this, point);
    const int64_t channels = d.const_extents()[1], states = d.const_extents()[2];
    KernelSource s;
    s.text = SourceBuilder(suffix)
                 .type("T", element(d))
                 .let("D", channels)
                 .let("S", states)
                 .let("HAS_D", d.attr("has_D") != 0)
                 .let("HAS_Z", d.attr("has_z") != 0)
                 .let("HAS_BIAS", d.attr("has_dt_bias") != 0)
                 .let("SOFTPLUS", d.attr("dt_softplus") != 0)
                 .let("W", v["lanes"])
                 .let("PAIR", v["pair"])
                 .let("DEG", v["degree"])
                 .let("KEEP", v["keep"])
                 .let("AHEAD", v["ahead"])
                 .let("CHANNELS", v["rows"])
                 .body(kBody)
                 .take();
    s.plan.phases = {{"run" + std::string(suffix),
                      {{0, 1}, {1, v["rows"]}},
                      parallel_min_tasks(v["serial"], std::min<int64_t>(channels, v["rows"]) * states)}};
    s.limits = any_problem(d);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CpuTarget& t, const View& v) const override {
    const int64_t states = d.const_extents()[2];
    if (v["lanes"] == 16 && !t.avx512) return false;
    if (v["keep"] && states > 16 * v["lanes"]) return false;
    if (v["degree"] < 5 && !is_bf16(d)) return false;
    return t.threads > 1 || v["serial"] == params().back().values[0];
  }

  std::vector<Settings> seed_points(const Definition& d, const CpuTarget& t) const override {
    const int lanes = t.avx512 ? 16 : 8, low = is_bf16(d) ? 4 : 5;
    return {{{"lanes", lanes}, {"pair", 4}, {"degree", low}},
            {{"lanes", lanes}, {"pair", 2}, {"degree", low}},
            {{"lanes", lanes}, {"pair", 2}, {"degree", 6}},
            {{"lanes", lanes}, {"pair", 1}, {"degree", low}},
            {{"lanes", lanes}, {"pair", 2}, {"degree", low}, {"keep", 0}},
            {{"lanes", 8}, {"pair", 2}, {"degree", low}},
            {{"lanes", lanes}, {"pair", 8}, {"degree", low}, {"rows", 512}},
            {{"lanes", 8}, {"pair", 1}, {"degree", 6}, {"keep", 0}}};
  }
};

}  // namespace

void add_selective_state_update_family(evolve::FamilyRegistry& registry) {
  registry.add(std::make_shared<SelectiveStateUpdateFamily>());
}

}  // namespace niche::ops_cpu
