// A group of Runtimes: kernels are proposed, taken at one step by all ranks, and given back the same way.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/runtime/planted_cache.h"

namespace niche::testing_ops {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kN = 64;

// One rank: a Runtime with its handle and its place in the group.
struct Rank {
  Rank(const std::string& board, const std::string& cache, int rank, int ranks) {
    RuntimeConfig c;
    c.ops = {op};
    c.evolve = false;
    c.cache_dir = cache;
    c.tick_seconds = 0.002;
    c.shadow_one_in = 4;
    c.time_one_in = 2;
    c.group_board = board;
    c.group_rank = rank;
    c.group_ranks = ranks;
    auto made = Runtime::create(std::move(c));
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    runtime = *std::move(made);
    auto h = runtime->op("affine", kF32, {{"N", kN}});
    EXPECT_TRUE(h.ok()) << h.status().to_string();
    handle = *h;
  }
  void join() {
    auto g = runtime->join_group();
    ASSERT_TRUE(g.ok()) << g.status().to_string();
    group = *g;
  }
  // The calls of one step. Returns how many the library answered.
  int serve(float first = 0.5F) {
    const int before = AffineOp::runs_of_thread;
    AffineCall c(64, kN);
    c.x[0] = first;
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(handle.call(c.args()).ok());
    return AffineOp::runs_of_thread - before;
  }
  std::string events() const {
    std::string text;
    const auto j = nlohmann::json::parse(runtime->status());
    for (const auto& e : j["events"])
      text += e["kind"].get<std::string>() + ": " + e["text"].get<std::string>() + "\n";
    return text;
  }

  std::shared_ptr<AffineOp> op = std::make_shared<AffineOp>();
  std::unique_ptr<Runtime> runtime;
  OpHandle handle;
  std::shared_ptr<Group> group;
};

class GroupRuntime : public ::testing::Test {
 protected:
  std::string board() const { return dir.path() + "/board"; }
  // Two ranks in one process, each with a cache of its own or both with one.
  void start(const std::string& cache0, const std::string& cache1) {
    ranks.push_back(std::make_unique<Rank>(board(), cache0, 0, 2));
    ranks.push_back(std::make_unique<Rank>(board(), cache1, 1, 2));
  }
  void join() {
    for (auto& r : ranks) r->join();
  }
  // One step of both ranks, which are served alike: by the kernel or by the library.
  uint64_t step(float first0 = 0.5F, float first1 = 0.5F) {
    ++n;
    const uint64_t v0 = ranks[0]->group->step(n), v1 = ranks[1]->group->step(n);
    EXPECT_EQ(v0, v1) << "step " << n;
    const int l0 = ranks[0]->serve(first0), l1 = ranks[1]->serve(first1);
    EXPECT_EQ(l0, l1) << "step " << n << " of version " << v0;
    EXPECT_TRUE(l0 == 0 || l0 == 8) << "the choice changed within step " << n;
    library = l0 != 0;
    return v0;
  }
  template <typename Done>
  bool step_until(Done done, float first0 = 0.5F, float first1 = 0.5F, double seconds = 60) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < end) {
      const uint64_t v = step(first0, first1);
      if (done(v)) return true;
      std::this_thread::yield();
    }
    return false;
  }

  // The version from which on the kernel serves; 0: it never did. Mostly 1, but a rank that has not read its cache yet
  // declines, and then it is proposed again.
  uint64_t step_until_taken() {
    uint64_t taken = 0;
    step_until([&](uint64_t v) { return !library && (taken = v) != 0; });
    return taken;
  }

  TempDir dir;
  std::vector<std::unique_ptr<Rank>> ranks;
  uint64_t n = 0;
  bool library = true;
};

