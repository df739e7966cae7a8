// A million distinct shapes: memory stays bounded, hot routes stay hot, every call is counted.
#include <malloc.h>

#include <atomic>
#include <deque>
#include <random>
#include <thread>

#include "tests/dispatch/data_plane_fixture.h"

namespace niche::dispatch {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int64_t kShapes = 100'000;
constexpr bool kSeesTheHeap = false;
#else
constexpr int64_t kShapes = 1'000'000;
constexpr bool kSeesTheHeap = true;
#endif
constexpr int kHot = 256;

int64_t heap_bytes() {
  if (!kSeesTheHeap) return 0;
  const auto m = mallinfo2();
  return static_cast<int64_t>(m.uordblks + m.hblkhd);
}

class ShapeExplosionStress : public testing::DataPlane {
 protected:
  void publish_hot() {
    for (int i = 0; i < kHot; ++i)
      ASSERT_TRUE(d->publisher().put(problem(1 + i, 7), route(toy_kernel_of(i))).ok());
    ASSERT_TRUE(d->publisher().commit().ok());
  }
  std::shared_ptr<const Kernel> toy_kernel_of(int tag) { return testing::toy_kernel(definition, tag); }

  // `shapes` calls of shapes never seen before, from `first` on, and nine times as many hot ones.
  void serve(int64_t first, int64_t shapes, uint64_t seed) {
    std::mt19937_64 rng(seed);
    for (int64_t i = 0; i < shapes; ++i) {
      for (int j = 0; j < 9; ++j) {
        const int hot = static_cast<int>(rng() % kHot);
        const Decision dec = decide(1 + hot, 7);
        ASSERT_EQ(dec.rung, Rung::kExact) << "a hot route went cold";
        ASSERT_EQ(dec.kernel->phase_count, hot);
      }
      (void)decide(1000 + (first + i) % 1000, 1000 + (first + i) / 1000);
    }
  }
};

// Nobody asks what the misses were: records are dropped and counted, nothing grows.
TEST_F(ShapeExplosionStress, WithoutAnAggregatorNothingGrows) {
  publish_hot();
  serve(0, 1000, 1);
  const int64_t before = heap_bytes();
  std::thread other([&] { serve(kShapes / 2, kShapes / 2, 3); });
  serve(1000, kShapes / 2 - 1000, 2);
  other.join();
  EXPECT_LE(heap_bytes() - before, 1 << 20) << "one more thread's state";
  const CounterTotals t = d->totals();
  EXPECT_EQ(t.by_rung[static_cast<int>(Rung::kExact)], static_cast<uint64_t>(9 * kShapes));
  EXPECT_EQ(t.by_reason[static_cast<int>(FallbackReason::kMiss)], static_cast<uint64_t>(kShapes));
  size_t records = 0;
  d->drain([&](const EventRecord& e) { records += e.kind == EventRecord::Kind::kMiss ? 1 : 0; });
  EXPECT_LE(records, 2 * ThreadState::kEvents);
  EXPECT_GE(t.events_dropped + records, static_cast<uint64_t>(kShapes)) << "each miss is a record or a drop";
}

// The worst aggregator: makes a route of every miss it hears of, and evicts the oldest when the table is
// full.
TEST_F(ShapeExplosionStress, WithEveryMissMadeARouteTheTableStaysWithinItsBounds) {
  constexpr uint32_t kEntries = 4096;
  start({.routes_max = kEntries + 4096, .publisher = {.entries_max = kEntries}});
  publish_hot();
  const auto kernel = toy_kernel_of(kHot);
  std::atomic<uint64_t> evicted{0};
  std::atomic<bool> done{false};
  std::thread server([&] {
    for (int64_t first = 0; evicted.load() < 8 * kEntries; first += 1000) serve(first, 1000, 5);
    done = true;
  });
  std::deque<WideProblem> cold;
  int64_t after_warm_up = 0, most = 0;  // 0: not warm yet, or not to be seen
  while (!done.load()) {
    std::vector<WideProblem> missed;
    d->drain([&](const EventRecord& e) {
      if (e.kind == EventRecord::Kind::kMiss) missed.push_back(e.key.decode());
    });
    for (const WideProblem& p : missed) {
      while (cold.size() + kHot >= kEntries) {
        ASSERT_TRUE(d->publisher().erase(cold.front()).ok());
        cold.pop_front();
        ++evicted;
      }
      auto r = d->make_route(
          {definition, d->fallback(number, 0), kernel, nullptr, RolloutState::kIncumbent, 0, ""});
      if (!r.ok()) continue;  // numbers of evicted routes come back once readers are past
      const Status s = d->publisher().put(p, *r);
      ASSERT_TRUE(s.ok()) << s.to_string();
      cold.push_back(p);
    }
    (void)d->publisher().commit();
    d->publisher().poll();
    const PublisherStats s = d->publisher().stats();
    ASSERT_LE(s.entries, kEntries);
    ASSERT_LE(s.retired_tables, 65u);
    ASSERT_LE(s.shards, kEntries / 16) << "at least a quarter of what a shard takes before it splits";
    ASSERT_LE(s.table_bytes, int64_t{68} << 20) << "what waits for readers, and two chunks";
    if (after_warm_up == 0 && evicted.load() > 2 * kEntries) after_warm_up = heap_bytes();
    if (after_warm_up != 0) most = std::max(most, heap_bytes());
  }
  server.join();
  EXPECT_GE(evicted.load(), 8 * kEntries);
  EXPECT_LE(most - after_warm_up, 68 << 20);
  for (int i = 0; i < kHot; ++i) EXPECT_EQ(decide(1 + i, 7).rung, Rung::kExact);
}

}  // namespace
}  // namespace niche::dispatch
