#include "evolve/judge/child.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <vector>

#include "evolve/judge/arena.h"
#include "evolve/judge/child_pool.h"

namespace niche::evolve::judge {
namespace {

std::unique_ptr<Child> child(const std::function<void(int)>& body) {
  auto c = Child::fork(body);
  EXPECT_TRUE(c.ok()) << c.status().to_string();
  return std::move(*c);
}

TEST(Child, AnswersUntilItDiesAndThenSaysHow) {
  int served = 0;
  auto c = child([&](int channel) {
    while (wait_for_command(channel)) {
      if (++served == 3) raise(SIGSEGV);
      answer(channel);
    }
  });
  EXPECT_EQ(c->call({}), CallEnd::kAnswered);
  EXPECT_EQ(c->call({}), CallEnd::kAnswered);
  EXPECT_EQ(c->call({}), CallEnd::kDied);
  EXPECT_FALSE(c->alive());
  EXPECT_EQ(c->end_signal(), SIGSEGV) << c->end_text();
  EXPECT_EQ(c->call({}), CallEnd::kDied);
}

TEST(Child, EarlyExitIsADeathNotAnAnswer) {
  auto c = child([](int channel) {
    wait_for_command(channel);
    _exit(0);
  });
  EXPECT_EQ(c->call({}), CallEnd::kDied);
  EXPECT_EQ(c->end_text(), "exit code 0");
}

TEST(Child, BusyLoopIsHungByItsCpuTime) {
  auto c = child([](int channel) {
    wait_for_command(channel);
    for (volatile int spin = 1; spin != 0;) {
    }
  });
  EXPECT_EQ(c->call({0.1, 60}), CallEnd::kHung);
  EXPECT_EQ(c->end_signal(), SIGKILL);
}

TEST(Child, StoppedChildIsNotHungByCpuTimeOnlyByWallTime) {
  auto c = child([](int channel) {
    wait_for_command(channel);
    raise(SIGSTOP);
    answer(channel);
  });
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(c->call({0.01, 0.5}), CallEnd::kHung);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(500));
}

TEST(Child, DestructorKillsAndReaps) {
  {
    auto c = child([](int channel) {
      while (wait_for_command(channel)) answer(channel);
    });
    EXPECT_EQ(c->call({}), CallEnd::kAnswered);
  }
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child was left";
}

TEST(SharedArena, BuffersTouchTheirClosedPagesAndKeepTheirAlignment) {
  auto a = SharedArena::make(1 << 20);
  ASSERT_TRUE(a.ok());
  const auto end = (*a)->place(100, 4, Side::kEnd);
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(end->at + end->bytes, end->region + end->region_bytes);
  const auto aligned = (*a)->place(100, 64, Side::kEnd);
  EXPECT_EQ(aligned->at % 64, 0);
  EXPECT_GE(aligned->region, end->region + end->region_bytes + kGuardBytes);
  const auto start = (*a)->place(5000, 4, Side::kStart);
  EXPECT_EQ(start->at, start->region);
  const auto shifted = (*a)->place(4096, 16, Side::kShifted);
  EXPECT_EQ(shifted->at, shifted->region + 16);
  EXPECT_EQ(shifted->region_bytes, 2 * kPage);
}

TEST(SharedArena, FullArenaSaysWhatWasWanted) {
  auto a = SharedArena::make(1 << 20);
  const int64_t mark = (*a)->mark();
  const auto big = (*a)->place(int64_t{3} << 30, 4, Side::kEnd);
  ASSERT_FALSE(big.ok());
  EXPECT_EQ(big.status().code(), dispatch::Code::kBusy);
  EXPECT_NE(big.status().message().find("3221225472"), std::string::npos);
  ASSERT_TRUE((*a)->place(1000, 4, Side::kEnd).ok());
  (*a)->release(mark);
  EXPECT_EQ((*a)->mark(), mark);
}

TEST(SharedArena, IsSharedWithChildren) {
  auto a = SharedArena::make(1 << 16);
  auto* word = (*a)->mailbox<int>(64);
  *word = 1;
  auto c = child([&](int channel) {
    wait_for_command(channel);
    *word += 41;
    answer(channel);
  });
  EXPECT_EQ(c->call({}), CallEnd::kAnswered);
  EXPECT_EQ(*word, 42);
}

TEST(ChildPool, EveryTaskRunsOnceInEveryCall) {
  const dispatch::Executor e = start_child_pool(3);
  std::vector<int> hits(1000);
  for (int round = 0; round < 50; ++round)
    e.parallel_for(
        e.self, 1000,
        [](void* ctx, int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i)
            ++(*static_cast<std::vector<int>*>(ctx))[static_cast<size_t>(i)];
        },
        &hits);
  for (int h : hits) EXPECT_EQ(h, 50);
}

}  // namespace
}  // namespace niche::evolve::judge
