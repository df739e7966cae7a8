// map_id: for each value its position + 1 in a sorted table of distinct ids, 0 where it is not there.
//
// The library searches with a branch per step. Here nothing branches on data. `form`:
//   0 binary search, `inter` values side by side;
//   1 the same with gathers, `inter` vectors of 4 (8) values;
//   2 an index built on each call, in the workspace: the ids cut into 2^(log2 T + extra) equal ranges, then
//     one to four vector comparisons with the ids that start a value's range (how many is found while
//     building; ids that bunch more than 16 to a range fall back to 0);
//   3 the same index, packed once from a bound table;
//   4 a perfect hash of a bound table: displacement, slot, comparison; no search at all. `layout` 0 keeps
//     positions and compares with the table, 1 keeps the id beside its position: one cache line instead of
//     two, four times the bytes. Displacements run out only for adversarial tables; then it falls back to 0.
// `stage` computes where to look for that many values before it looks, with a prefetch. `chunk` values make a
// task. Forms 3 and 4 need bind_constant("table").
#include <algorithm>
#include <bit>

#include "runtime/ops/cpu/families.h"
#include "runtime/ops/cpu/space_family.h"

namespace niche::ops_cpu {
namespace {

constexpr std::string_view kSearch = R"(
// The last id <= value, or the first of all; no branch on data.
template <int I> NICHE_INLINE void search(const long* t, const long* v, long* out) {
  long base[I] = {};
  for (long len = T; len > 1;) {
    const long half = len / 2;
#pragma GCC unroll 16
    for (int k = 0; k < I; ++k) base[k] += half & -(long)(t[base[k] + half] <= v[k]);
    len -= half;
  }
#pragma GCC unroll 16
  for (int k = 0; k < I; ++k) out[k] = (base[k] + 1) & -(long)(t[base[k]] == v[k]);
}
static __attribute__((noinline)) void search_range(const long* t, const long* v, long* out, long n) {
  long i = 0;
  for (; i + INTER <= n; i += INTER) search<INTER>(t, v + i, out + i);
  for (; i < n; ++i) search<1>(t, v + i, out + i);
}
)";

constexpr std::string_view kGather = R"(
typedef typename VecOf<LANES>::L L;
constexpr long GL = LANES / 2;
template <int I> NICHE_INLINE void search_gather(const long* t, const long* v, long* out) {
  L value[I], base[I];
#pragma GCC unroll 16
  for (int k = 0; k < I; ++k) value[k] = load_as<L>(v + k * GL), base[k] = L{};
  for (long len = T; len > 1;) {
    const long half = len / 2;
#pragma GCC unroll 16
    for (int k = 0; k < I; ++k) base[k] += half & ~(L)(gather(t, base[k] + half) > value[k]);
    len -= half;
  }
#pragma GCC unroll 16
  for (int k = 0; k < I; ++k) store_as(out + k * GL, (base[k] + 1) & (L)(gather(t, base[k]) == value[k]));
}
extern "C" void run@(const NicheKernelArgs* a, long begin, long end) {
  long i = begin * CHUNK;
  const long n = lmin(end * CHUNK, a->n[0]);
  const long *v = (const long*)a->p[0], *t = (const long*)a->p[1];
  long* out = (long*)a->p[2];
  for (; i + INTER * GL <= n; i += INTER * GL) search_gather<INTER>(t, v + i, out + i);
  for (; i + GL <= n; i += GL) search_gather<1>(t, v + i, out + i);
  for (; i < n; ++i) search<1>(t, v + i, out + i);
}
)";

constexpr std::string_view kPlain = R"(
extern "C" void run@(const NicheKernelArgs* a, long begin, long end) {
  const long i = begin * CHUNK;
  search_range((const long*)a->p[1], (const long*)a->p[0] + i, (long*)a->p[2] + i, lmin(end * CHUNK, a->n[0]) - i);
}
)";

constexpr std::string_view kBucket = R"(
struct Index {
  unsigned long range;  // last id - first id
  long shift;           // of the distance from the first id
  long compares;        // vectors of VL ids that hold any range's ids; 0: too many
  long unused[5];
  int start[(1l << BITS) + 16];
};
typedef typename VecOf<LANES>::L L;
constexpr long VL = LANES / 2;

