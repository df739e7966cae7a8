#include "dispatch/request_scope.h"

#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <thread>

#include "tests/dispatch/data_plane_fixture.h"

namespace niche::dispatch {
namespace {

using testing::toy_kernel;

class RequestScopeTest : public testing::DataPlane {};

TEST_F(RequestScopeTest, AssignmentSticksToTheIdOnEveryThread) {
  const auto r = route(toy_kernel(definition, 1), toy_kernel(definition, 2), RolloutState::kCanary, 0.3);
  publish(4, 4, r);
  int canaries = 0;
  for (uint64_t id = 1; id <= 2000; ++id) {
    RequestScope scope(*d, {.id = id});
    const Rung first = decide(4, 4).rung;
    for (int i = 0; i < 4; ++i) ASSERT_EQ(decide(4, 4).rung, first);
    if (id % 100 == 0) {
      std::thread other([&] {
        RequestScope again(*d, {.id = id});
        EXPECT_EQ(decide(4, 4).rung, first);
      });
      other.join();
    }
    canaries += first == Rung::kCanary ? 1 : 0;
  }
  EXPECT_NEAR(canaries, 600, 5 * 20.5);  // five standard deviations
}

TEST_F(RequestScopeTest, TwoRoutesSplitTheSameRequestsDifferently) {
  const auto r1 = route(toy_kernel(definition, 1), toy_kernel(definition, 2), RolloutState::kCanary, 0.5);
  const auto r2 = route(toy_kernel(definition, 1), toy_kernel(definition, 2), RolloutState::kCanary, 0.5);
  publish(4, 4, r1);
  publish(5, 5, r2);
  int both = 0;
  for (uint64_t id = 1; id <= 4000; ++id) {
    RequestScope scope(*d, {.id = id});
    both += decide(4, 4).rung == Rung::kCanary && decide(5, 5).rung == Rung::kCanary ? 1 : 0;
  }
  EXPECT_NEAR(both, 1000, 5 * 27.4);
}

TEST_F(RequestScopeTest, ARequestSeesOneTableAndRollbacksAtOnce) {
  const auto before = route(toy_kernel(definition, 1));
  publish(4, 4, before);
  {
    RequestScope scope(*d, {.id = 1});
    const uint64_t version = scope.table_version();
    publish(4, 4, route(toy_kernel(definition, 2)));
    publish(5, 5, route(toy_kernel(definition, 2)));
    EXPECT_EQ(decide(4, 4).route, before.get());
    EXPECT_EQ(decide(5, 5).reason, FallbackReason::kMiss);
    EXPECT_EQ(scope.table_version(), version);
    before->quarantine();
    EXPECT_EQ(decide(4, 4).reason, FallbackReason::kRolledBack);
  }
  EXPECT_EQ(decide(5, 5).rung, Rung::kExact);
  EXPECT_NE(decide(4, 4).route, before.get());
}

TEST_F(RequestScopeTest, UnderCaptureOrUnknownOnlyCapturableKernelsServe) {
  auto k = toy_kernel(definition, 1);
  k->properties.capturable = false;
  ASSERT_TRUE(d->publisher().put_region({site.prefix(), k->guard, route(k)}).ok());
  ASSERT_TRUE(d->publisher().commit().ok());
  EXPECT_EQ(decide(4, 4).rung, Rung::kRegion);
  for (const CaptureState c : {CaptureState::kCaptured, CaptureState::kUnknown}) {
    RequestScope scope(*d, {.id = 1, .capture = c});
    EXPECT_EQ(decide(4, 4).reason, FallbackReason::kConstraint);
  }
  // An exact entry for captured calls is one with the demand in its key.
  WideProblem captured = problem(4, 4);
  captured.prefix.constraints = ConstraintSet().capturable();
  const auto capturable = route(toy_kernel(definition, 2));
  ASSERT_TRUE(d->publisher().put(captured, capturable).ok());
  ASSERT_TRUE(d->publisher().commit().ok());
  RequestScope scope(*d, {.id = 1, .capture = CaptureState::kUnknown});
  EXPECT_EQ(decide(4, 4).route, capturable.get());
}

TEST_F(RequestScopeTest, NothingIsTimedOrShadowedUnderCapture) {
  SamplingRates rates;
  rates.time_every = 1;
  rates.shadow_every = 1;
  d->set_sampling(rates);
  WideProblem captured = problem(4, 4);
  captured.prefix.constraints = ConstraintSet().capturable();
  ASSERT_TRUE(d->publisher().put(captured, route(toy_kernel(definition, 2))).ok());
  publish(4, 4, route(toy_kernel(definition, 1)));
  (void)decide(4, 4);
  EXPECT_TRUE(decide(4, 4).time);
  EXPECT_NE(decide(4, 4).shadow, nullptr);
  RequestScope scope(*d, {.id = 1, .capture = CaptureState::kCaptured});
  for (int i = 0; i < 10; ++i) {
    const Decision dec = decide(4, 4);
    EXPECT_FALSE(dec.time);
    EXPECT_EQ(dec.shadow, nullptr);
  }
}

TEST_F(RequestScopeTest, ScopesNestAndAreCountedOnce) {
  EXPECT_EQ(d->requests_in_flight(), 0u);
  {
    RequestScope outer(*d, {.id = 1});
    EXPECT_EQ(d->requests_in_flight(), 1u);
    {
      RequestScope inner(*d, {.id = 2, .capture = CaptureState::kCaptured});
      EXPECT_EQ(d->requests_in_flight(), 1u);
      EXPECT_EQ(inner.table_version(), outer.table_version());
    }
    const int64_t var[kMaxVarAxes] = {1, 1};
    Dispatcher::Call call(*d);
    EXPECT_EQ(call.pack(site, LayoutClass(), var).constraints(), ConstraintSet())
        << "the outer scope is back";
  }
  EXPECT_EQ(d->requests_in_flight(), 0u);
  EXPECT_EQ(d->totals().requests_opened, 1u);
}

TEST_F(RequestScopeTest, OneRequestInKIsTimed) {
  SamplingRates rates;
  rates.request_every = 4;
  d->set_sampling(rates);
  for (uint64_t id = 1; id <= 400; ++id) RequestScope scope(*d, {.id = id});
  int timed = 0;
  d->drain([&](const EventRecord& e) { timed += e.kind == EventRecord::Kind::kRequest ? 1 : 0; });
  EXPECT_NEAR(timed, 100, 35);
}

class ThreadStateTest : public testing::DataPlane {};

TEST_F(ThreadStateTest, CountsOutliveTheirThreadAndStatesAreReused) {
  const auto r = route(toy_kernel(definition, 1));
  publish(4, 4, r);
  for (int i = 0; i < 50; ++i) {
    std::thread t([&] { (void)decide(4, 4); });
    t.join();
  }
  EXPECT_EQ(d->counts(*r).by_rung[0], 50u);
  EXPECT_LE(d->totals().threads_attached, 1u);
}

TEST_F(ThreadStateTest, PastTheThreadLimitCallsFallBack) {
  start({.threads_max = 1});
  publish(4, 4, route(toy_kernel(definition, 1)));
  (void)decide(4, 4);
  std::thread t([&] {
    EXPECT_EQ(decide(4, 4).reason, FallbackReason::kThreadLimit);
    RequestScope scope(*d, {.id = 1});
    EXPECT_EQ(scope.table_version(), 0u);
    EXPECT_EQ(decide(4, 4).kernel, &site.fallback());
  });
  t.join();
  EXPECT_EQ(d->totals().by_reason[static_cast<int>(FallbackReason::kThreadLimit)], 2u);
}

TEST_F(ThreadStateTest, ADispatcherMayGoBeforeItsThreads) {
  publish(4, 4, route(toy_kernel(definition, 1)));
  std::atomic<int> step{0};
  std::thread t([&] {
    (void)decide(4, 4);
    step = 1;
    step.notify_one();
    step.wait(1);
    (void)decide(4, 4);  // of the new dispatcher: forgets the old one's state
  });
  step.wait(0);
  d.reset();
  start({});
  step = 2;
  step.notify_one();
  t.join();
}

// A thread_local whose destructor calls after ours ran.
struct CallsInDestructor {
  std::function<void()> call;
  ~CallsInDestructor() {
    if (call) call();
  }
};

TEST_F(ThreadStateTest, CallsFromAThreadsLastDestructorsFallBack) {
  publish(4, 4, route(toy_kernel(definition, 1)));
  Decision seen;
  std::thread t([&] {
    static thread_local CallsInDestructor last;  // constructed first, destroyed last
    last.call = [&] { seen = decide(4, 4); };
    EXPECT_EQ(decide(4, 4).rung, Rung::kExact);
  });
  t.join();
  EXPECT_EQ(seen.reason, FallbackReason::kThreadExiting);
  EXPECT_EQ(seen.kernel, &site.fallback());
}

// The child of a fork, with a scope open in the forking thread, is answered by fallbacks, and ends cleanly.
TEST_F(ThreadStateTest, AForkedChildServesFallbacksAlone) {
  publish(4, 4, route(toy_kernel(definition, 1)));
  EXPECT_EQ(decide(4, 4).rung, Rung::kExact);
  RequestScope scope(*d, {.id = 1});
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bool ok = decide(4, 4).reason == FallbackReason::kForked;
    std::thread t([&] { ok &= decide(4, 4).reason == FallbackReason::kForked; });
    t.join();
    // A dispatcher made in the child works.
    auto old = d;
    start({});
    publish(4, 4, route(toy_kernel(definition, 1)));
    ok &= decide(4, 4).rung == Rung::kExact;
    _exit(ok ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(decide(4, 4).rung, Rung::kExact);
}

}  // namespace
}  // namespace niche::dispatch
