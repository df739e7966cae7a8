// Several processes, one operator, kernels that differ in the collectives they issue: one has a single
// barrier, the other two. Without agreement the group deadlocks at the first swap; with it, it runs 10,000.
//
// Barriers in shared memory stand in for collectives. A deadlock is proven, not timed: every rank is blocked
// in a barrier that is not complete, twice in a row with nothing having moved in between.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <new>
#include <random>
#include <thread>

#include "dispatch/group_table.h"
#include "tests/dispatch/data_plane_fixture.h"

namespace niche::dispatch {
namespace {

constexpr int kRanks = 3;
constexpr int kDeadlock = 42;  // exit status

struct World {
  struct alignas(64) Barrier {
    std::atomic<uint32_t> arrived{0}, generation{0};
  };
  Barrier barriers[3];
  // What each rank is blocked in: generation + 1 in the high half, barrier in the low one; 0: in none.
  struct alignas(64) Rank {
    std::atomic<uint64_t> blocked{0};
    std::atomic<uint64_t> version[1024] = {};  // by step
  };
  Rank ranks[kRanks];
  std::atomic<bool> deadlock{false};
};
World* world = nullptr;
int my_rank = 0;

bool is_blocked(uint64_t word) {
  return word != 0 && world->barriers[word & 0xffffffff].generation.load() + 1 == word >> 32;
}
bool all_blocked() {
  uint64_t words[kRanks];
  for (int r = 0; r < kRanks; ++r) {
    words[r] = world->ranks[r].blocked.load();
    if (!is_blocked(words[r])) return false;
  }
  // Nobody had moved on when the last one was looked at: all were blocked at once.
  for (int r = 0; r < kRanks; ++r)
    if (world->ranks[r].blocked.load() != words[r] || !is_blocked(words[r])) return false;
  return true;
}

void collective(int barrier) {
  World::Barrier& b = world->barriers[barrier];
  const uint32_t generation = b.generation.load();
  if (b.arrived.fetch_add(1) + 1 == kRanks) {
    b.arrived.store(0);
    b.generation.store(generation + 1);
    return;
  }
  world->ranks[my_rank].blocked.store((uint64_t{generation} + 1) << 32 | static_cast<uint64_t>(barrier));
  while (b.generation.load() == generation) {
    if (world->deadlock.load() || all_blocked()) {
      world->deadlock = true;
      _exit(kDeadlock);
    }
    std::this_thread::yield();
  }
  world->ranks[my_rank].blocked.store(0);
}

class RankGroupStress : public testing::DataPlane {
 protected:
  void SetUp() override {
    void* p = mmap(nullptr, sizeof(World), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(p, MAP_FAILED);
    world = new (p) World;
    path = std::filesystem::path(::testing::TempDir()) / ("niche_group_" + std::to_string(getpid()));
    std::filesystem::remove(path);
  }
  void TearDown() override {
    munmap(world, sizeof(World));
    std::filesystem::remove(path);
  }

  // One process a rank; returns their exit statuses.
  std::vector<int> run(const std::function<int(int rank)>& body) {
    std::vector<pid_t> children;
    for (int r = 0; r < kRanks; ++r) {
      const pid_t child = fork();
      if (child == 0) {
        my_rank = r;
        start({});
        _exit(body(r));
      }
      children.push_back(child);
    }
    std::vector<int> statuses;
    for (const pid_t child : children) {
      int status = 0;
      EXPECT_EQ(waitpid(child, &status, 0), child);
      statuses.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    }
    return statuses;
  }

  std::shared_ptr<Route> route_of(const std::string& kernel) {
    auto k = testing::toy_kernel(definition);
    k->name = kernel;
    if (kernel == "all_reduce") {
      k->launch = [](const Kernel&, CallFrame&, const Executor&) { collective(0); };
    } else {
      k->launch = [](const Kernel&, CallFrame&, const Executor&) { collective(1), collective(2); };
    }
    return route(k);
  }
  void call() {
    const int64_t var[kMaxVarAxes] = {1, 7};
    Dispatcher::Call c(*d);
    const Decision dec = c.decide(site, LayoutClass::plain(6), var);
    CallFrame frame;
    dec.kernel->launch(*dec.kernel, frame, Executor{});
  }
  GroupChange serve(const std::string& kernel) const {
    GroupChange c;
    c.definition = definition->name();
    c.layout = LayoutClass::plain(6);
    c.axes = {1, 7};
    c.kernel = kernel;
    return c;
  }
  std::filesystem::path path;
};

TEST_F(RankGroupStress, WithoutAgreementTheGroupDeadlocks) {
  const auto statuses = run([&](int rank) {
    publish(1, 7, route_of("all_reduce"));
    for (int n = 0; n < 100; ++n) {
      // Each server swaps when its own controller says so: a step apart.
      if (n == 50 + rank) publish(1, 7, route_of("reduce_scatter"));
      call();
    }
    return 0;
  });
  EXPECT_EQ(statuses, std::vector<int>(kRanks, kDeadlock));
}

TEST_F(RankGroupStress, WithAgreementItRunsTenThousandSwaps) {
  constexpr uint64_t kSwaps = 10'000;
  const auto statuses = run([&](int rank) {
    const SystemClock clock;
    auto board = SharedMemoryBoard::open(path, kRanks);
    if (!board.ok()) return 1;
    GroupTable table(d, [&](const GroupChange& c) -> Result<Publisher::Placement> {
      WideProblem p{site.prefix(), c.layout, {}};
      std::copy(c.axes.begin(), c.axes.end(), p.axes);
      return Publisher::Placement{p, route_of(c.kernel.empty() ? "all_reduce" : c.kernel)};
    });
    auto made = RankGroup::make(std::move(*board), &table, {.rank = rank, .clock = &clock});
    if (!made.ok()) return 2;
    RankGroup& group = **made;
    publish(1, 7, route_of("all_reduce"));

    std::atomic<bool> stop{false};
    std::thread control([&] {
      std::mt19937_64 rng(static_cast<uint64_t>(rank) + 1);
      while (!stop.load()) {
        group.poll();
        d->publisher().poll();
        // Any rank may propose, at any time; a third of the swaps are rollbacks.
        const auto payload =
            rng() % 3 == 0
                ? table.rollback()
                : table.proposal(std::vector{serve(rng() % 2 == 0 ? "all_reduce" : "reduce_scatter")});
        if (payload.ok()) (void)group.propose(*payload);
        std::this_thread::yield();
      }
    });
    int status = 0;
    for (uint64_t n = 1; status == 0; ++n) {
      const uint64_t v = group.step(n);
      world->ranks[rank].version[n % 1024].store(v);
      call();
      // Past a collective, everybody has entered this step.
      for (int r = 0; r < kRanks; ++r)
        if (world->ranks[r].version[n % 1024].load() != v) status = 3;
      if (group.stats().switches == kSwaps) break;  // at the same step for all
    }
    stop = true;
    control.join();
    return status != 0 ? status : group.stats().waits != 0 ? 4 : 0;
  });
  EXPECT_EQ(statuses, std::vector<int>(kRanks, 0));
}

}  // namespace
}  // namespace niche::dispatch
