// embedding_bag: sum or mean of the weight rows of each bag. Rows come from beyond the caches in random
// order: the library prefetches too, so equal is the best to be expected (docs/templates.md).
//
// Schedules: `tile` vectors of a row stand in registers while the bag passes by (0: the whole row); `ahead`
// rows are prefetched, into every cache or (`hint` 0) past them; `unroll` rows at a time; `bags` make a task.
#include <algorithm>

#include "runtime/ops/cpu/families.h"
#include "runtime/ops/cpu/space_family.h"

namespace niche::ops_cpu {
namespace {

constexpr std::string_view kBody = R"(
typedef vf<W> F;
constexpr long VECS = D / W, TAIL = D % W, TILES = VECS / TILE, LEFT = VECS % TILE, ROW_BYTES = D * sizeof(T);
// Columns [c, c + V * W) of rows index[0..n), times scale.
template <int V, bool PREFETCH> NICHE_INLINE void columns(const T* weight, const long* index, long n, long after, long c, float scale, T* y) {
  F acc[V];
#pragma GCC unroll 32
  for (int k = 0; k < V; ++k) acc[k] = F{};
  const auto add = [&](long i) __attribute__((always_inline)) {
    const T* row = weight + index[i] * D;
    if constexpr (PREFETCH && AHEAD > 0) {
      const char* next = (const char*)(weight + index[i + AHEAD < after ? i + AHEAD : i] * D);
#pragma GCC unroll 16
      for (long b = 0; b < ROW_BYTES; b += 64) __builtin_prefetch(next + b, 0, HINT);
    }
#pragma GCC unroll 32
    for (int k = 0; k < V; ++k) acc[k] += load<W>(row + c + k * W);
  };
  long i = 0;
  for (; i + UNROLL <= n; i += UNROLL) {
#pragma GCC unroll 8
    for (int u = 0; u < UNROLL; ++u) add(i + u);
  }
  for (; i < n; ++i) add(i);
#pragma GCC unroll 32
  for (int k = 0; k < V; ++k) store(y + c + k * W, acc[k] * scale);
}
extern "C" void run@(const NicheKernelArgs* a, long begin, long end) {
  const long total = a->n[2], bags = a->n[3];
  const T* weight = (const T*)a->p[0];
  const long *indices = (const long*)a->p[1], *offsets = (const long*)a->p[2];
  T* y = (T*)a->p[3];
  for (long b = begin * BAGS; b < lmin(end * BAGS, bags); ++b) {
    const long from = offsets[b], n = (b + 1 < bags ? offsets[b + 1] : total) - from;
    const float scale = MEAN && n > 0 ? 1.0f / (float)n : 1.0f;
    const long* index = indices + from;
    const long after = total - from;
    if constexpr (TILES > 0) {
      columns<TILE, true>(weight, index, n, after, 0, scale, y + b * D);
      for (long t = 1; t < TILES; ++t) columns<TILE, false>(weight, index, n, after, t * TILE * W, scale, y + b * D);
    }
    if constexpr (LEFT) columns<LEFT, TILES == 0>(weight, index, n, after, TILES * TILE * W, scale, y + b * D);
    if constexpr (TAIL) {
      F acc = {};
      for (long i = 0; i < n; ++i) acc += load_n<W>(weight + index[i] * D + D - TAIL, TAIL);
      store_n(y + b * D + D - TAIL, acc * scale, TAIL);
    }
  }
}
)";

class EmbeddingBagFamily : public SpaceFamily {
 public:
  EmbeddingBagFamily()
      : SpaceFamily("embedding_bag.gather", "embedding_bag",
                    {{"lanes", {8, 16}},
                     {"tile", {8, 2, 4, 12, 24}},
                     {"ahead", {16, 0, 4, 8, 12, 24, 32}},
                     {"hint", {3, 0}},
                     {"unroll", {1, 2, 3, 4}},
                     {"bags", {4, 1, 16, 64}}}) {}

  KernelSource render(const Definition& d, const CpuTarget& t, const Point& point,
                      std::string_view suffix) const override {
    const View v(*this, point);
    KernelSource s;
    s.text = SourceBuilder(suffix)
                 .type("T", element(d))
                 .let("D", d.const_extents()[1])
                 .let("MEAN", d.attr("mean") != 0)
                 .let("W", v["lanes"])
                 .let("TILE", v["tile"])
                 .let("AHEAD", v["ahead"])
                 .let("HINT", v["hint"])
                 .let("UNROLL", v["unroll"])
                 .let("BAGS", v["bags"])
                 .body(kBody)
                 .take();
    s.plan.phases = {{"run" + std::string(suffix), {{3, v["bags"]}}, 4}};
    s.limits = any_problem(d);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CpuTarget& t, const View& v) const override {
    const int64_t vectors = d.const_extents()[1] / v["lanes"];
    if (v["lanes"] == 16 && !t.avx512) return false;
    if (v["tile"] > (t.avx512 ? 24 : 12)) return false;
    if (v["tile"] > 2 && v["tile"] / 2 >= std::max<int64_t>(vectors, 1))
      return false;  // the same as a smaller tile
    if (v["ahead"] == 0 && v["hint"] != 3) return false;
    return true;
  }

  std::vector<Settings> seed_points(const Definition&, const CpuTarget& t) const override {
    const int lanes = t.avx512 ? 16 : 8;
    std::vector<Settings> s;
    for (int tile : {8, 12, 4, 2})
      for (int ahead : {16, 8})
        s.push_back({{"lanes", lanes}, {"tile", tile}, {"ahead", ahead}, {"unroll", 1}});
    s.push_back({{"lanes", 8}, {"tile", 2}, {"ahead", 0}});
    return s;
  }
};

}  // namespace

void add_embedding_bag_family(evolve::FamilyRegistry& registry) {
  registry.add(std::make_shared<EmbeddingBagFamily>());
}

}  // namespace niche::ops_cpu
