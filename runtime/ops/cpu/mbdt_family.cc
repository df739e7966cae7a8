// mbdt: per-feature bucketize: for each x the number of borders below it, plus the feature's offset f * (K +
// 1). Counted as K minus the number of borders with x <= border, so that NaN, which compares false, lands in
// the last bin.
//
// `form`: 0 counts over the batch: `unroll` vectors of x stand in registers while all borders pass by (`pin`
// keeps the borders in registers instead, for few of them); 1 searches three levels deep in one register of 7
// borders by permutation (AVX-512: four levels, 15), K permitting; 2 halves the border row with gathers, for
// many borders; 3 compares one x with 8 (16) borders at a time: for batches shorter than a vector. `chunk`
// elements of a feature make a task; `ahead` bytes of prefetch; `stream` writes past the caches.
#include "runtime/ops/cpu/families.h"
#include "runtime/ops/cpu/space_family.h"

namespace niche::ops_cpu {
namespace {

constexpr std::string_view kBody = R"(
typedef vf<W> F;
typedef typename VecOf<W>::I I;
typedef long L __attribute__((vector_size(W * 4)));  // half as many i64
constexpr int H = W / 2;
constexpr long KV = K / W, KT = K % W;

// One x against all borders, W at a time.
NICHE_INLINE int across(float x, const float* border) {
  const F v = splat<W>(x);
  int below = K;
  const auto hits = [&](F b) __attribute__((always_inline)) { return __builtin_popcount(mask_of((I)(v <= b))); };
#pragma GCC unroll 4
  for (long k = 0; k < KV; ++k) below -= hits(load<W>(border + k * W));
  if constexpr (KT) below -= hits(keep_n(load_n<W>(border + KV * W, KT), KT, splat<W>(__builtin_nanf(""))));
  return below;
}

// Bins of a vector of x, without the feature's offset.
struct Count {
  const float* border;
  F kept[PIN ? K : 1];
  NICHE_INLINE void prepare(Count* c, const float* b) {
    c->border = b;
    if constexpr (PIN) {
#pragma GCC unroll 32
      for (int k = 0; k < K; ++k) c->kept[k] = splat<W>(b[k]);
    }
  }
  template <int U> NICHE_INLINE void bins(const Count* c, const F* x, I* out) {
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) out[u] = I{} + (int)K;
#pragma GCC unroll 4
    for (int k = 0; k < K; ++k) {
      F b;
      if constexpr (PIN) b = c->kept[k];
      else b = splat<W>(c->border[k]);
#pragma GCC unroll 8
      for (int u = 0; u < U; ++u) out[u] += (I)(x[u] <= b);
    }
  }
};

// A search tree in a register, in breadth-first order: node n has children 2n + 1, 2n + 2. Lanes past K hold +inf, and
// NaN is caught by comparing for "not <=", which also sends it right of them: hence the final minimum.
struct Permute {
  F tree;
  NICHE_INLINE void prepare(Permute* c, const float* b) {
    float sorted[16], t[16] = {};
    constexpr int NODES = W - 1;
    for (int k = 0; k < 16; ++k) sorted[k] = k < K ? b[k < K ? k : 0] : __builtin_inff();
    int step = (NODES + 1) / 2;
    for (int n = 0, level = 1; n < NODES; ++level, step /= 2)
      for (int k = step - 1; k < NODES; k += 2 * step) t[n++] = sorted[k];
    c->tree = load<W>(t);
  }
  template <int U> NICHE_INLINE void bins(const Permute* c, const F* x, I* out) {
    constexpr int LEVELS = W == 16 ? 4 : 3;
    const F root = splat<W>(c->tree[0]);
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) out[u] = 2 + (I)(x[u] <= root);
#pragma GCC unroll 4
    for (int l = 1; l < LEVELS; ++l) {
#pragma GCC unroll 8
      for (int u = 0; u < U; ++u) out[u] = 2 * out[u] + 2 + (I)(x[u] <= permute(c->tree, out[u]));
    }
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) {
      out[u] -= (int)W - 1;
      out[u] = out[u] < (int)K ? out[u] : I{} + (int)K;
    }
  }
};

// Halving with gathers: the invariant is that `low` borders are known to be below x.
struct Halve {
  const float* border;
  NICHE_INLINE void prepare(Halve* c, const float* b) { c->border = b; }
  template <int U> NICHE_INLINE void bins(const Halve* c, const F* x, I* out) {
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) out[u] = I{};
    for (int len = K; len > 1;) {
      const int half = len / 2;
#pragma GCC unroll 8
      for (int u = 0; u < U; ++u) {
        const I le = (I)(x[u] <= gather(c->border, out[u] + (half - 1)));
        out[u] += ~le & half;
      }
      len -= half;
    }
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) out[u] += 1 + (I)(x[u] <= gather(c->border, out[u]));
  }
};

template <bool NT> NICHE_INLINE void put(long* out, I bin, long offset) {
  typedef int Half __attribute__((vector_size(W * 2)));
  Half h[2];
  __builtin_memcpy(h, &bin, sizeof bin);
  const L lo = __builtin_convertvector(h[0], L) + offset, hi = __builtin_convertvector(h[1], L) + offset;
  if constexpr (NT) stream_as(out, lo), stream_as(out + H, hi);
  else store_as(out, lo), store_as(out + H, hi);
}
)";