NICHE_INLINE void build(const long* t, Index* x) {
  x->range = (unsigned long)t[T - 1] - (unsigned long)t[0];
  const long bits = x->range ? 64 - __builtin_clzl(x->range) : 1;
  const long shift = x->shift = bits > BITS ? bits - BITS : 0;
  __builtin_memset(x->start, 0, sizeof x->start);
  // The first id of a range is written last. Ranges without ids keep 0: whatever they compare with is not equal.
  bool more[4] = {};
  const auto range_of = [&](long i) __attribute__((always_inline)) {
    return ((unsigned long)t[i] - (unsigned long)t[0]) >> shift;
  };
  for (long i = T - 1; i >= 0; --i) x->start[range_of(i)] = (int)i;
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    unsigned long same = 0;
    for (long i = 0; i + VL * (c + 1) < T; ++i) same |= range_of(i) == range_of(i + VL * (c + 1));
    more[c] = same != 0;
    if (!same) break;
  }
  x->compares = !more[0] ? 1 : !more[1] ? 2 : !more[2] ? 3 : !more[3] ? 4 : 0;
}
NICHE_INLINE unsigned equal_mask(const long* t, long v) { return mask_of((L)(load_as<L>(t) == v)); }
template <int C> NICHE_INLINE void look(const Index* x, const long* t, const long* v, long* out, long n) {
  const unsigned long first = (unsigned long)t[0], range = x->range;
  const long shift = x->shift;
  const auto where = [&](long value) __attribute__((always_inline)) {
    const unsigned long u = (unsigned long)value - first;
    const long s = x->start[(u <= range ? u : 0ul) >> shift];
    return lmin(s, T - C * VL);
  };
  const auto result = [&](long at, long value) __attribute__((always_inline)) {
    unsigned m = equal_mask(t + at, value);
#pragma GCC unroll 4
    for (int c = 1; c < C; ++c) m |= equal_mask(t + at + c * VL, value) << (c * VL);
    return (at + 1 + __builtin_ctzl(m | (1ul << 40))) & -(long)(m != 0);
  };
  long i = 0;
  if constexpr (STAGE) {
    long at[STAGE ? STAGE : 1];
    for (; i + STAGE <= n; i += STAGE) {
#pragma GCC unroll INTER
      for (int k = 0; k < STAGE; ++k) at[k] = where(v[i + k]), __builtin_prefetch(t + at[k]);
#pragma GCC unroll INTER
      for (int k = 0; k < STAGE; ++k) out[i + k] = result(at[k], v[i + k]);
    }
  }
#pragma GCC unroll INTER
  for (; i < n; ++i) out[i] = result(where(v[i]), v[i]);
}
extern "C" void build@(const NicheKernelArgs* a, long, long) { build((const long*)a->p[1], (Index*)a->ws); }
extern "C" void pack@(const NicheKernelArgs* a, void* packed) { build((const long*)a->p[1], (Index*)packed); }
extern "C" void run@(const NicheKernelArgs* a, long begin, long end) {
  const long i = begin * CHUNK, n = lmin(end * CHUNK, a->n[0]) - i;
  const long *v = (const long*)a->p[0] + i, *t = (const long*)a->p[1];
  long* out = (long*)a->p[2] + i;
  const Index* x = (const Index*)(PACKED ? a->packed : a->ws);
  switch (x->compares) {
    case 1: return look<1>(x, t, v, out, n);
    case 2: return look<2>(x, t, v, out, n);
    case 3: return look<3>(x, t, v, out, n);
    case 4: return look<4>(x, t, v, out, n);
    default: return search_range(t, v, out, n);
  }
}
)";

