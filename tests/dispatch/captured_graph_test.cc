#include "dispatch/captured_graph.h"

#include <malloc.h>

#include <thread>

#include "tests/dispatch/data_plane_fixture.h"

namespace niche::dispatch {
namespace {

using testing::box;
using testing::toy_kernel;

class CapturedGraphTest : public testing::DataPlane {
 protected:
  std::shared_ptr<CapturedGraph> graph(GraphOptions o = {}) {
    auto g = d->graphs().make(std::move(o));
    EXPECT_TRUE(g.ok()) << g.status().to_string();
    return *g;
  }
  Decision capture(CapturedGraph* g, int64_t b, int64_t l = 7) {
    RequestScope scope(*d, {.capture = CaptureState::kCaptured, .graph = g});
    return decide(b, l);
  }
  // An entry for captured calls: their demand is in the key.
  void publish_captured(int64_t b, std::shared_ptr<Route> r) {
    WideProblem p = problem(b, 7);
    p.prefix.constraints = ConstraintSet().capturable();
    ASSERT_TRUE(d->publisher().put(p, std::move(r)).ok());
    ASSERT_TRUE(d->publisher().commit().ok());
  }
};

TEST_F(CapturedGraphTest, WhatAGraphReplaysLivesAsLongAsTheGraph) {
  auto module = std::make_shared<int>(1);
  std::weak_ptr<int> code = module;
  auto g = graph();
  {
    auto k = toy_kernel(definition, 3);
    k->module = std::move(module);
    publish_captured(1, route(k));
  }
  EXPECT_EQ(capture(g.get(), 1).rung, Rung::kExact);
  ASSERT_EQ(g->uses().size(), 1u);
  (void)capture(g.get(), 1);
  EXPECT_EQ(g->uses().size(), 1u) << "the same call again";
  publish_captured(1, route(toy_kernel(definition, 4)));
  for (int i = 0; i < 3; ++i) d->publisher().poll();
  EXPECT_FALSE(code.expired());
  EXPECT_EQ(g->uses()[0].kernel->phase_count, 3);
  d.reset();
  EXPECT_FALSE(code.expired()) << "whoever goes first";
  g.reset();
  EXPECT_TRUE(code.expired());
}

TEST_F(CapturedGraphTest, WithoutAHandleTheDispatcherHolds) {
  auto module = std::make_shared<int>(1);
  std::weak_ptr<int> code = module;
  {
    auto k = toy_kernel(definition, 3);
    k->module = std::move(module);
    publish_captured(1, route(k));
  }
  EXPECT_EQ(capture(nullptr, 1).rung, Rung::kExact);
  publish_captured(1, route(toy_kernel(definition, 4)));
  d->publisher().poll();
  EXPECT_FALSE(code.expired());
  d.reset();
  EXPECT_TRUE(code.expired());
}

// A graph replays one choice for ever: no arm is drawn.
TEST_F(CapturedGraphTest, ARolloutIsPinnedToItsIncumbent) {
  const auto r = route(toy_kernel(definition, 1), toy_kernel(definition, 2), RolloutState::kCanary, 0.5);
  publish_captured(1, r);
  auto g = graph();
  for (int i = 0; i < 200; ++i) {
    const Decision dec = capture(g.get(), 1);
    ASSERT_EQ(dec.kernel, r->incumbent().get());
    ASSERT_EQ(dec.rung, Rung::kExact);
  }
  const auto young = route(nullptr, toy_kernel(definition, 2), RolloutState::kCanary, 0.5);
  publish_captured(2, young);
  EXPECT_EQ(capture(g.get(), 2).kernel, young->fallback().get());
  EXPECT_EQ(g->uses().size(), 2u);
}

TEST_F(CapturedGraphTest, OwnersLearnWhatWasReplacedRemovedOrQuarantined) {
  const auto r1 = route(toy_kernel(definition, 1)), r2 = route(toy_kernel(definition, 2)),
             r3 = route(toy_kernel(definition, 3));
  publish_captured(1, r1);
  publish_captured(2, r2);
  publish_captured(3, r3);
  std::vector<StaleGraph> told;
  auto g = graph(
      {.label = "decode B=8", .owner = "model", .on_stale = [&](const StaleGraph& s) { told.push_back(s); }});
  for (int64_t b = 1; b <= 4; ++b) (void)capture(g.get(), b);
  d->graphs().poll(d->publisher());
  EXPECT_TRUE(told.empty());
  EXPECT_TRUE(d->graphs().stale(d->publisher()).empty());
  EXPECT_TRUE(g->may_replay());

  publish_captured(1, route(toy_kernel(definition, 9)));
  d->graphs().poll(d->publisher());
  ASSERT_EQ(told.size(), 1u);
  ASSERT_EQ(told[0].uses.size(), 1u);
  EXPECT_EQ(told[0].graph->label(), "decode B=8");
  EXPECT_EQ(told[0].uses[0].reason, StaleReason::kReplaced);
  EXPECT_EQ(told[0].uses[0].kernel, "toy.f32.tag1");
  EXPECT_EQ(told[0].uses[0].serves_now, "toy.f32.tag9");
  d->graphs().poll(d->publisher());
  EXPECT_EQ(told.size(), 1u) << "told once";

  WideProblem two = problem(2, 7);
  two.prefix.constraints = ConstraintSet().capturable();
  ASSERT_TRUE(d->publisher().erase(two).ok());
  ASSERT_TRUE(d->publisher().commit().ok());
  d->graphs().poll(d->publisher());
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[1].uses.size(), 2u);
  EXPECT_TRUE(g->may_replay()) << "old, not wrong";

