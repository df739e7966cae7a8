// batch_event_truncate: of each user's events keep the first max_events, over F jagged features in a row,
// together with the values that belong to the kept events.
//
// `form` 0 is one pass by one thread: every inner length is read once, and added up while it is copied.
// `form` 1 splits by feature: a first phase adds up what each feature holds and keeps, a second copies;
// lengths are read twice. `copy` 0 calls memcpy; 1 copies vectors in line; 2 (form 0) copies whole vectors
// past a run's end where the arrays have room, since the next run overwrites what is too much. `merge` joins
// the copies of neighbouring users until one is cut. `unroll` vectors of lengths are added up at a time;
// `ahead` bytes of prefetch.
//
// Lengths that point past the arrays' ends (a caller's mistake) are cut there: nothing is read or written
// outside.
#include "runtime/ops/cpu/families.h"
#include "runtime/ops/cpu/space_family.h"

namespace niche::ops_cpu {
namespace {

constexpr std::string_view kBody = R"(
typedef long L __attribute__((vector_size(W * 4)));
constexpr long H = W / 2;  // i64 a vector
NICHE_INLINE long sum_of(L v) {
  long s = 0;
#pragma GCC unroll 8
  for (int k = 0; k < H; ++k) s += v[k];
  return s;
}
NICHE_INLINE long sum(const long* p, long n) {
  L s[UNROLL] = {};
  long i = 0;
  for (; i + UNROLL * H <= n; i += UNROLL * H) {
    if constexpr (AHEAD) __builtin_prefetch((const char*)(p + i) + AHEAD);
#pragma GCC unroll 8
    for (int u = 0; u < UNROLL; ++u) s[u] += load_as<L>(p + i + u * H);
  }
  for (; i + H <= n; i += H) s[0] += load_as<L>(p + i);
#pragma GCC unroll 8
  for (int u = 1; u < UNROLL; ++u) s[0] += s[u];
  long total = sum_of(s[0]);
  for (; i < n; ++i) total += p[i];
  return total;
}
// Copies n longs; `room` longs may be read and written from the two addresses on.
NICHE_INLINE void copy(long* to, const long* from, long n, long room) {
  if constexpr (COPY == 0) {
    __builtin_memcpy(to, from, n * sizeof(long));
  } else {
    long i = 0;
    if (COPY == 2 && n + H <= room) {
      for (; i < n; i += H) {
        if constexpr (AHEAD) __builtin_prefetch((const char*)(from + i) + AHEAD);
        store_as(to + i, load_as<L>(from + i));
      }
      return;
    }
    for (; i + 2 * H <= n; i += 2 * H) {
      if constexpr (AHEAD) __builtin_prefetch((const char*)(from + i) + AHEAD);
      const L a = load_as<L>(from + i), b = load_as<L>(from + i + H);
      store_as(to + i, a), store_as(to + i + H, b);
    }
    for (; i < n; ++i) to[i] = from[i];
  }
}
// Copies n longs and adds them up.
NICHE_INLINE long copy_sum(long* to, const long* from, long n, long room) {
  if constexpr (COPY == 0) {
    __builtin_memcpy(to, from, n * sizeof(long));
    return sum(from, n);
  }
  L s[UNROLL] = {};
  long i = 0;
  for (; i + UNROLL * H <= n; i += UNROLL * H) {
    if constexpr (AHEAD) __builtin_prefetch((const char*)(from + i) + AHEAD);
#pragma GCC unroll 8
    for (int u = 0; u < UNROLL; ++u) {
      const L v = load_as<L>(from + i + u * H);
      store_as(to + i + u * H, v);
      s[u] += v;
    }
  }
  for (; i + H <= n; i += H) {
    const L v = load_as<L>(from + i);
    store_as(to + i, v);
    s[0] += v;
  }
#pragma GCC unroll 8
  for (int u = 1; u < UNROLL; ++u) s[0] += s[u];
  long total = sum_of(s[0]);
  if (COPY == 2 && i < n && i + H <= room) {
    const L v = load_as<L>(from + i);
    store_as(to + i, v);
    L lane = {};
#pragma GCC unroll 8
    for (int k = 1; k < H; ++k) lane[k] = k;
    return total + sum_of(v & (L)(lane < n - i));
  }
  for (; i < n; ++i) {
    to[i] = from[i];
    total += from[i];
  }
  return total;
}
NICHE_INLINE long clamp(long v, long most) { return v < 0 ? 0 : v > most ? most : v; }

struct Place { long event, value, event_out, value_out; };  // where the next feature reads and writes

// One feature: returns through `at` where it stopped.
NICHE_INLINE void feature(const NicheKernelArgs* a, long f, Place* at) {
  const long users = a->n[1], events = a->n[2], values = a->n[3];
  const long* outer = (const long*)a->p[0] + f * users;
  const long* inner = (const long*)a->p[1];
  const long* value = (const long*)a->p[2];
  long *outer_out = (long*)a->p[3] + f * users, *inner_out = (long*)a->p[4], *values_out = (long*)a->p[5];
  Place p = *at;
  const Place first = p;
  long held_events = 0, held_values = 0;  // kept, not yet copied (MERGE): they end at p.event, p.value
  for (long u = 0; u < users; ++u) {
    const long n = clamp(outer[u], events - p.event), keep = n < MOST ? n : MOST;
    outer_out[u] = keep;
    const long* from = inner + p.event;
    long own;
    if constexpr (MERGE) own = sum(from, keep);
    else own = copy_sum(inner_out + p.event_out, from, keep, events - p.event);
    own = clamp(own, values - p.value);
    if constexpr (MERGE) {
      held_events += keep, held_values += own;
      p.event += keep, p.value += own;
      if (n > keep || u + 1 == users) {
        copy(inner_out + p.event_out, inner + p.event - held_events, held_events, events - p.event + held_events);
        copy(values_out + p.value_out, value + p.value - held_values, held_values, values - p.value + held_values);
        p.event_out += held_events, p.value_out += held_values;
        held_events = held_values = 0;
        p.value += clamp(sum(inner + p.event, n - keep), values - p.value);
        p.event += n - keep;
      }
    } else {
      copy(values_out + p.value_out, value + p.value, own, values - p.value);
      p.event_out += keep, p.value_out += own, p.value += own;
      if (n > keep) p.value += clamp(sum(from + keep, n - keep), values - p.value);
      p.event += n;
    }
  }
  long* sizes = (long*)a->p[6];
  sizes[2 * f] = p.event_out - first.event_out;
  sizes[2 * f + 1] = p.value_out - first.value_out;
  *at = p;
}

extern "C" void run@(const NicheKernelArgs* a, long begin, long end) {
  if constexpr (FORM == 0) {
    if (begin >= end) return;
    Place p = {};
    for (long f = 0; f < F; ++f) feature(a, f, &p);
  } else {
    const Place* held = (const Place*)a->ws;
    for (long f = begin; f < end; ++f) {
      Place p = {};
      for (long g = 0; g < f; ++g) {
        p.event += held[g].event, p.value += held[g].value;
        p.event_out += held[g].event_out, p.value_out += held[g].value_out;
      }
      p.event = lmin(p.event, a->n[2]), p.value = lmin(p.value, a->n[3]);
      feature(a, f, &p);
    }
  }
}
// What feature f holds and keeps; the same cuts at the arrays' ends as above are applied by the reader.
extern "C" void count@(const NicheKernelArgs* a, long begin, long end) {
  const long users = a->n[1], events = a->n[2], values = a->n[3];
  const long *outer = (const long*)a->p[0], *inner = (const long*)a->p[1];
  long event = 0;
  for (long k = 0; k < begin * users; ++k) event += clamp(outer[k], events - event);
  for (long f = begin; f < end; ++f) {
    Place p = {};
    for (long u = 0; u < users; ++u) {
      const long n = clamp(outer[f * users + u], events - event), keep = n < MOST ? n : MOST;
      const long kept = clamp(sum(inner + event, keep), values);
      p.event += n, p.event_out += keep, p.value_out += kept;
      p.value += clamp(kept + sum(inner + event + keep, n - keep), values);
      event += n;
    }
    ((Place*)a->ws)[f] = p;
  }
}
)";

class BatchEventTruncateFamily : public SpaceFamily {
 public:
  BatchEventTruncateFamily()
      : SpaceFamily("batch_event_truncate.runs", "batch_event_truncate",
                    {{"form", {0, 1}},
                     {"lanes", {8, 16}},
                     {"copy", {0, 1, 2}},
                     {"merge", {0, 1}},
                     {"unroll", {2, 1, 3, 4, 6, 8}},
                     {"ahead", {0, 256, 512, 1024, 2048}}}) {}