TEST_F(GroupRuntime, AVerifiedKernelIsTakenAtOneStepAndGivenBackAtOne) {
  const std::string cache = dir.path() + "/cache";
  plant(cache, kN, {.served_calls = 1000});
  start(cache, cache);
  EXPECT_EQ(ranks[0]->serve(), 8) << "before it joins, a rank is served by the library";
  EXPECT_THAT(ranks[0]->runtime->explain(ranks[0]->handle, {{"M", 64}})->rollout, HasSubstr("not joined"));
  join();
  const uint64_t taken = step_until_taken();
  ASSERT_NE(taken, 0u) << ranks[0]->events() << ranks[1]->events();
  const std::string version = "group version " + std::to_string(taken);
  EXPECT_THAT(ranks[0]->events(), HasSubstr("group proposed"));
  ASSERT_TRUE(step_until([&](uint64_t) {
    return ranks[0]->events().find("by " + version) != std::string::npos &&
           ranks[1]->events().find("by " + version) != std::string::npos;
  }));
  for (auto& r : ranks) {
    const auto e = r->runtime->explain(r->handle, {{"M", 64}});
    EXPECT_EQ(e->kernel, "affine.f32.affine_rows");
    EXPECT_EQ(e->rollout, version);
    EXPECT_EQ(r->runtime->explain(r->handle, {{"M", 65}})->rung, "fallback") << "no regions in a group";
    EXPECT_THAT(r->runtime->metrics(), HasSubstr("niche_group_version " + std::to_string(taken)));
    EXPECT_EQ(r->group->status().serving.size(), 1u);
  }
  ASSERT_TRUE(step_until([&](uint64_t) { return ranks[1]->group->roll_back().ok(); }));
  ASSERT_TRUE(step_until([&](uint64_t v) { return v > taken; })) << ranks[0]->events();
  EXPECT_TRUE(library);
  for (auto& r : ranks) {
    EXPECT_EQ(r->group->status().fault, "");
    EXPECT_TRUE(r->runtime->health().ok);
    EXPECT_EQ(r->group->status().waits, 0u);
  }
  EXPECT_EQ(ranks[1]->group->roll_back().status().code(), Code::kNotFound) << "a rollback is not undone";
}

TEST_F(GroupRuntime, ARankOnWhichTheKernelIsSlowerTakesTheGroupBack) {
  const std::string cache = dir.path() + "/cache";
  plant(cache, kN, {.symbol = "affine_slow"});
  start(cache, cache);
  join();
  const uint64_t taken = step_until_taken();
  ASSERT_NE(taken, 0u) << ranks[0]->events();
  ASSERT_TRUE(step_until([&](uint64_t v) { return v > taken; }, 0.5F, 43.0F)) << ranks[1]->events();
  EXPECT_TRUE(library);
  ASSERT_TRUE(
      step_until([&](uint64_t) { return ranks[1]->events().find("rolled back") != std::string::npos; }));
  EXPECT_THAT(ranks[1]->events(), AllOf(HasSubstr("suspect"), HasSubstr("slower here than the library was")));
}

TEST_F(GroupRuntime, AKernelThatARankCannotLoadServesNowhere) {
  plant(dir.path() + "/cache0", kN, {});
  start(dir.path() + "/cache0", dir.path() + "/cache1");
  join();
  ASSERT_TRUE(step_until([&](uint64_t) {
    return ranks[0]->events().find("group declined") != std::string::npos;
  })) << ranks[0]->events();
  EXPECT_TRUE(library);
  EXPECT_THAT(ranks[1]->group->status().last_drop, HasSubstr("is not in this rank's cache"));
  EXPECT_EQ(ranks[0]->group->status().version, 0u);
}

TEST_F(GroupRuntime, ARankThatComesBackTakesWhatTheOthersServe) {
  const std::string cache = dir.path() + "/cache";
  plant(cache, kN, {});
  start(cache, cache);
  join();
  const uint64_t taken = step_until_taken();
  ASSERT_NE(taken, 0u) << ranks[0]->events();
  ranks[1].reset();
  ranks[1] = std::make_unique<Rank>(board(), cache, 1, 2);
  EXPECT_EQ(ranks[1]->serve(), 8);
  ranks[1]->join();
  EXPECT_EQ(step(), taken);
  EXPECT_FALSE(library);
}

