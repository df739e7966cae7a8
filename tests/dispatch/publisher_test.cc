#include "dispatch/publisher.h"

#include <optional>
#include <thread>

#include "tests/dispatch/data_plane_fixture.h"

namespace niche::dispatch {
namespace {

using testing::box;
using testing::toy_kernel;

class PublisherTest : public testing::DataPlane {};

TEST_F(PublisherTest, ACommitIsSeenWholeOrNotAtAll) {
  for (int i = 1; i <= 500; ++i)
    ASSERT_TRUE(d->publisher().put(problem(i, 1), route(toy_kernel(definition))).ok());
  EXPECT_EQ(decide(1, 1).reason, FallbackReason::kMiss);
  const uint64_t version = d->publisher().stats().version;
  ASSERT_TRUE(d->publisher().commit().ok());
  EXPECT_EQ(d->publisher().stats().version, version + 1);
  for (int i = 1; i <= 500; ++i) EXPECT_EQ(decide(i, 1).rung, Rung::kExact);
  ASSERT_TRUE(d->publisher().commit().ok()) << "nothing to do";
  EXPECT_EQ(d->publisher().stats().version, version + 1);
}

// A reader that stalls: publications go on up to the bound, then wait, coalesced; rollback acts at once all
// the while; when the reader moves on, one publication brings everything.
TEST_F(PublisherTest, AStalledReaderBoundsMemoryAndDelaysPublicationsAlone) {
  start({.publisher = {.retired_tables_max = 8}});
  const auto victim = route(toy_kernel(definition, 1));
  publish(1, 1, victim);
  std::optional<Dispatcher::Call> stalled;
  stalled.emplace(*d);
  int published = 0;
  Status last;
  for (int i = 2; i < 40; ++i) {
    ASSERT_TRUE(d->publisher().put(problem(i, 1), route(toy_kernel(definition))).ok());
    last = d->publisher().commit();
    published += last.ok() ? 1 : 0;
    clock.advance_ns(1000);
  }
  EXPECT_EQ(published, 8);
  EXPECT_EQ(last.code(), Code::kBusy);
  PublisherStats s = d->publisher().stats();
  EXPECT_EQ(s.retired_tables, 8u);
  EXPECT_EQ(s.waiting_changes, 30u);
  EXPECT_EQ(s.waiting_ns, 30 * 1000);
  EXPECT_EQ(s.coalesced, 30u);

  victim->quarantine();
  std::thread other([&] {
    EXPECT_EQ(decide(1, 1).reason, FallbackReason::kRolledBack);
    EXPECT_EQ(decide(9, 1).rung, Rung::kExact);
    EXPECT_EQ(decide(10, 1).reason, FallbackReason::kMiss) << "waits";
  });
  other.join();

  const uint64_t version = s.version;
  stalled.reset();
  d->publisher().poll();
  s = d->publisher().stats();
  EXPECT_EQ(s.version, version + 1);
  EXPECT_EQ(s.waiting_changes, 0u);
  EXPECT_EQ(s.waiting_ns, 0);
  for (int i = 2; i < 40; ++i) EXPECT_EQ(decide(i, 1).rung, Rung::kExact);
}

TEST_F(PublisherTest, RetiredBytesAreBoundedToo) {
  start({.publisher = {.retired_tables_max = 1000, .retired_bytes_max = 40 * 1024}});
  std::optional<Dispatcher::Call> stalled;
  stalled.emplace(*d);
  int published = 0;
  for (int i = 1; i < 40; ++i) {
    ASSERT_TRUE(d->publisher().put(problem(i, 1), route(toy_kernel(definition))).ok());
    published += d->publisher().commit().ok() ? 1 : 0;
  }
  EXPECT_LT(published, 12);
  EXPECT_GT(published, 2);
  EXPECT_LT(d->publisher().stats().retired_bytes, 40 * 1024 + 3 * static_cast<int64_t>(sizeof(TableShard)));
  stalled.reset();
  d->publisher().poll();
  EXPECT_EQ(d->publisher().stats().retired_bytes, 0);
}

TEST_F(PublisherTest, ShuttingDownDoesNotDependOnAStalledReader) {
  start({.publisher = {.retired_tables_max = 1}});
  publish(1, 1, route(toy_kernel(definition)));
  std::optional<Dispatcher::Call> stalled;
  stalled.emplace(*d);
  for (int i = 2; i < 6; ++i) {
    ASSERT_TRUE(d->publisher().put(problem(i, 1), route(toy_kernel(definition))).ok());
    (void)d->publisher().commit();
  }
  d->shut_down();
  std::thread other([&] { EXPECT_EQ(decide(1, 1).reason, FallbackReason::kShutdown); });
  other.join();
}

TEST_F(PublisherTest, EntriesAndWaitingChangesAreBounded) {
  start({.publisher = {.entries_max = 10, .waiting_changes_max = 5}});
  const auto r = route(toy_kernel(definition));
  for (int i = 1; i <= 5; ++i) ASSERT_TRUE(d->publisher().put(problem(i, 1), r).ok());
  EXPECT_EQ(d->publisher().put(problem(6, 1), r).code(), Code::kBusy);
  EXPECT_TRUE(d->publisher().put(problem(5, 1), r).ok()) << "the same problem again is no further change";
  ASSERT_TRUE(d->publisher().commit().ok());
  for (int i = 6; i <= 10; ++i) ASSERT_TRUE(d->publisher().put(problem(i, 1), r).ok());
  ASSERT_TRUE(d->publisher().commit().ok());
  EXPECT_EQ(d->publisher().put(problem(11, 1), r).code(), Code::kBusy);
}

TEST_F(PublisherTest, WhatIsRetiredLivesUntilReadersArePast) {
  auto r = route(toy_kernel(definition));
  std::weak_ptr<Route> weak = r;
  publish(1, 1, std::move(r));
  std::optional<Dispatcher::Call> reader;
  reader.emplace(*d);
  ASSERT_TRUE(d->publisher().erase(problem(1, 1)).ok());
  ASSERT_TRUE(d->publisher().commit().ok());
  d->publisher().poll();
  EXPECT_FALSE(weak.expired());
  reader.reset();
  d->publisher().poll();
  EXPECT_TRUE(weak.expired());
}

TEST_F(PublisherTest, FindTellsWhatThePublishedTableWouldSay) {
  const auto exact = route(toy_kernel(definition, 1)), region = route(toy_kernel(definition, 2));
  publish(1, 1, exact);
  ASSERT_TRUE(d->publisher().put_region({site.prefix(), box(1, 8, 1, 8), region}).ok());
  ASSERT_TRUE(d->publisher().commit().ok());
  EXPECT_EQ(d->publisher().find(problem(1, 1)), exact);
  EXPECT_EQ(d->publisher().find(problem(2, 1)), nullptr);
  EXPECT_EQ(d->publisher().find_region(problem(2, 1)), region);
  EXPECT_EQ(d->publisher().find_region(problem(9, 1)), nullptr);
}

}  // namespace
}  // namespace niche::dispatch