constexpr std::string_view kRun = R"(
template <bool NT> NICHE_INLINE void feature(const float* x, const float* border, long* out, long n, long offset) {
  long i = 0;
  if constexpr (FORM != 3) {
    Method m;
    Method::prepare(&m, border);
    if constexpr (NT)
      for (; i < n && !aligned(out + i, W * 4); ++i) out[i] = across(x[i], border) + offset;
    for (; i + UNROLL * W <= n; i += UNROLL * W) {
      F v[UNROLL];
      I bin[UNROLL];
      if constexpr (AHEAD) __builtin_prefetch((const char*)(x + i) + AHEAD);
#pragma GCC unroll 8
      for (int u = 0; u < UNROLL; ++u) v[u] = load<W>(x + i + u * W);
      Method::template bins<UNROLL>(&m, v, bin);
#pragma GCC unroll 8
      for (int u = 0; u < UNROLL; ++u) put<NT>(out + i + u * W, bin[u], offset);
    }
    for (; i < n; i += W) {
      if (i + W > n) {
        if (n < W) break;
        i = n - W;  // again some that are done: the same values
      }
      const F v = load<W>(x + i);
      I bin;
      Method::template bins<1>(&m, &v, &bin);
      put<false>(out + i, bin, offset);
    }
  }
#pragma GCC unroll UNROLL
  for (; i < n; ++i) out[i] = across(x[i], border) + offset;
}
extern "C" void run@(const NicheKernelArgs* a, long begin, long end) {
  const long batch = a->n[2], chunks = (batch + CHUNK - 1) / CHUNK;
  for (long t = begin, f = begin / chunks, c = begin % chunks; t < end; ++t, ++c) {
    if (c == chunks) c = 0, ++f;
    const long i = c * CHUNK, n = lmin(CHUNK, batch - i);
    feature<STREAM != 0>((const float*)a->p[0] + f * batch + i, (const float*)a->p[1] + f * K,
                         (long*)a->p[2] + f * batch + i, n, f * (K + 1));
  }
  if constexpr (STREAM) stream_fence();
}
)";

enum Form { kCount, kPermute, kHalve, kAcross };

class MbdtFamily : public SpaceFamily {
 public:
  MbdtFamily()
      : SpaceFamily("mbdt.bins", "mbdt",
                    {{"form", {kCount, kPermute, kHalve, kAcross}},
                     {"lanes", {8, 16}},
                     {"unroll", {2, 1, 3, 4, 6}},
                     {"pin", {0, 1}},
                     {"chunk", {4096, 512, 1024, 2048, 1 << 20}},
                     {"ahead", {0, 256, 1024}},
                     {"stream", {0, 1}},
                     {"serial", {1, 0}}}) {}

  KernelSource render(const Definition& d, const CpuTarget& t, const Point& point,
                      std::string_view suffix) const override {
    const View v(*this, point);
    const int64_t features = d.const_extents()[0], borders = d.const_extents()[1];
    const int form = v["form"];
    KernelSource s;
    s.text = SourceBuilder(suffix)
                 .let("K", borders)
                 .let("W", v["lanes"])
                 .let("FORM", form)
                 .let("UNROLL", v["unroll"])
                 .let("PIN", v["pin"])
                 .let("CHUNK", v["chunk"])
                 .let("AHEAD", v["ahead"])
                 .let("STREAM", v["stream"])
                 .body(kBody)
                 .type("Method", form == kPermute ? "Permute"
                                 : form == kHalve ? "Halve"
                                                  : "Count")
                 .body(kRun)
                 .take();
    // serial: threads only where a feature has several chunks.
    s.plan.phases = {
        {"run" + std::string(suffix), {{0, 1}, {2, v["chunk"]}}, v["serial"] ? features + 1 : 2}};
    s.limits = any_problem(d);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CpuTarget& t, const View& v) const override {
    const int64_t borders = d.const_extents()[1];
    const int form = v["form"], lanes = v["lanes"];
    if (lanes == 16 && !t.avx512) return false;
    if (v["pin"] && (form != kCount || borders > lanes)) return false;
    if (form == kPermute && borders >= lanes) return false;
    if (form == kHalve && borders < 4) return false;
    if (form == kAcross && (v["stream"] || v["ahead"])) return false;
    return t.threads > 1 || v["serial"] == params().back().values[0];
  }

  std::vector<Settings> seed_points(const Definition& d, const CpuTarget& t) const override {
    const int lanes = t.avx512 ? 16 : 8;
    const auto with = [&](Settings more) {
      more.emplace_back("lanes", lanes);
      return more;
    };
    std::vector<Settings> s;
    if (d.const_extents()[1] > 32) s.push_back(with({{"form", kHalve}, {"unroll", 4}}));
    s.push_back(with({{"unroll", 2}, {"pin", 1}}));
    s.push_back(with({{"unroll", 2}}));
    s.push_back(with({{"unroll", 4}}));
    s.push_back(with({{"form", kPermute}, {"unroll", 2}}));
    s.push_back(with({{"form", kAcross}}));
    s.push_back(with({{"unroll", 2}, {"pin", 1}, {"stream", 1}}));
    s.push_back(with({{"unroll", 2}, {"stream", 1}}));
    s.push_back({{"form", kAcross}, {"lanes", 8}, {"unroll", 1}});
    return s;
  }
};

}  // namespace

void add_mbdt_family(evolve::FamilyRegistry& registry) { registry.add(std::make_shared<MbdtFamily>()); }

}  // namespace niche::ops_cpu