  KernelSource render(const Definition& d, const CpuTarget& t, const Point& point,
                      std::string_view suffix) const override {
    const View v(*this, point);
    const int64_t features = d.const_extents()[0];
    const std::string tag(suffix);
    KernelSource s;
    s.text = SourceBuilder(suffix)
                 .let("F", features)
                 .let("MOST", static_cast<int64_t>(d.attr("max_events")))
                 .let("FORM", v["form"])
                 .let("W", v["lanes"])
                 .let("COPY", v["copy"])
                 .let("MERGE", v["merge"])
                 .let("UNROLL", v["unroll"])
                 .let("AHEAD", v["ahead"])
                 .body(kBody)
                 .take();
    if (v["form"] == 0) {
      s.plan.phases = {{"run" + tag, {}, 2}};
    } else {
      s.plan.phases = {{"count" + tag, {{0, 1}}, 2}, {"run" + tag, {{0, 1}}, 2}};
      s.plan.workspace_bytes = features * 32;
    }
    s.limits = any_problem(d);
    s.limits.var[1].lo = s.limits.var[2].lo = 0;  // no event, no value at all
    s.properties.batch_invariant = false;         // rows of the outputs have no fixed place
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CpuTarget& t, const View& v) const override {
    if (v["lanes"] == 16 && !t.avx512) return false;
    if (v["form"] == 1 && (v["copy"] == 2 || d.const_extents()[0] < 2)) return false;
    return true;
  }

  std::vector<Settings> seed_points(const Definition&, const CpuTarget& t) const override {
    std::vector<Settings> s;
    if (t.threads > 1) {
      s.push_back({{"form", 1}, {"copy", 1}, {"unroll", 4}});
      s.push_back({{"form", 1}, {"copy", 0}, {"merge", 1}, {"unroll", 4}});
    }
    s.push_back({{"copy", 2}, {"unroll", 2}});
    s.push_back({{"copy", 1}, {"unroll", 2}});
    s.push_back({{"copy", 0}, {"unroll", 2}});
    s.push_back({{"copy", 0}, {"merge", 1}, {"unroll", 4}});
    s.push_back({{"copy", 1}, {"merge", 1}, {"unroll", 4}});
    s.push_back({{"copy", 2}, {"unroll", 2}, {"ahead", 512}});
    return s;
  }
};

}  // namespace

void add_batch_event_truncate_family(evolve::FamilyRegistry& registry) {
  registry.add(std::make_shared<BatchEventTruncateFamily>());
}

}  // namespace niche::ops_cpu
