#include "dispatch/table_writer.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <unordered_map>

namespace niche::dispatch {
namespace {

ProblemKey key(uint64_t i) {
  WideProblem p;
  p.prefix.definition = 1 + static_cast<uint32_t>(i >> 20);
  p.axes[0] = static_cast<int64_t>(i & 0xfffff);
  return pack_key(p);
}
TableSlot slot(uint64_t i, uint32_t value) {
  TableSlot s;
  s.key = key(i);
  s.route_index = value;
  return s;
}

// Against std::unordered_map over random inserts, replacements, erasures and publications; every published
// Snapshot stays as it was.
TEST(TableWriter, AgreesWithAMapAndLeavesOldSnapshotsAlone) {
  std::mt19937_64 rng(11);
  TableWriter w;
  std::unordered_map<uint64_t, uint32_t> truth;
  struct Old {
    Snapshot* snapshot;
    std::unordered_map<uint64_t, uint32_t> truth;
    std::vector<TableShard*> replaced_after;
  };
  std::vector<Old> olds;
  constexpr uint64_t kKeys = 4000;
  for (int round = 0; round < 60; ++round) {
    for (int i = 0; i < 300; ++i) {
      const uint64_t k = rng() % kKeys;
      if (rng() % 3 == 0) {
        w.erase(key(k));
        truth.erase(k);
      } else {
        const auto v = static_cast<uint32_t>(rng());
        ASSERT_TRUE(w.upsert(slot(k, v)));
        truth[k] = v;
      }
    }
    Snapshot* s = w.finish(static_cast<uint64_t>(round) + 1, true);
    auto replaced = w.take_replaced();
    if (!olds.empty()) olds.back().replaced_after = replaced;
    olds.push_back({s, truth, {}});
    if (round % 10 != 9) continue;
    for (const Old& o : olds) {
      for (uint64_t k = 0; k < kKeys; ++k) {
        const TableSlot* found = o.snapshot->find(key(k));
        const auto it = o.truth.find(k);
        ASSERT_EQ(found != nullptr, it != o.truth.end()) << "key " << k << " version " << o.snapshot->version;
        if (found != nullptr) {
          ASSERT_EQ(found->route_index, it->second);
        }
      }
    }
    for (Old& o : olds) {
      if (&o == &olds.back()) break;
      for (TableShard* b : o.replaced_after) w.recycle(b);
      w.recycle(o.snapshot);
    }
    olds.erase(olds.begin(), olds.end() - 1);
  }
  w.recycle(olds.back().snapshot);
}

TEST(TableWriter, AChangeReplacesOneShardAtAnySize) {
  for (const uint64_t n : {1000u, 20000u}) {
    TableWriter w;
    for (uint64_t i = 0; i < n; ++i) ASSERT_TRUE(w.upsert(slot(i, 1)));
    w.recycle(w.finish(1, true));
    for (TableShard* b : w.take_replaced()) w.recycle(b);
    ASSERT_TRUE(w.upsert(slot(17, 2)));
    const auto replaced = w.take_replaced();
    EXPECT_EQ(replaced.size(), 1u) << n;
    for (TableShard* b : replaced) w.recycle(b);
    EXPECT_GT(w.shards(), n / kShardEntriesMax);
  }
}

TEST(TableWriter, NotServingIsAnEmptyTable) {
  TableWriter w;
  ASSERT_TRUE(w.upsert(slot(5, 1)));
  Snapshot* s = w.finish(1, false);
  EXPECT_EQ(s->find(key(5)), nullptr);
  w.recycle(s);
  s = w.finish(2, true);
  EXPECT_NE(s->find(key(5)), nullptr);
  w.recycle(s);
}

// What a hit costs: one slot, wherever the writer can help it. In random order a second one is a branch that
// nobody can predict.
TEST(TableWriter, AKeyLiesWhereItsPlaceSays) {
  TableWriter w;
  constexpr uint64_t kKeys = 20'000;
  for (uint64_t i = 0; i < kKeys; ++i) ASSERT_TRUE(w.upsert(slot(i, 1)));
  for (uint64_t i = 0; i < kKeys; i += 3) w.erase(key(i));
  for (uint64_t i = 0; i < kKeys; i += 6) ASSERT_TRUE(w.upsert(slot(i, 2)));
  Snapshot* s = w.finish(1, true);
  uint64_t elsewhere = 0;
  for (uint64_t i = 0; i < kKeys; ++i) {
    const TableSlot* found = s->find(key(i));
    ASSERT_EQ(found != nullptr, i % 3 != 0 || i % 6 == 0) << i;
    const uint64_t h = key(i).hash();
    const TableShard& shard = *s->directory[h >> s->shift];
    const Place place = shard.places[Place::bucket_of(h)];
    elsewhere += place.further() || (found != nullptr && found != &shard.slots[place.slot_of(h)]) ? 1 : 0;
  }
  EXPECT_EQ(elsewhere, 0u);
  w.recycle(s);
  for (TableShard* b : w.take_replaced()) w.recycle(b);
}

// Of one hash no Place can tell keys apart: they lie one behind the other, found all the same, and so are the
// others of their bucket.
TEST(TableWriter, KeysOfOneHashAreAllFound) {
  const auto twin = [](uint32_t definition) {
    WideProblem p;
    p.prefix.definition = definition;
    // A factor of the hash becomes zero, whatever the other is.
    p.axes[0] = 0xa0b428db;
    p.axes[1] = 0xe7037ed1;
    return pack_key(p);
  };
  constexpr uint32_t kTwins = 40;
  TableWriter w;
  for (uint64_t i = 0; i < 3000; ++i) {
    ASSERT_TRUE(w.upsert(slot(i, static_cast<uint32_t>(i))));
    if (i % 100 != 0 || i / 100 >= kTwins) continue;
    TableSlot s;
    s.key = twin(1 + static_cast<uint32_t>(i / 100));
    ASSERT_EQ(s.key.hash(), twin(1).hash());
    ASSERT_TRUE(w.upsert(s));
  }
  for (uint32_t d = 1; d <= 30; d += 3) w.erase(twin(d));
  for (uint64_t i = 0; i < 3000; i += 7) w.erase(key(i));
  Snapshot* s = w.finish(1, true);
  for (uint32_t d = 1; d <= kTwins; ++d) EXPECT_EQ(s->find(twin(d)) != nullptr, d <= 30 && d % 3 != 1) << d;
  for (uint64_t i = 0; i < 3000; ++i) EXPECT_EQ(s->find(key(i)) != nullptr, i % 7 != 0) << i;
  w.recycle(s);
  for (TableShard* b : w.take_replaced()) w.recycle(b);
}

// Keys whose hashes share their top bits (an attacker's, say): shards stop splitting at kDepthMax, fill up,
// then refuse; what was in stays found.
TEST(TableWriter, HashFloodingIsRefusedNotFatal) {
  TableWriter w;
  std::vector<uint64_t> same;
  const uint64_t top = key(0).hash() >> 44;
  for (uint64_t i = 0; same.size() < 160 && i < (uint64_t{1} << 32); ++i) {
    // Searching all of 20 bits costs 160 million hashes; the table's limit lies at 16 + 1.
    if (key(i).hash() >> 47 == top >> 3) same.push_back(i);
    if (i > 40'000'000) break;
  }
  ASSERT_GT(same.size(), 130u);
  size_t in = 0;
  for (const uint64_t i : same) in += w.upsert(slot(i, 7)) ? 1 : 0;
  EXPECT_LT(in, same.size());
  EXPECT_EQ(in, kShardSlots - 1);
  Snapshot* s = w.finish(1, true);
  for (size_t i = 0; i < in; ++i) EXPECT_NE(s->find(key(same[i])), nullptr);
  EXPECT_EQ(s->find(key(same.back())), nullptr);
  w.recycle(s);
  for (TableShard* b : w.take_replaced()) w.recycle(b);
}

}  // namespace
}  // namespace niche::dispatch