// Hash and displace: buckets of some three ids, largest first; a bucket's displacement multiplies the hash so
// that all its ids fall on free slots. Slots that stay free hold the first id, which no other value equals.
constexpr std::string_view kHash = R"(
constexpr unsigned long MIX = 0x9e3779b97f4a7c15ul;
constexpr long SLOTS = 1l << SLOT_BITS, BUCKETS = 1l << BUCKET_BITS, SIZES = 64;
struct Entry { long id, place; };
struct Hash {
  long good, unused[7];
  unsigned short shift[BUCKETS];
  union {
    int place[LAYOUT ? 1 : SLOTS];  // position in the table
    Entry entry[LAYOUT ? SLOTS : 1];
  };
  // Scratch of the build.
  int begin[BUCKETS + 1], order[BUCKETS], ids[T];
  unsigned long used[(SLOTS + 63) / 64];
};
NICHE_INLINE unsigned long mix(long v) { return (unsigned long)v * MIX; }
NICHE_INLINE unsigned long slot(unsigned long h, unsigned long d) { return (h * (2 * d + 1)) >> (64 - SLOT_BITS); }
NICHE_INLINE bool place_bucket(const long* t, Hash* x, long b) {
  const int from = x->begin[b], n = x->begin[b + 1] - from;
  if (n >= SIZES) return false;
  for (unsigned long d = 0; d < 65536; ++d) {
    unsigned long s[SIZES];
    bool free = true;
    for (int k = 0; k < n && free; ++k) {
      s[k] = slot(mix(t[x->ids[from + k]]), d);
      free = !(x->used[s[k] / 64] >> (s[k] % 64) & 1);
      for (int j = 0; j < k && free; ++j) free = s[j] != s[k];
    }
    if (!free) continue;
    x->shift[b] = (unsigned short)d;
    for (int k = 0; k < n; ++k) {
      const int i = x->ids[from + k];
      x->used[s[k] / 64] |= 1ul << (s[k] % 64);
      if constexpr (LAYOUT) x->entry[s[k]] = {t[i], i + 1};
      else x->place[s[k]] = i;
    }
    return true;
  }
  return false;
}
extern "C" void pack@(const NicheKernelArgs* a, void* packed) {
  const long* t = (const long*)a->p[1];
  Hash* x = (Hash*)packed;
  __builtin_memset(x, 0, sizeof *x);
  if constexpr (LAYOUT)
    for (long s = 0; s < SLOTS; ++s) x->entry[s] = {t[0], 1};
  for (long i = 0; i < T; ++i) ++x->begin[(mix(t[i]) >> (64 - BUCKET_BITS)) + 1];
  int of_size[SIZES + 1] = {};
  for (long b = 0; b < BUCKETS; ++b) ++of_size[lmin(x->begin[b + 1], SIZES - 1)];
  for (int n = SIZES - 1, sum = 0; n >= 0; --n) {
    const int c = of_size[n];
    of_size[n] = sum;
    sum += c;
  }
  for (long b = 0; b < BUCKETS; ++b) x->order[of_size[lmin(x->begin[b + 1], SIZES - 1)]++] = (int)b;
  for (long b = 0; b < BUCKETS; ++b) x->begin[b + 1] += x->begin[b];
  for (long i = T - 1; i >= 0; --i) x->ids[--x->begin[(mix(t[i]) >> (64 - BUCKET_BITS)) + 1]] = (int)i;
  for (long b = 0; b < BUCKETS; ++b) x->begin[b] = x->begin[b + 1];
  x->begin[BUCKETS] = T;
  x->good = 1;
  for (long k = 0; k < BUCKETS && x->good; ++k) x->good = place_bucket(t, x, x->order[k]);
}
extern "C" void run@(const NicheKernelArgs* a, long begin, long end) {
  long i = begin * CHUNK;
  const long n = lmin(end * CHUNK, a->n[0]);
  const long *v = (const long*)a->p[0], *t = (const long*)a->p[1];
  long* out = (long*)a->p[2];
  const Hash* x = (const Hash*)a->packed;
  if (!x->good) return search_range(t, v + i, out + i, n - i);
  const auto where = [&](long value) __attribute__((always_inline)) {
    const unsigned long h = mix(value);
    return (long)slot(h, x->shift[h >> (64 - BUCKET_BITS)]);
  };
  const auto result = [&](long s, long value) __attribute__((always_inline)) {
    if constexpr (LAYOUT) {
      const Entry e = x->entry[s];
      return e.place & -(long)(e.id == value);
    } else {
      const long i = x->place[s];
      return (i + 1) & -(long)(t[i] == value);
    }
  };
  if constexpr (STAGE) {
    long at[STAGE ? STAGE : 1];
    for (; i + STAGE <= n; i += STAGE) {
#pragma GCC unroll INTER
      for (int k = 0; k < STAGE; ++k) {
        at[k] = where(v[i + k]);
        if constexpr (LAYOUT) __builtin_prefetch(x->entry + at[k]);
        else __builtin_prefetch(x->place + at[k]);
      }
#pragma GCC unroll INTER
      for (int k = 0; k < STAGE; ++k) out[i + k] = result(at[k], v[i + k]);
    }
  }
#pragma GCC unroll INTER
  for (; i < n; ++i) out[i] = result(where(v[i]), v[i]);
}
)";

int64_t log2_up(int64_t n) { return std::bit_width(static_cast<uint64_t>(std::max<int64_t>(1, n - 1))); }

enum Form { kBinary, kGathered, kCallIndex, kPackedIndex, kPerfectHash };

class MapIdFamily : public SpaceFamily {
 public:
  MapIdFamily()
      : SpaceFamily("map_id.lookup", "map_id",
                    {{"form", {kBinary, kGathered, kCallIndex, kPackedIndex, kPerfectHash}},
                     {"lanes", {8, 16}},  // of 32 bits: 4 or 8 ids
                     {"inter", {4, 1, 2, 8, 16}},
                     {"extra", {1, 0, 2, 3}},
                     {"layout", {0, 1}},
                     {"stage", {0, 16, 32, 64}},
                     {"chunk", {1024, 256, 8192}}}) {}