// A kernel of the server's own: y = x * w + b in place of the library.
std::shared_ptr<const dispatch::Kernel> own_kernel(const OpHandle& h, const std::string& name) {
  auto k = std::make_shared<dispatch::Kernel>();
  k->launch = [](const dispatch::Kernel&, dispatch::CallFrame& frame, const dispatch::Executor&) {
    const long* n = frame.args->n;
    const auto *x = static_cast<const float*>(frame.args->p[0]),
               *w = static_cast<const float*>(frame.args->p[1]),
               *b = static_cast<const float*>(frame.args->p[2]);
    for (long i = 0; i < n[0] * n[1]; ++i)
      static_cast<float*>(frame.args->p[3])[i] = x[i] * w[i % n[1]] + b[i % n[1]];
  };
  k->kind = dispatch::KernelKind::kCpu;
  k->id = dispatch::next_kernel_id();
  k->name = name;
  k->definition = h.state()->definition();
  k->guard = rows(1, 1000);
  return k;
}

GroupChange own_change(const Rank& r, const std::string& kernel) {
  GroupChange c;
  c.definition = r.handle.definition().name();
  c.threads = r.handle.state()->site().prefix().threads;
  c.layout = dispatch::LayoutClass::plain(6);
  c.axes[0] = 64;
  c.kernel = kernel;
  return c;
}

TEST_F(GroupRuntime, AKernelThatTheServersOfferIsTakenByAllOrByNone) {
  start(dir.path() + "/cache0", dir.path() + "/cache1");
  for (auto& r : ranks) ASSERT_TRUE(r->runtime->offer_to_group(own_kernel(r->handle, "own.all_reduce")).ok());
  ASSERT_TRUE(ranks[0]->runtime->offer_to_group(own_kernel(ranks[0]->handle, "own.of_rank_0")).ok());
  join();
  EXPECT_EQ(step(), 0u);
  EXPECT_TRUE(library) << "what is offered serves when it is proposed";
  const GroupChange both[] = {own_change(*ranks[1], "own.all_reduce")};
  ASSERT_TRUE(ranks[1]->group->propose(both).ok());
  ASSERT_TRUE(step_until([&](uint64_t v) { return v == 1; })) << ranks[0]->group->status().last_drop;
  EXPECT_FALSE(library);
  EXPECT_EQ(ranks[0]->runtime->explain(ranks[0]->handle, {{"M", 64}})->kernel, "own.all_reduce");

  const GroupChange one[] = {own_change(*ranks[0], "own.of_rank_0")};
  ASSERT_TRUE(ranks[0]->group->propose(one).ok());
  ASSERT_TRUE(step_until([&](uint64_t) { return ranks[1]->group->status().dropped == 1; }));
  EXPECT_FALSE(library);
  EXPECT_THAT(ranks[1]->group->status().last_drop, HasSubstr("'own.of_rank_0' is not in this rank's cache"));

  ranks[1].reset();
  ranks[1] = std::make_unique<Rank>(board(), dir.path() + "/cache1", 1, 2);
  ASSERT_TRUE(ranks[1]->runtime->offer_to_group(own_kernel(ranks[1]->handle, "own.all_reduce")).ok());
  ranks[1]->join();
  EXPECT_EQ(step(), 1u);
  EXPECT_FALSE(library) << "a rank that came back serves what it had offered before it joined";
  ASSERT_TRUE(step_until([&](uint64_t) { return ranks[0]->group->roll_back().ok(); }));
  ASSERT_TRUE(step_until([&](uint64_t v) { return v > 1; }));
  EXPECT_TRUE(library);
}

