// Random publishing, reading, thread exits, forks and stalls, seeded. Run under ThreadSanitizer and
// AddressSanitizer.
//
// Every kernel carries the problem and the generation that it was made for, so that a wrong route, a freed
// kernel or a table that runs backwards is seen in the call that it happens to: for each problem, what a
// reader sees must lie between the generation that was committed before its call began and the newest that a
// commit had been started for when it ended: the publication of one problem is a linearizable register.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <random>
#include <thread>

#include "tests/dispatch/data_plane_fixture.h"

namespace niche::dispatch {
namespace {

using testing::toy_kernel;

constexpr int kProblems = 256;

struct Register {
  std::atomic<int> started{0}, committed{0};
};

class DataPlaneStress : public testing::DataPlane {
 protected:
  // tag = generation * kProblems + problem
  std::shared_ptr<Route> route_of(int p, int generation) {
    auto k = toy_kernel(definition, generation * kProblems + p);
    return route(k);
  }

  void put(int p, int generation) {
    registers[static_cast<size_t>(p)].started.store(generation);
    const Status s = d->publisher().put(problem(1 + p, 7), route_of(p, generation));
    ASSERT_TRUE(s.ok()) << s.to_string();
  }

  void read(int p, std::atomic<long>* served) {
    Register& reg = registers[static_cast<size_t>(p)];
    const int low = reg.committed.load();
    const int64_t var[kMaxVarAxes] = {1 + p, 7};
    Dispatcher::Call call(*d);
    const Decision dec = call.decide(site, LayoutClass::plain(6), var);
    if (dec.rung == Rung::kFallback) {
      ASSERT_EQ(low, 0) << "a committed problem was lost";
      return;
    }
    CallFrame frame;
    dec.kernel->launch(*dec.kernel, frame, Executor{});
    const int tag = static_cast<int>(frame.workspace_bytes);
    ASSERT_EQ(tag % kProblems, p) << "wrong route";
    ASSERT_GE(tag / kProblems, low) << "older than what was committed before the call";
    ASSERT_LE(tag / kProblems, reg.started.load()) << "from the future";
    served->fetch_add(1, std::memory_order_relaxed);
  }

  // One writer, `readers` reader threads that come and go, for `rounds` commits.
  void churn(int readers, int rounds, bool with_forks, uint64_t seed) {
    std::atomic<bool> stop{false};
    std::atomic<long> served{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < readers; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 rng(seed + static_cast<uint64_t>(t) + 1);
        while (!stop.load(std::memory_order_relaxed)) {
          // A short-lived thread: attaches, reads, stalls inside a scope at times, exits.
          std::thread life([&, s = rng()] {
            std::mt19937_64 r(s);
            for (int i = 0; i < 300; ++i) {
              if (r() % 16 == 0) {
                // A scope pins one version: its reads may be older than commits made meanwhile, never
                // inconsistent.
                RequestScope scope(*d, {.id = r()});
                const uint64_t version = scope.table_version();
                for (int j = 0; j < 8; ++j) (void)decide(1 + static_cast<int64_t>(r() % kProblems), 7);
                ASSERT_EQ(scope.table_version(), version);
                if (r() % 64 == 0) std::this_thread::yield();
              } else {
                read(static_cast<int>(r() % kProblems), &served);
              }
            }
          });
          life.join();
        }
      });
    }
    std::mt19937_64 rng(seed);
    std::array<int, kProblems> generation{};
    for (int i = 0; i < rounds; ++i) {
      const int n = 1 + static_cast<int>(rng() % 8);
      std::vector<int> touched;
      for (int j = 0; j < n; ++j) {
        const int p = static_cast<int>(rng() % kProblems);
        put(p, ++generation[static_cast<size_t>(p)]);
        touched.push_back(p);
      }
      // A stalled reader may make it wait; then a later one brings all.
      while (!d->publisher().commit().ok()) std::this_thread::yield();
      for (const int p : touched)
        registers[static_cast<size_t>(p)].committed.store(generation[static_cast<size_t>(p)]);
      if (rng() % 32 == 0) {
        ASSERT_TRUE(d->publisher().set_mode(SnapshotMode::kServing).ok());
        ASSERT_TRUE(d->reserve_workspace(static_cast<int64_t>(rng() % 4096)).ok());
        d->drain([](const EventRecord&) {});
        (void)d->totals();
      }
      if (with_forks && rng() % 100 == 0) {
        const pid_t child = fork();
        if (child == 0) _exit(decide(1, 7).reason == FallbackReason::kForked ? 0 : 1);
        int status = 0;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        ASSERT_EQ(status, 0);
      }
    }
    while (served.load() == 0) std::this_thread::yield();
    stop = true;
    for (auto& t : threads) t.join();
    EXPECT_GT(served.load(), 0);
    d->publisher().poll();
    EXPECT_EQ(d->publisher().stats().retired_tables, 0u);
    for (int p = 0; p < kProblems; ++p) {
      ASSERT_NO_FATAL_FAILURE(read(p, &served));
    }
  }

  std::array<Register, kProblems> registers;
};

TEST_F(DataPlaneStress, ReadersComeAndGoUnderPublication) { churn(3, 1500, false, 1); }

TEST_F(DataPlaneStress, TheSameWithTheExchangeInsteadOfMembarrier) {
  start({.asymmetric_fence = false});
  churn(3, 1500, false, 2);
}

TEST_F(DataPlaneStress, AndWithATightBoundOfRetiredTables) {
  start({.publisher = {.retired_tables_max = 2}});
  churn(3, 800, false, 3);
}

#if !defined(__SANITIZE_THREAD__)  // ThreadSanitizer does not follow a fork of a process with threads
TEST_F(DataPlaneStress, AndWithForks) { churn(2, 800, true, 4); }
#endif

// Rollback while calls run: after roll_back() returned and the caller told a reader, that reader sees it.
TEST_F(DataPlaneStress, ARollbackIsSeenByEveryCallThatBeginsAfterIt) {
  const auto r = route(toy_kernel(definition, 1), toy_kernel(definition, 2), RolloutState::kCanary, 0.5);
  publish(1, 7, r);
  std::atomic<int> phase{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      while (phase.load() != 3) {
        const int before = phase.load();
        const Decision dec = decide(1, 7);
        if (before == 2) {
          ASSERT_EQ(dec.kernel, r->fallback().get());
        }
        if (before == 1) {
          ASSERT_NE(dec.rung, Rung::kCanary);
        }
      }
    });
  }
  for (int i = 0; i < 2000; ++i) (void)decide(1, 7);
  r->roll_back();
  phase = 1;
  for (int i = 0; i < 2000; ++i) (void)decide(1, 7);
  r->quarantine();
  phase = 2;
  for (int i = 0; i < 2000; ++i) (void)decide(1, 7);
  phase = 3;
  for (auto& t : threads) t.join();
}

}  // namespace
}  // namespace niche::dispatch
