// Many threads and several Runtimes; the end of a Runtime, of the process and of a fork, each under load.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/runtime/planted_cache.h"

namespace niche::testing_ops {
namespace {

class Lifecycle : public ::testing::Test {
 protected:
  static constexpr int64_t kN = 64;
  std::unique_ptr<Runtime> make(const std::string& cache_dir = "") {
    RuntimeConfig c;
    c.ops = {op};
    c.evolve = false;
    c.cache_dir = cache_dir;
    c.tick_seconds = 0.002;
    c.shadow_one_in = 8;
    auto made = Runtime::create(std::move(c));
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return *std::move(made);
  }
  std::shared_ptr<AffineOp> op = std::make_shared<AffineOp>();
};

// Calls the handle until told to stop; counts wrong answers.
struct Load {
  Load(OpHandle handle, int threads) {
    for (int t = 0; t < threads; ++t)
      threads_.emplace_back([this, handle, t] {
        AffineCall c(1 + t % 7, handle.definition().const_extents()[1], static_cast<uint64_t>(t) + 1);
        while (!stop.load(std::memory_order_relaxed)) {
          if (!handle.call(c.args()).ok() || c.error() > 1e-5) wrong.fetch_add(1);
          calls.fetch_add(1, std::memory_order_relaxed);
        }
      });
  }
  ~Load() {
    stop = true;
    for (auto& t : threads_) t.join();
  }
  void wait_for(uint64_t n) const {
    const uint64_t begin = calls.load();
    while (calls.load() < begin + n) std::this_thread::yield();
  }
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> calls{0}, wrong{0};
  std::vector<std::thread> threads_;
};

TEST_F(Lifecycle, SeveralRuntimesServeTheirOwnTables) {
  TempDir with, without;
  plant(with.path(), kN, {.served_calls = 1000});
  auto a = make(with.path()), b = make(without.path());
  auto ha = *a->op("affine", kF32, {{"N", kN}}), hb = *b->op("affine", kF32, {{"N", kN}});
  {
    Load la(ha, 3), lb(hb, 3);
    la.wait_for(2000);
    lb.wait_for(2000);
    EXPECT_EQ(la.wrong, 0);
    EXPECT_EQ(lb.wrong, 0);
  }
  const auto evolved = [](Runtime& r) {
    const auto t = r.dispatcher().totals();
    return t.by_rung[static_cast<int>(Rung::kExact)] + t.by_rung[static_cast<int>(Rung::kRegion)];
  };
  EXPECT_GT(evolved(*a), 1000);
  EXPECT_EQ(evolved(*b), 0);
}

TEST_F(Lifecycle, DestroyingARuntimeUnderLoadLosesNoAnswer) {
  TempDir dir;
  plant(dir.path(), kN, {.served_calls = 1000});
  for (int round = 0; round < 10; ++round) {
    auto runtime = make(dir.path());
    Load load(*runtime->op("affine", kF32, {{"N", kN}}), 4);
    load.wait_for(500);
    runtime.reset();
    load.wait_for(500);
    EXPECT_EQ(load.wrong, 0) << "round " << round;
  }
}

TEST_F(Lifecycle, BindingAndRebindingUnderLoadNeverMixesOldAndNew) {
  TempDir dir;
  plant(dir.path(), kN, {.symbol = "affine_packed", .served_calls = 1000});
  auto runtime = make(dir.path());
  auto handle = *runtime->op("affine", kF32, {{"N", kN}});
  // Two sets of constants; each caller uses one of them, the owner binds them in turn.
  AffineCall even(4, kN, 1), odd(4, kN, 50);
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, calls{0};
  std::vector<std::thread> callers;
  for (AffineCall* set : {&even, &odd})
    callers.emplace_back([&, set] {
      Floats y({4, kN});
      while (!stop) {
        auto args = set->args();
        args[3] = y.view();
        if (!handle.call(args).ok()) ++wrong;
        for (size_t i = 0; i < y.size(); ++i)
          if (std::abs(y[i] - (set->x[i] * set->w[i % kN] + set->b[i % kN])) > 1e-5F) ++wrong;
        ++calls;
      }
    });
  for (int i = 0; i < 300; ++i) {
    AffineCall& set = i % 2 == 0 ? even : odd;
    ASSERT_TRUE(handle.bind_constant("w", set.w.view(), nullptr).ok());
    ASSERT_TRUE(handle.bind_constant("b", set.b.view(), nullptr).ok());
    const int before = calls;
    while (calls < before + 4) std::this_thread::yield();
  }
  stop = true;
  for (auto& t : callers) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(runtime->dispatcher().totals().by_reason[static_cast<int>(FallbackReason::kNotPacked)], 0);
}

TEST_F(Lifecycle, ExitUnderLoadIsClean) {
  EXPECT_EXIT(
      {
        TempDir dir;
        plant(dir.path(), kN, {.served_calls = 1000});
        auto* runtime = make(dir.path()).release();  // as a server that calls exit() somewhere deep
        auto* load = new Load(*runtime->op("affine", kF32, {{"N", kN}}), 4);
        load->wait_for(500);
        std::exit(load->wrong == 0 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(Lifecycle, AForkedChildServesTheLibraryAloneAndMayEndTheRuntime) {
  TempDir dir;
  plant(dir.path(), kN, {.served_calls = 1000});
  auto runtime = make(dir.path());
  auto handle = *runtime->op("affine", kF32, {{"N", kN}});
  Load load(handle, 2);
  load.wait_for(200);
  const pid_t pid = fork();
  if (pid == 0) {
    AffineCall c(4, kN);
    const int before = op->runs[0];
    const bool answered = handle.call(c.args()).ok() && c.error() < 1e-5;
    const bool by_library = op->runs[0] == before + 1;
    runtime.reset();
    const bool again = handle.call(c.args()).ok() && c.error() < 1e-5;
    _exit(answered && by_library && again ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  load.wait_for(200);
  EXPECT_EQ(load.wrong, 0);
}

}  // namespace
}  // namespace niche::testing_ops