TEST_F(GroupRuntime, AnOfferThatNobodyCouldServeIsRefusedByName) {
  start(dir.path() + "/cache0", dir.path() + "/cache1");
  Runtime& r = *ranks[0]->runtime;
  const auto refused = [&](std::shared_ptr<const dispatch::Kernel> k) {
    return r.offer_to_group(std::move(k)).message();
  };
  EXPECT_THAT(refused(nullptr), HasSubstr("no kernel with a launch"));
  EXPECT_THAT(refused(own_kernel(ranks[0]->handle, "own@1")), HasSubstr("'own@1'"));
  EXPECT_THAT(refused(own_kernel(ranks[0]->handle, "")), HasSubstr("1 to 255 characters"));
  EXPECT_EQ(refused(own_kernel(ranks[0]->handle, "own")), "");
  EXPECT_THAT(refused(own_kernel(ranks[0]->handle, "own")), HasSubstr("was offered before"));
  auto h = ranks[1]->runtime->op("affine", kF32, {{"N", kN + 1}});
  ASSERT_TRUE(h.ok());
  EXPECT_THAT(refused(own_kernel(*h, "own")), HasSubstr("no handle of"));
}

TEST_F(GroupRuntime, AMisconfiguredGroupIsNamed) {
  RuntimeConfig c;
  c.ops = {std::make_shared<AffineOp>()};
  c.group_ranks = 2;
  EXPECT_THAT(Runtime::create(c).status().message(), HasSubstr("group_board"));
  c.group_board = board();
  c.group_rank = 2;
  EXPECT_THAT(Runtime::create(c).status().message(), HasSubstr("group_rank"));
  c.group_ranks = c.group_rank = 0;
  auto runtime = Runtime::create(c);
  ASSERT_TRUE(runtime.ok());
  EXPECT_THAT((*runtime)->join_group().status().message(), HasSubstr("no group is configured"));
}

// Servers of their own, as a tensor-parallel group has them. After each step's calls all wait for each other, as
// they would in a collective, and compare which version and which side, kernel or library, served the step.
struct World {
  static constexpr int kRanks = 3;
  std::atomic<uint64_t> arrived{0};
  std::atomic<uint64_t> served[kRanks][2] = {};  // by the step's parity: step, version and side
  std::atomic<bool> failed{false};
};

int serve_rank(World* world, const std::string& board, const std::string& cache, int rank) {
  Rank r(board, cache, rank, World::kRanks);
  r.join();
  if (::testing::Test::HasFailure()) return 1;
  uint64_t highest = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  for (uint64_t n = 1;; ++n) {
    const uint64_t version = r.group->step(n);
    const int library = r.serve();
    if (library != 0 && library != 8) return 2;
    world->served[rank][n % 2].store(n << 20 | version << 1 | (library != 0 ? 1 : 0));
    // The collective of the step.
    world->arrived.fetch_add(1);
    while (world->arrived.load() < n * World::kRanks) {
      if (world->failed.load()) return 3;
      std::this_thread::yield();
    }
    for (int other = 0; other < World::kRanks; ++other)
      if (world->served[other][n % 2].load() != world->served[rank][n % 2].load()) return 4;
    // Back and forth, by whichever rank's turn it is: to the kernel once, then rollbacks of what serves.
    if (version > highest) highest = version;
    if (n % 50 == static_cast<uint64_t>(rank) && library == 0) (void)r.group->roll_back();
    // All see the same version at the same step, and leave together.
    if (highest >= 2) return r.group->status().fault.empty() && r.group->status().waits == 0 ? 0 : 5;
    if (std::chrono::steady_clock::now() > end) return 6;
  }
}

TEST(GroupProcesses, ThreeServersAgreeOnEveryStep) {
  TempDir dir;
  const std::string cache = dir.path() + "/cache";
  plant(cache, kN, {.served_calls = 1000});
  void* p = mmap(nullptr, sizeof(World), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(p, MAP_FAILED);
  auto* world = new (p) World;
  std::vector<pid_t> children;
  for (int rank = 0; rank < World::kRanks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      const int status = serve_rank(world, dir.path() + "/board", cache, rank);
      if (status != 0) world->failed = true;
      _exit(status);
    }
    ASSERT_GT(child, 0);
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  munmap(p, sizeof(World));
}

}  // namespace
}  // namespace niche::testing_ops
