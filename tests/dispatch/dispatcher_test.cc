#include "dispatch/dispatcher.h"

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "tests/dispatch/data_plane_fixture.h"

namespace {
std::atomic<long> allocations{0};
}
// noinline: GCC would otherwise see malloc's pointer meet a delete.
[[gnu::noinline]] void* operator new(size_t n) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(n)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace niche::dispatch {
namespace {

using testing::box;
using testing::toy_definition;
using testing::toy_kernel;

class DispatcherTest : public testing::DataPlane {};

TEST_F(DispatcherTest, AMissRunsTheSitesFallback) {
  const Decision dec = decide(1, 1);
  EXPECT_EQ(dec.kernel, d->fallback(number, 0).get());
  EXPECT_EQ(dec.reason, FallbackReason::kMiss);
  CallFrame frame;
  const Executor executor;
  dec.kernel->launch(*dec.kernel, frame, executor);
  EXPECT_EQ(op->runs[0], 1);
}

TEST_F(DispatcherTest, AFallbacksExceptionPassesUnchanged) {
  op->throws = true;
  const Decision dec = decide(1, 1);
  CallFrame frame;
  const Executor executor;
  EXPECT_THROW(dec.kernel->launch(*dec.kernel, frame, executor), std::runtime_error);
}

TEST_F(DispatcherTest, AnExactEntryIsServedByItsIncumbent) {
  const auto r = route(toy_kernel(definition, 2));
  publish(4, 100, r);
  const Decision dec = decide(4, 100);
  EXPECT_EQ(dec.rung, Rung::kExact);
  EXPECT_EQ(dec.kernel, r->incumbent().get());
  EXPECT_EQ(dec.route, r.get());
  EXPECT_EQ(decide(4, 101).rung, Rung::kFallback);
  EXPECT_EQ(d->counts(*r).by_rung[static_cast<int>(Rung::kExact)], 1u);
}

TEST_F(DispatcherTest, DefineIsIdempotentAndBounded) {
  EXPECT_EQ(*d->define(op, toy_definition()), number);
  EXPECT_NE(*d->define(op, toy_definition(32)), number);
  start({.definitions_max = 1});
  EXPECT_EQ(d->define(op, toy_definition(32)).status().code(), Code::kBusy);
}

TEST_F(DispatcherTest, AnEntryIsRefusedWhereAKernelDoesNotHold) {
  const auto r = route(toy_kernel(definition, 1, box(1, 8, 1, 8)));
  EXPECT_EQ(d->publisher().put(problem(9, 1), r).code(), Code::kInvalid);
  WideProblem unaligned = problem(4, 4);
  unaligned.layout = LayoutClass::plain(3);
  EXPECT_EQ(d->publisher().put(unaligned, r).code(), Code::kInvalid);
  WideProblem unknown = problem(4, 4);
  unknown.prefix.definition = 77;
  EXPECT_EQ(d->publisher().put(unknown, r).code(), Code::kInvalid);
  const uint32_t other = *d->define(op, toy_definition(32));
  WideProblem foreign = problem(4, 4);
  foreign.prefix.definition = other;
  const Status s = d->publisher().put(foreign, r);
  EXPECT_EQ(s.code(), Code::kInvalid);
  EXPECT_NE(s.message().find("N32"), std::string::npos) << s.message();
}

TEST_F(DispatcherTest, ARouteIsRefusedWhereItsStateHasNoKernel) {
  const auto fallback = d->fallback(number, 0);
  const auto make = [&](Route::Spec s) { return d->make_route(std::move(s)).status().code(); };
  EXPECT_EQ(make({definition, nullptr, nullptr, nullptr, RolloutState::kFallbackOnly, 0, ""}),
            Code::kInvalid);
  EXPECT_EQ(make({definition, fallback, nullptr, nullptr, RolloutState::kIncumbent, 0, ""}), Code::kInvalid);
  EXPECT_EQ(make({definition, fallback, nullptr, nullptr, RolloutState::kCanary, 0.1, ""}), Code::kInvalid);
  EXPECT_EQ(
      make({definition, fallback, toy_kernel(toy_definition(32)), nullptr, RolloutState::kIncumbent, 0, ""}),
      Code::kInvalid);
}

TEST_F(DispatcherTest, RollbackActsOnTheNextCallWithoutAPublication) {
  const auto r = route(toy_kernel(definition, 1), toy_kernel(definition, 2), RolloutState::kCanary, 0.5);
  publish(4, 4, r);
  const uint64_t version = d->publisher().stats().version;
  r->roll_back();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(decide(4, 4).kernel, r->incumbent().get());
  r->quarantine();
  const Decision dec = decide(4, 4);
  EXPECT_EQ(dec.kernel, r->fallback().get());
  EXPECT_EQ(dec.reason, FallbackReason::kRolledBack);
  EXPECT_EQ(d->publisher().stats().version, version);
}

TEST_F(DispatcherTest, WithoutAnIncumbentRolledBackMeansTheRoutesFallback) {
  const auto r = route(nullptr, toy_kernel(definition, 2), RolloutState::kCanary, 0.25);
  publish(4, 4, r);
  r->roll_back();
  const Decision dec = decide(4, 4);
  EXPECT_EQ(dec.kernel, r->fallback().get());
  EXPECT_EQ(dec.reason, FallbackReason::kRolledBack);
}

TEST_F(DispatcherTest, CanaryAndControlGetTheirExactShare) {
  const auto r = route(toy_kernel(definition, 1), toy_kernel(definition, 2), RolloutState::kCanary, 0.1);
  publish(4, 4, r);
  constexpr int kCalls = 100000;
  for (int i = 0; i < kCalls; ++i) (void)decide(4, 4);
  const RouteCounts c = d->counts(*r);
  const double canary = static_cast<double>(c.by_rung[static_cast<int>(Rung::kCanary)]) / kCalls;
  const double control = static_cast<double>(c.by_rung[static_cast<int>(Rung::kControl)]) / kCalls;
  // Five standard deviations of a binomial: 5 * sqrt(0.1 * 0.9 / 100000) = 0.0047.
  EXPECT_NEAR(canary, 0.1, 0.0047);
  EXPECT_NEAR(control, 0.1, 0.0047);
  EXPECT_EQ(c.by_rung[0] + c.by_rung[2] + c.by_rung[3], static_cast<uint64_t>(kCalls));
}

TEST_F(DispatcherTest, ShadowRunsTheChallengerOffTheAnswersPath) {
  SamplingRates rates;
  rates.challenger_shadow_every = 4;
  d->set_sampling(rates);
  const auto r = route(nullptr, toy_kernel(definition, 2), RolloutState::kShadow);
  publish(4, 4, r);
  int shadowed = 0;
  for (int i = 0; i < 4000; ++i) {
    const Decision dec = decide(4, 4);
    ASSERT_EQ(dec.kernel, r->fallback().get());
    ASSERT_TRUE(dec.shadow == nullptr || dec.shadow == r->challenger().get());
    shadowed += dec.shadow != nullptr ? 1 : 0;
  }
  EXPECT_NEAR(shadowed, 1000, 140);
}

TEST_F(DispatcherTest, OneCallInNIsTimedAndLeavesARecord) {
  SamplingRates rates;
  rates.time_every = 10;
  d->set_sampling(rates);
  const auto r = route(toy_kernel(definition, 1));
  publish(4, 4, r);
  int timed = 0;
  for (int i = 0; i < 3000; ++i) {
    const int64_t var[kMaxVarAxes] = {4, 4};
    Dispatcher::Call call(*d);
    const ProblemKey key = call.pack(site, LayoutClass::plain(6), var);
    const Decision dec = call.decide(site, LayoutClass::plain(6), var);
    if (dec.time) {
      ++timed;
      call.record_time(dec, key, var, 123);
    }
  }
  EXPECT_NEAR(timed, 300, 60);
  int records = 0;
  d->drain([&](const EventRecord& e) {
    ASSERT_EQ(e.kind, EventRecord::Kind::kTiming);
    EXPECT_EQ(e.kernel_id, r->incumbent()->id);
    EXPECT_EQ(e.route, r->index());
    EXPECT_EQ(e.axes[1], 4);
    ++records;
  });
  EXPECT_EQ(records, timed);
}

TEST_F(DispatcherTest, AMissLeavesARecordAndAFullRingCounts) {
  const int64_t extra = 10;
  for (int64_t i = 0; i < ThreadState::kEvents + extra; ++i) (void)decide(1, i + 1);
  int64_t n = 0;
  d->drain([&](const EventRecord& e) {
    EXPECT_EQ(e.kind, EventRecord::Kind::kMiss);
    EXPECT_EQ(e.key.decode().axes[1], n + 1);
    ++n;
  });
  EXPECT_EQ(n, ThreadState::kEvents);
  EXPECT_EQ(d->totals().events_dropped, static_cast<uint64_t>(extra));
}

TEST_F(DispatcherTest, NoAllocationOnAHitOrAMiss) {
  publish(4, 4, route(toy_kernel(definition, 1)));
  publish(5, 5, route(toy_kernel(definition, 1), toy_kernel(definition, 2), RolloutState::kCanary, 0.3));
  ASSERT_TRUE(
      d->publisher().put_region({site.prefix(), box(1, 8, 100, 200), route(toy_kernel(definition))}).ok());
  ASSERT_TRUE(d->publisher().commit().ok());
  (void)decide(4, 4);  // attaches the thread
  const long before = allocations.load();
  for (int i = 0; i < 2000; ++i) {
    RequestScope scope(*d, {.id = static_cast<uint64_t>(i) + 1});
    (void)decide(4, 4);
    (void)decide(5, 5);
    (void)decide(3, 100 + i % 50);
    (void)decide(1000 + i, 7);
  }
  EXPECT_EQ(allocations.load(), before);
}

TEST_F(DispatcherTest, AKernelWithoutReservedWorkspaceLeavesTheCallToTheFallback) {
  auto k = toy_kernel(definition, 1);
  k->plan.workspace_bytes = 4096;
  k->workspace_units = 64;
  const auto r = route(k);
  publish(4, 4, r);
  EXPECT_EQ(decide(4, 4).reason, FallbackReason::kNoWorkspace);
  ASSERT_TRUE(d->reserve_workspace(4096).ok());
  EXPECT_EQ(decide(4, 4).kernel, k.get());
  Dispatcher::Call call(*d);
  CallFrame frame;
  call.lend_workspace(frame);
  EXPECT_GE(frame.workspace_bytes, 4096);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(frame.workspace) % 64, 0u);
  static_cast<char*>(frame.workspace)[4095] = 1;
  std::thread late([&] { EXPECT_EQ(decide(4, 4).kernel, k.get()) << "threads to come have it too"; });
  late.join();
}

TEST_F(DispatcherTest, TakenBackDecisionsAreCountedUnderTheirReason) {
  const auto r = route(toy_kernel(definition, 1));
  publish(4, 4, r);
  const int64_t var[kMaxVarAxes] = {4, 4};
  Dispatcher::Call call(*d);
  const Decision dec = call.decide(site, LayoutClass::plain(6), var);
  const Decision back = call.fall_back(site, dec, FallbackReason::kNotPacked);
  EXPECT_EQ(back.kernel, r->fallback().get());
  const Decision foreign = call.fall_back(site, FallbackReason::kRequiresGrad);
  EXPECT_EQ(foreign.kernel, &site.fallback());
  const CounterTotals t = d->totals();
  EXPECT_EQ(t.by_rung[static_cast<int>(Rung::kExact)], 0u);
  EXPECT_EQ(t.by_rung[static_cast<int>(Rung::kFallback)], 2u);
  EXPECT_EQ(t.by_reason[static_cast<int>(FallbackReason::kNotPacked)], 1u);
  EXPECT_EQ(t.by_reason[static_cast<int>(FallbackReason::kRequiresGrad)], 1u);
}

TEST_F(DispatcherTest, ForcingTakesEffectAndEnds) {
  const auto r = route(toy_kernel(definition, 1));
  publish(4, 4, r);
  const auto k = toy_kernel(definition, 7, box(1, 64, 1, 64));
  ASSERT_TRUE(d->publisher().force(number, k).ok());
  EXPECT_EQ(decide(4, 4).kernel, k.get());
  EXPECT_EQ(decide(4, 4).rung, Rung::kForced);
  EXPECT_EQ(decide(9, 9).kernel, k.get());
  EXPECT_EQ(decide(65, 9).reason, FallbackReason::kGuard) << "where it cannot run, the fallback";
  ASSERT_TRUE(d->publisher().force(number, d->fallback(number, 1)).ok());
  EXPECT_EQ(decide(4, 4).reason, FallbackReason::kForced);
  EXPECT_EQ(decide(4, 4).kernel, d->fallback(number, 1).get());
  ASSERT_TRUE(d->publisher().force(number, nullptr).ok());
  EXPECT_EQ(decide(4, 4).kernel, r->incumbent().get());
  EXPECT_EQ(d->publisher().force(number, toy_kernel(toy_definition(32))).code(), Code::kInvalid);
}

TEST_F(DispatcherTest, DisabledAndShutDownServeFallbacks) {
  const auto r = route(toy_kernel(definition, 1));
  publish(4, 4, r);
  ASSERT_TRUE(d->publisher().set_mode(SnapshotMode::kDisabled).ok());
  EXPECT_EQ(decide(4, 4).reason, FallbackReason::kDisabled);
  publish(5, 5, r);  // changes while disabled are not lost
  ASSERT_TRUE(d->publisher().set_mode(SnapshotMode::kServing).ok());
  EXPECT_EQ(decide(4, 4).rung, Rung::kExact);
  EXPECT_EQ(decide(5, 5).rung, Rung::kExact);
  d->shut_down();
  EXPECT_EQ(decide(4, 4).reason, FallbackReason::kShutdown);
}

// Two problems of one 128-bit hash cannot be made, so that the comparison behind the look-up is called by itself: an
// explicit instantiation may name what is private.
using DecideFound = Decision (*)(ThreadState*, const CallSite&, const Snapshot*, const ProblemKey&,
                                 const int64_t*, const TableSlot*);
DecideFound decide_found();
template <DecideFound kFunction>
struct Private {
  friend DecideFound decide_found() { return kFunction; }
};
template struct Private<&Dispatcher::Call::decide_found>;

TEST_F(DispatcherTest, WideProblemsAreComparedWhole) {
  const int64_t big = int64_t{5} << 32;
  const auto r = route(toy_kernel(definition, 3, box(1, int64_t{1} << 40, 1, int64_t{1} << 40)));
  publish(big, 4, r);
  EXPECT_EQ(decide(big, 4).kernel, r->incumbent().get());
  EXPECT_EQ(decide(big, 4).rung, Rung::kExact) << "again, through the call-site cache";
  EXPECT_EQ(decide(big, 5).reason, FallbackReason::kMiss);
  // A forged hash: the same key with other axes.
  const int64_t var[kMaxVarAxes] = {big, 4}, other[kMaxVarAxes] = {big + 1, 4};
  RequestScope scope(*d, {.id = 1});
  Dispatcher::Call call(*d);
  const ProblemKey key = call.pack(site, LayoutClass::plain(6), var);
  ASSERT_TRUE(key.wide());
  ThreadState* const thread = thread_fast_path.state;
  const TableSlot* const slot = thread->pinned->find(key);
  ASSERT_NE(slot, nullptr);
  EXPECT_EQ(decide_found()(thread, site, thread->pinned, key, other, slot).reason, FallbackReason::kMiss);
  EXPECT_EQ(decide_found()(thread, site, thread->pinned, key, var, slot).rung, Rung::kExact);
}

TEST_F(DispatcherTest, ReplacingARouteMovesItsEntriesAndRegions) {
  const auto from = route(toy_kernel(definition, 1), toy_kernel(definition, 2), RolloutState::kCanary, 0.1);
  for (int i = 1; i <= 300; ++i) ASSERT_TRUE(d->publisher().put(problem(i, 8), from).ok());
  ASSERT_TRUE(d->publisher().put_region({site.prefix(), box(1, 8, 100, 200), from}).ok());
  ASSERT_TRUE(d->publisher().commit().ok());
  const auto to = route(from->challenger());
  ASSERT_TRUE(d->publisher().replace_route(*from, to).ok());
  ASSERT_TRUE(d->publisher().commit().ok());
  for (int i = 1; i <= 300; ++i) EXPECT_EQ(decide(i, 8).route, to.get());
  EXPECT_EQ(decide(3, 150).route, to.get());
  ASSERT_TRUE(d->publisher().erase_route(*to).ok());
  ASSERT_TRUE(d->publisher().commit().ok());
  EXPECT_EQ(decide(3, 8).reason, FallbackReason::kMiss);
  EXPECT_EQ(decide(3, 150).reason, FallbackReason::kMiss);
  d->publisher().poll();
  EXPECT_EQ(from.use_count(), 1) << "nobody else holds it once readers are past";
}

TEST_F(DispatcherTest, ReplacingARouteIsAllOrNothing) {
  const auto from = route(toy_kernel(definition, 1));
  ASSERT_TRUE(d->publisher().put(problem(4, 8), from).ok());
  ASSERT_TRUE(d->publisher().put(problem(40, 8), from).ok());
  ASSERT_TRUE(d->publisher().commit().ok());
  EXPECT_EQ(d->publisher().replace_route(*from, route(toy_kernel(definition, 2, box(1, 8, 1, 8)))).code(),
            Code::kInvalid);
  ASSERT_TRUE(d->publisher().commit().ok());
  EXPECT_EQ(decide(4, 8).route, from.get());
  EXPECT_EQ(decide(40, 8).route, from.get());
}

TEST_F(DispatcherTest, RouteNumbersAreReusedWithCountsFromZero) {
  start({.routes_max = 3});  // numbers 1 and 2
  auto a = route(toy_kernel(definition, 1));
  auto b = route(toy_kernel(definition, 2));
  EXPECT_EQ(d->make_route(
                 {definition, d->fallback(number, 0), nullptr, nullptr, RolloutState::kFallbackOnly, 0, ""})
                .status()
                .code(),
            Code::kBusy);
  publish(4, 4, a);
  for (int i = 0; i < 5; ++i) (void)decide(4, 4);
  EXPECT_EQ(d->counts(*a).by_rung[0], 5u);
  const uint32_t index = a->index();
  ASSERT_TRUE(d->publisher().erase_route(*a).ok());
  ASSERT_TRUE(d->publisher().commit().ok());
  a.reset();
  d->publisher().poll();
  auto c = route(toy_kernel(definition, 3));
  EXPECT_EQ(c->index(), index);
  EXPECT_EQ(d->counts(*c).by_rung[0], 0u);
  EXPECT_EQ(d->totals().by_rung[0], 5u);
}

TEST_F(DispatcherTest, TwoDispatchersOnOneThreadKeepApart) {
  auto first = d;
  const auto first_site = site;
  const auto r1 = route(toy_kernel(definition, 1));
  publish(4, 4, r1);
  start({});
  const auto r2 = route(toy_kernel(definition, 2));
  publish(4, 4, r2);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(decide(4, 4).route, r2.get());
    std::swap(d, first);
    EXPECT_EQ(decide_at(first_site, 4, 4).route, r1.get());
    std::swap(d, first);
  }
}

TEST_F(DispatcherTest, NamesOfRungsAndReasonsAreDistinct) {
  for (int i = 0; i < kFallbackReasonCount; ++i)
    for (int j = 0; j < i; ++j)
      EXPECT_STRNE(fallback_reason_name(static_cast<FallbackReason>(i)),
                   fallback_reason_name(static_cast<FallbackReason>(j)));
  EXPECT_STREQ(fallback_reason_name(FallbackReason::kGraphFull), "graph_full")
      << "the last one: the list is in order";
  EXPECT_STREQ(rung_name(Rung::kForced), "forced");
}

}  // namespace
}  // namespace niche::dispatch
