// map_id, mbdt, batch_event_truncate, embedding_bag: operators whose work depends on the data. Integers are
// exact.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/ops/cpu/families.h"
#include "tests/runtime/ops_cpu/harness.h"
#include "tests/runtime/ops_cpu/program_family.h"

namespace niche::ops_cpu_test {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();

// `spread`: 0 a few apart, 1 over the whole of int64, 2 bunched: most ids within a hair, one far away.
OpTest map_id_test(int spread) {
  OpTest t;
  t.schema = make_schema("map_id", "V:v T:c", {"values:in:i64:0", "table:in:i64:1:c", "index:out:i64:0"}, {},
                         {"i64"});
  t.fill = [spread](Call& c, Rng& rng) {
    const int64_t ids = c.axes[1], n = c.axes[0];
    int64_t last = -500;
    const uint64_t step = ~uint64_t{0} / static_cast<uint64_t>(ids);
    for (int64_t i = 0; i < ids; ++i) {
      int64_t id = last += 1 + rng.below(9);
      if (spread == 1)
        id = static_cast<int64_t>(static_cast<uint64_t>(i) * step + static_cast<uint64_t>(rng.below(1000)) +
                                  (uint64_t{1} << 63));
      if (spread == 1 && i == ids - 1) id = kMax;
      if (spread == 2 && i == ids - 1) id = kMax - 1;
      c.args[1].set_int(i, id);
    }
    for (int64_t i = 0; i < n; ++i) {
      const int64_t known = c.args[1].get_int(rng.below(ids));
      const int64_t pick[] = {known,
                              known == kMax ? known : known + 1,
                              kMin,
                              kMax,
                              c.args[1].get_int(0),
                              c.args[1].get_int(ids - 1),
                              0,
                              static_cast<int64_t>(rng.next())};
      c.args[0].set_int(i, rng.below(2) ? known : pick[rng.below(8)]);
    }
  };
  t.reference = [](const Call& c, std::vector<Array>& want) {
    const auto* id = reinterpret_cast<const int64_t*>(c.args[1].bytes.data());
    for (int64_t i = 0; i < c.axes[0]; ++i) {
      const int64_t v = c.args[0].get_int(i);
      const int64_t* at = std::lower_bound(id, id + c.axes[1], v);
      want[0].set_int(i, at != id + c.axes[1] && *at == v ? at - id + 1 : 0);
    }
  };
  return t;
}

OpTest mbdt_test() {
  OpTest t;
  t.schema = make_schema("mbdt", "F:c K:c B:v", {"X:in:f32:0,2", "borders:in:f32:0,1:c", "bin:out:i64:0,2"},
                         {}, {"f32"});
  t.fill = [](Call& c, Rng& rng) {
    const int64_t features = c.axes[0], borders = c.axes[1], batch = c.axes[2];
    for (int64_t f = 0; f < features; ++f) {
      std::vector<double> row(static_cast<size_t>(borders));
      for (double& b : row)
        b = f % 3 == 1 ? std::floor(rng.normal() * 2) : rng.normal();  // ties in some rows
      std::sort(row.begin(), row.end());
      if (f % 3 == 2) row.back() = std::numeric_limits<double>::infinity(), row.front() = -row.back();
      for (int64_t k = 0; k < borders; ++k) c.args[1].set(f * borders + k, row[static_cast<size_t>(k)]);
      for (int64_t b = 0; b < batch; ++b) {
        const double inf = std::numeric_limits<double>::infinity();
        const double pick[] = {std::nan(""), inf,   -inf,
                               -0.0,         1e-41, c.args[1].get(f * borders + rng.below(borders))};
        c.args[0].set(f * batch + b, rng.below(3) ? rng.normal() * 1.5 : pick[rng.below(6)]);
      }
    }
  };
  t.reference = [](const Call& c, std::vector<Array>& want) {
    const int64_t borders = c.axes[1], batch = c.axes[2];
    for (int64_t i = 0; i < want[0].size(); ++i) {
      const int64_t f = i / batch;
      int64_t bin = f * (borders + 1);
      for (int64_t k = 0; k < borders; ++k) bin += !(c.args[0].get(i) <= c.args[1].get(f * borders + k));
      want[0].set_int(i, bin);
    }
  };
  return t;
}

TEST(MbdtProgram, PassesTheHarnessOfTheTemplates) {
  if (!native_target().avx2) GTEST_SKIP() << "written for AVX2";
  const ProgramFamily program("mbdt", "mbdt/1.reply.md");
  check_family(program, mbdt_test(), {{"f32", {{"F", 6}, {"K", 31}}, {}, {{1}, {7}, {8}, {33}, {500}}}}, 0);
}

// Lengths are drawn so that events and values fill E and W exactly, as a model's batch does; U = E = W = 0
// work too.
OpTest event_truncate_test() {
  OpTest t;
  t.schema =
      make_schema("batch_event_truncate", "F:c U:v E:v W:v F2:d",
                  {"outer_len:in:i64:0,1", "inner_len:in:i64:2", "values:in:i64:3", "outer_out:out:i64:0,1",
                   "inner_out:out:i64:2", "values_out:out:i64:3", "sizes:out:i64:4"},
                  {{"max_events", 100}}, {"i64"});
  t.derive = [](std::vector<int64_t>& axes) { axes[4] = 2 * axes[0]; };
  t.fill = [](Call& c, Rng& rng) {
    const int64_t slots = c.axes[0] * c.axes[1], events = c.axes[2], values = c.axes[3];
    std::vector<int64_t> outer(static_cast<size_t>(slots)), inner(static_cast<size_t>(events));
    for (int64_t e = 0; e < events; ++e) {
      const int64_t hot = rng.below(3) == 0 ? rng.below(slots) : rng.below(std::max<int64_t>(1, slots / 2));
      ++outer[static_cast<size_t>(hot)];
    }
    for (int64_t v = 0; v < values && events > 0; ++v) ++inner[static_cast<size_t>(rng.below(events))];
    for (int64_t i = 0; i < slots; ++i) c.args[0].set_int(i, outer[static_cast<size_t>(i)]);
    for (int64_t i = 0; i < events; ++i) c.args[1].set_int(i, inner[static_cast<size_t>(i)]);
    for (int64_t i = 0; i < values; ++i) c.args[2].set_int(i, static_cast<int64_t>(rng.next()));
  };
  t.reference = [](const Call& c, std::vector<Array>& want) {
    const int64_t features = c.axes[0], users = c.axes[1],
                  most = static_cast<int64_t>(c.definition->attr("max_events"));
    int64_t e = 0, v = 0, eo = 0, vo = 0;
    for (int64_t f = 0; f < features; ++f) {
      const int64_t e0 = eo, v0 = vo;
      for (int64_t u = 0; u < users; ++u) {
        const int64_t n = c.args[0].get_int(f * users + u);
        want[0].set_int(f * users + u, std::min(n, most));
        for (int64_t k = 0; k < n; ++k, ++e) {
          const int64_t len = c.args[1].get_int(e);
          if (k < most) want[1].set_int(eo++, len);
          for (int64_t i = 0; i < len; ++i, ++v)
            if (k < most) want[2].set_int(vo++, c.args[2].get_int(v));
        }
      }
      want[3].set_int(2 * f, eo - e0);
      want[3].set_int(2 * f + 1, vo - v0);
    }
  };
  t.written = [](const Call& c, int arg, const std::vector<Array>& want) {
    if (arg == 3 || arg == 6) return want[static_cast<size_t>(arg - 3)].size();
    int64_t n = 0;
    for (int64_t f = 0; f < c.axes[0]; ++f) n += want[3].get_int(2 * f + (arg == 5));
    return n;
  };
  return t;
}

OpTest embedding_bag_test() {
  OpTest t;
  t.schema = make_schema("embedding_bag", "V:c D:c I:v B:v",
                         {"weight:in:T:0,1:c", "indices:in:i64:2", "offsets:in:i64:3", "y:out:T:3,1"},
                         {{"mean", 0}}, {"f32", "bf16"});
  t.fill = [](Call& c, Rng& rng) {
    for (int64_t i = 0; i < c.args[0].size(); ++i) c.args[0].set(i, rng.normal());
    for (int64_t i = 0; i < c.axes[2]; ++i) c.args[1].set_int(i, rng.below(c.axes[0]));
    std::vector<int64_t> cut;
    for (int64_t b = 1; b < c.axes[3]; ++b)
      cut.push_back(rng.below(4) ? rng.below(c.axes[2] + 1) : 0);  // empty bags
    std::sort(cut.begin(), cut.end());
    cut.insert(cut.begin(), 0);
    for (int64_t b = 0; b < c.axes[3]; ++b) c.args[2].set_int(b, cut[static_cast<size_t>(b)]);
  };
  t.reference = [](const Call& c, std::vector<Array>& want) {
    const int64_t width = c.axes[1], total = c.axes[2], bags = c.axes[3];
    for (int64_t b = 0; b < bags; ++b) {
      const int64_t from = c.args[2].get_int(b), to = b + 1 < bags ? c.args[2].get_int(b + 1) : total;
      for (int64_t k = 0; k < width; ++k) {
        double sum = 0;
        for (int64_t i = from; i < to; ++i) sum += c.args[0].get(c.args[1].get_int(i) * width + k);
        want[0].set(b * width + k, c.definition->attr("mean") != 0 && to > from
                                       ? sum / static_cast<double>(to - from)
                                       : sum);
      }
    }
  };
  return t;
}

struct Families {
  explicit Families(void (*add)(evolve::FamilyRegistry&)) { add(registry); }
  const evolve::TemplateFamily& only() const { return *registry.all().at(0); }
  evolve::FamilyRegistry registry;
};

TEST(MapIdFamily, EveryPointFindsWhatIsThere) {
  const Families f(ops_cpu::add_map_id_family);
  check_family(f.only(), map_id_test(0),
               {{"i64", {{"T", 10000}}, {}, {{1}, {2000}, {5001}}}, {"i64", {{"T", 777}}, {}, {{1500}}}}, 16);
  check_family(f.only(), map_id_test(1), {{"i64", {{"T", 1000}}, {}, {{3000}}}}, 12);
}
TEST(MapIdFamily, SmallTablesAndBunchedIds) {
  const Families f(ops_cpu::add_map_id_family);
  check_family(
      f.only(), map_id_test(0),
      {{"i64", {{"T", 1}}, {}, {{9}}}, {"i64", {{"T", 2}}, {}, {{70}}}, {"i64", {{"T", 17}}, {}, {{333}}}},
      12);
  check_family(f.only(), map_id_test(2), {{"i64", {{"T", 4096}}, {}, {{1111}}}}, 12);
}
TEST(MapIdFamily, SpaceAndAvx512) {
  const Families f(ops_cpu::add_map_id_family);
  for (int64_t ids : {100, 10000, 1000000})
    check_space(f.only(), map_id_test(0), {"i64", {{"T", ids}}, {}, {}});
  check_compiles_for_avx512(f.only(), map_id_test(0), {"i64", {{"T", 10000}}, {}, {}});
}

TEST(MbdtFamily, EveryPointCountsBorders) {
  const Families f(ops_cpu::add_mbdt_family);
  check_family(f.only(), mbdt_test(),
               {{"f32", {{"F", 5}, {"K", 8}}, {}, {{1}, {7}, {64}, {1001}}},
                {"f32", {{"F", 3}, {"K", 1}}, {}, {{1}, {600}}},
                {"f32", {{"F", 4}, {"K", 7}}, {}, {{5}, {77}}},
                {"f32", {{"F", 3}, {"K", 70}}, {}, {{8}, {999}}}},
               24);
}
TEST(MbdtFamily, SpaceAndAvx512) {
  const Families f(ops_cpu::add_mbdt_family);
  for (int64_t k : {1, 4, 8, 64}) check_space(f.only(), mbdt_test(), {"f32", {{"F", 64}, {"K", k}}, {}, {}});
  for (int64_t k : {8, 33})
    check_compiles_for_avx512(f.only(), mbdt_test(), {"f32", {{"F", 4}, {"K", k}}, {}, {}});
}

TEST(BatchEventTruncateFamily, EveryPointKeepsTheFirstEvents) {
  const Families f(ops_cpu::add_batch_event_truncate_family);
  const OpTest t = event_truncate_test();
  check_family(
      f.only(), t,
      {{"i64", {{"F", 9}}, {{"max_events", 6}}, {{31, 2000, 3001}, {1, 50, 7}, {5, 0, 0}, {4, 9, 0}}},
       {"i64", {{"F", 1}}, {}, {{3, 1200, 2500}}},
       {"i64", {{"F", 2}}, {{"max_events", 1}}, {{100, 333, 1000}}}},
      24);
}
TEST(BatchEventTruncateFamily, SpaceAndAvx512) {
  const Families f(ops_cpu::add_batch_event_truncate_family);
  check_space(f.only(), event_truncate_test(), {"i64", {{"F", 9}}, {}, {}});
  check_compiles_for_avx512(f.only(), event_truncate_test(), {"i64", {{"F", 9}}, {}, {}});
}

TEST(EmbeddingBagFamily, EveryPointSumsItsBags) {
  const Families f(ops_cpu::add_embedding_bag_family);
  check_family(f.only(), embedding_bag_test(),
               {{"f32", {{"V", 300}, {"D", 64}}, {}, {{200, 40}, {1, 1}, {50, 1}}},
                {"f32", {{"V", 50}, {"D", 5}}, {{"mean", 1}}, {{99, 17}}},
                {"f32", {{"V", 50}, {"D", 203}}, {}, {{77, 9}}},
                {"bf16", {{"V", 60}, {"D", 96}}, {{"mean", 1}}, {{120, 10}}}},
               16);
}
TEST(EmbeddingBagFamily, SpaceAndAvx512) {
  const Families f(ops_cpu::add_embedding_bag_family);
  check_space(f.only(), embedding_bag_test(), {"f32", {{"V", 1000}, {"D", 64}}, {}, {}});
  check_compiles_for_avx512(f.only(), embedding_bag_test(), {"bf16", {{"V", 100}, {"D", 100}}, {}, {}});
}

}  // namespace
}  // namespace niche::ops_cpu_test