  r3->quarantine();
  EXPECT_FALSE(g->may_replay()) << "before anybody polled";
  auto stale = d->graphs().stale(d->publisher(), "model");
  ASSERT_EQ(stale.size(), 1u);
  ASSERT_EQ(stale[0].uses.size(), 3u);
  EXPECT_EQ(stale[0].uses[1].reason, StaleReason::kRemoved);
  EXPECT_EQ(stale[0].uses[2].reason, StaleReason::kQuarantined);
  EXPECT_TRUE(d->graphs().stale(d->publisher(), "somebody else").empty());
  // A problem that had no kernel when it was captured, and has one now.
  publish_captured(4, route(toy_kernel(definition, 4)));
  stale = d->graphs().stale(d->publisher());
  EXPECT_EQ(stale[0].uses.size(), 4u);
  g.reset();
  stale.clear();
  told.clear();
  EXPECT_TRUE(d->graphs().stale(d->publisher()).empty());
  EXPECT_EQ(d->graphs().live(), 0u);
}

TEST_F(CapturedGraphTest, WorkspaceBelongsToTheGraphAndNeverMoves) {
  ASSERT_TRUE(d->reserve_workspace(1 << 20).ok());
  const auto wants = [&](int tag, uint32_t units) {
    auto k = toy_kernel(definition, tag);
    k->workspace_units = units;
    k->plan.workspace_bytes = int64_t{64} * units;
    return k;
  };
  publish_captured(1, route(wants(1, 2)));
  publish_captured(2, route(wants(2, 100)));
  auto bare = graph();
  EXPECT_EQ(capture(bare.get(), 1).reason, FallbackReason::kNoWorkspace) << "the thread's is not the graph's";
  std::vector<std::shared_ptr<char[]>> blocks;
  auto g = graph({.allocate = [&](int64_t bytes) -> std::shared_ptr<void> {
    if (blocks.size() == 2) return nullptr;
    blocks.push_back(std::shared_ptr<char[]>(new char[static_cast<size_t>(bytes)]));
    return blocks.back();
  }});
  {
    RequestScope scope(*d, {.capture = CaptureState::kCaptured, .graph = g.get()});
    const int64_t var[kMaxVarAxes] = {1, 7};
    Dispatcher::Call call(*d);
    const Decision dec = call.decide(site, LayoutClass::plain(6), var);
    EXPECT_EQ(dec.rung, Rung::kExact);
    CallFrame frame;
    call.lend_workspace(frame);
    EXPECT_EQ(frame.workspace, blocks[0].get());
    EXPECT_EQ(frame.workspace_bytes, 128);
  }
  EXPECT_EQ(capture(g.get(), 2).rung, Rung::kExact);
  EXPECT_EQ(g->workspace_bytes(), 128 + 6400);
  EXPECT_EQ(blocks[0].use_count(), 2) << "the first block may be in the graph already";
  publish_captured(3, route(wants(3, 1000)));
  EXPECT_EQ(capture(g.get(), 3).reason, FallbackReason::kNoWorkspace) << "out of memory";
  g.reset();
  EXPECT_EQ(blocks[0].use_count(), 1);
}

TEST_F(CapturedGraphTest, UsesAndGraphsAreBounded) {
  start({.graphs_max = 2});
  for (int64_t b = 1; b <= 3; ++b) publish_captured(b, route(toy_kernel(definition, static_cast<int>(b))));
  auto g = graph({.uses_max = 2});
  EXPECT_EQ(capture(g.get(), 1).rung, Rung::kExact);
  EXPECT_EQ(capture(g.get(), 2).rung, Rung::kExact);
  const Decision past = capture(g.get(), 3);
  EXPECT_EQ(past.rung, Rung::kFallback);
  EXPECT_EQ(past.reason, FallbackReason::kGraphFull) << "not for want of workspace";
  EXPECT_EQ(g->uses().size(), 2u);
  auto h = graph();
  EXPECT_EQ(d->graphs().make({}).status().code(), Code::kBusy);
  h.reset();
  EXPECT_TRUE(d->graphs().make({}).ok());
}

TEST_F(CapturedGraphTest, ScopesUnderCaptureNestAndKeepTheirTable) {
  publish_captured(1, route(toy_kernel(definition, 1)));
  publish(1, 7, route(toy_kernel(definition, 5)));
  auto g = graph();
  RequestScope outer(*d, {.id = 1});
  const uint64_t version = outer.table_version();
  publish_captured(1, route(toy_kernel(definition, 2)));
  {
    RequestScope captured(*d, {.id = 1, .capture = CaptureState::kCaptured, .graph = g.get()});
    EXPECT_EQ(captured.table_version(), version);
    EXPECT_EQ(decide(1, 7).kernel->phase_count, 1);
    {
      RequestScope plain(*d, {.id = 1});
      EXPECT_EQ(plain.table_version(), version);
      EXPECT_EQ(decide(1, 7).kernel->phase_count, 5);
    }
    EXPECT_EQ(decide(1, 7).kernel->phase_count, 1);
  }
  EXPECT_EQ(decide(1, 7).kernel->phase_count, 5);
  EXPECT_EQ(g->uses().size(), 1u);
  EXPECT_EQ(d->requests_in_flight(), 1u);
}

// Regions serve captured calls too, and are held like exact entries.
TEST_F(CapturedGraphTest, ARegionsKernelIsHeldAndMissed) {
  const auto r = route(toy_kernel(definition, 6, box(1, 8, 1, 8)));
  ASSERT_TRUE(d->publisher().put_region({site.prefix(), box(1, 8, 1, 8), r}).ok());
  ASSERT_TRUE(d->publisher().commit().ok());
  auto g = graph();
  EXPECT_EQ(capture(g.get(), 2).rung, Rung::kRegion);
  EXPECT_TRUE(d->graphs().stale(d->publisher()).empty());
  ASSERT_TRUE(d->publisher().erase_route(*r).ok());
  ASSERT_TRUE(d->publisher().commit().ok());
  const auto stale = d->graphs().stale(d->publisher());
  ASSERT_EQ(stale.size(), 1u);
  EXPECT_EQ(stale[0].uses[0].reason, StaleReason::kRemoved);
}

TEST_F(CapturedGraphTest, AHandleThatStartsAgainHoldsAndWatchesNothingOfBefore) {
  auto module = std::make_shared<int>(1);
  std::weak_ptr<int> code = module;
  int told = 0;
  auto g = graph({.on_stale = [&](const StaleGraph&) { ++told; },
                  .allocate = [](int64_t n) -> std::shared_ptr<void> {
                    return std::shared_ptr<char[]>(new char[static_cast<size_t>(n)]);
                  }});
  std::shared_ptr<Route> bad;
  {
    auto k = toy_kernel(definition, 3);
    k->module = std::move(module);
    k->workspace_units = 4;
    bad = route(k);
  }
  ASSERT_TRUE(d->reserve_workspace(1 << 10).ok());
  publish_captured(1, bad);
  EXPECT_EQ(capture(g.get(), 1).rung, Rung::kExact);
  bad->quarantine();
  EXPECT_FALSE(g->may_replay());
  d->graphs().poll(d->publisher());
  EXPECT_EQ(told, 1);
  publish_captured(1, route(toy_kernel(definition, 4)));
  bad.reset();
  EXPECT_EQ(capture(g.get(), 1).kernel->phase_count, 4);
  EXPECT_FALSE(g->may_replay()) << "the graph of before may still be there";
  g->restart();
  for (int i = 0; i < 3; ++i) d->publisher().poll();
  EXPECT_TRUE(code.expired());
  EXPECT_TRUE(g->may_replay());
  EXPECT_EQ(g->uses().size(), 0u);
  EXPECT_EQ(g->workspace_bytes(), 0);
  EXPECT_EQ(capture(g.get(), 1).kernel->phase_count, 4);
  EXPECT_TRUE(g->may_replay());
  EXPECT_EQ(g->uses().size(), 1u);
}

TEST_F(CapturedGraphTest, AKernelThatTwoRoutesServeIsWatchedThroughBoth) {
  const auto k = toy_kernel(definition, 1);
  const auto first = route(k), second = route(k);
  publish_captured(1, first);
  auto g = graph();
  EXPECT_EQ(capture(g.get(), 1).route, first.get());
  publish_captured(1, second);
  EXPECT_EQ(capture(g.get(), 1).route, second.get());
  EXPECT_TRUE(g->may_replay());
  second->quarantine();
  EXPECT_FALSE(g->may_replay());
  const auto stale = d->graphs().stale(d->publisher());
  ASSERT_EQ(stale.size(), 1u);
  EXPECT_EQ(stale[0].uses.back().reason, StaleReason::kQuarantined);
}

// Each of many is watched, and the last costs as much as the first.
TEST_F(CapturedGraphTest, ManyRoutesAreEachWatchedAtAConstantCost) {
  constexpr int kRoutes = 4096;
  auto g = graph();
  std::vector<std::shared_ptr<Route>> routes;
  for (int i = 1; i <= kRoutes; ++i) {
    routes.push_back(route(toy_kernel(definition, i)));
    WideProblem p = problem(i, 7);
    p.prefix.constraints = ConstraintSet().capturable();
    ASSERT_TRUE(d->publisher().put(p, routes.back()).ok());
  }
  ASSERT_TRUE(d->publisher().commit().ok());
  const auto before = mallinfo2();
  for (int i = 1; i <= kRoutes; ++i) ASSERT_EQ(capture(g.get(), i).rung, Rung::kExact);
  const auto after = mallinfo2();
  EXPECT_LT(after.uordblks + after.hblkhd, before.uordblks + before.hblkhd + kRoutes * 1024);
  for (size_t i = 0; i < routes.size(); i += i < 200 ? 1 : 97) {
    ASSERT_TRUE(g->may_replay());
    routes[i]->quarantine();
    ASSERT_FALSE(g->may_replay()) << i;
    ASSERT_TRUE(routes[i]->set_state(RolloutState::kIncumbent).ok());
  }
}

// Capturing, replaying, quarantining and publishing at once.
TEST_F(CapturedGraphTest, OwnersReplayWhileOthersCaptureAndPublish) {
  std::vector<std::shared_ptr<Route>> routes;
  for (int64_t b = 1; b <= 32; ++b) {
    routes.push_back(route(toy_kernel(definition, static_cast<int>(b))));
    publish_captured(b, routes.back());
  }
  auto g = graph();
  std::atomic<int> phase{0};
  std::thread capturing([&] {
    for (int64_t b = 1; b <= 32; ++b) (void)capture(g.get(), b);
    phase = 1;
  });
  std::thread replaying([&] {
    while (phase.load() < 2) (void)g->may_replay();
    EXPECT_FALSE(g->may_replay());
  });
  while (phase.load() == 0) {
    d->graphs().poll(d->publisher());
    (void)d->graphs().stale(d->publisher());
  }
  routes[5]->quarantine();
  phase = 2;
  capturing.join();
  replaying.join();
}

}  // namespace
}  // namespace niche::dispatch