  KernelSource render(const Definition& d, const CpuTarget& t, const Point& point,
                      std::string_view suffix) const override {
    const View v(*this, point);
    const int64_t ids = d.const_extents()[1];
    const int form = v["form"];
    const std::string tag(suffix);
    KernelSource s;
    SourceBuilder text(suffix);
    text.let("T", ids)
        .let("LANES", v["lanes"])
        .let("INTER", v["inter"])
        .let("STAGE", v["stage"])
        .let("CHUNK", v["chunk"]);
    text.body(kSearch);
    const dispatch::Phase run{"run" + tag, {{0, v["chunk"]}}, 2};
    if (form == kGathered) {
      text.body(kGather);
      s.plan.phases = {run};
    } else if (form == kBinary) {
      text.body(kPlain);
      s.plan.phases = {run};
    } else if (form == kPerfectHash) {
      const int64_t slot_bits = slots_log2(ids, v["extra"]),
                    bucket_bits = std::max<int64_t>(1, log2_up(ids) - 2);
      text.let("SLOT_BITS", slot_bits).let("BUCKET_BITS", bucket_bits).let("LAYOUT", v["layout"]).body(kHash);
      const int64_t slots = int64_t{1} << slot_bits, buckets = int64_t{1} << bucket_bits;
      s.plan.phases = {run};
      s.plan.pack_symbol = "pack" + tag;
      s.plan.packed_bytes = 64 + buckets * 2 + slots * (v["layout"] ? 16 : 4) + (buckets + 1) * 4 +
                            buckets * 4 + ids * 4 + slots / 8 + 64;
    } else {
      const int64_t bits = index_log2(ids, v["extra"]);
      text.let("BITS", bits).let("PACKED", form == kPackedIndex).body(kBucket);
      const int64_t bytes = 64 + 4 * ((int64_t{1} << bits) + 16);
      if (form == kPackedIndex) {
        s.plan.phases = {run};
        s.plan.pack_symbol = "pack" + tag;
        s.plan.packed_bytes = bytes;
      } else {
        s.plan.phases = {{"build" + tag, {}, 2}, run};
        s.plan.workspace_bytes = bytes;
      }
    }
    s.text = text.take();
    s.limits = any_problem(d);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CpuTarget& t, const View& v) const override {
    const int64_t ids = d.const_extents()[1];
    const int form = v["form"], lanes = v["lanes"];
    if (lanes == 16 && !t.avx512) return false;
    if (ids > (int64_t{1} << 28))
      return form == kBinary && lanes == 8 && v["extra"] == 1 && !v["layout"] && !v["stage"];
    const bool uses_lanes = form == kGathered || form == kCallIndex || form == kPackedIndex;
    const bool uses_extra = form == kCallIndex || form == kPackedIndex || form == kPerfectHash;
    if (!uses_lanes && lanes != 8) return false;
    if (!uses_extra && (v["extra"] != 1 || v["stage"] != 0)) return false;
    if (v["layout"] != 0 && form != kPerfectHash) return false;
    if ((form == kCallIndex || form == kPackedIndex) && ids < 2 * lanes)
      return false;  // four vectors must fit
    if (form == kGathered && v["inter"] == 16) return false;
    return t.threads > 1 || v["chunk"] == params().back().values[0];
  }

  std::vector<Settings> seed_points(const Definition&, const CpuTarget& t) const override {
    const int lanes = t.avx512 ? 16 : 8;
    return {{{"form", kPerfectHash}, {"layout", 1}, {"inter", 4}},
            {{"form", kBinary}, {"inter", 8}},
            {{"form", kGathered}, {"lanes", lanes}, {"inter", 4}},
            {{"form", kPerfectHash}, {"inter", 4}},
            {{"form", kPackedIndex}, {"lanes", 8}, {"inter", 4}},
            {{"form", kCallIndex}, {"lanes", 8}, {"inter", 4}},
            {{"form", kCallIndex}, {"lanes", 8}, {"inter", 4}, {"stage", 32}},
            {{"form", kPerfectHash}, {"layout", 1}, {"inter", 4}, {"stage", 32}},
            {{"form", kBinary}, {"inter", 4}}};
  }

 private:
  // Load of a perfect hash's slots: at most 0.8 with extra = 0.
  static int64_t slots_log2(int64_t ids, int extra) {
    return std::max<int64_t>(2, log2_up(ids + ids / 4 + 1) + extra - 1);
  }
  static int64_t index_log2(int64_t ids, int extra) { return std::max<int64_t>(1, log2_up(ids) + extra - 1); }
};

}  // namespace

void add_map_id_family(evolve::FamilyRegistry& registry) { registry.add(std::make_shared<MapIdFamily>()); }

}  // namespace niche::ops_cpu
