// RankGroup in one process: any order in which ranks step, poll and propose, and what goes wrong.
#include "dispatch/rank_group.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "tests/dispatch/rank_group_fixture.h"

namespace niche::dispatch {
namespace {

using testing::Member;
using testing::TickingClock;

class RankGroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path = std::filesystem::path(::testing::TempDir()) / ("niche_board_" + std::to_string(getpid()));
    std::filesystem::remove(path);
  }
  void TearDown() override { std::filesystem::remove(path); }

  void start(int ranks, RankGroupOptions o = {}) {
    groups.clear();
    std::filesystem::remove(path);
    members = std::vector<Member>(static_cast<size_t>(ranks));
    for (int r = 0; r < ranks; ++r) groups.push_back(join(r, ranks, &members[static_cast<size_t>(r)], o));
  }
  std::unique_ptr<RankGroup> join(int rank, int ranks, Member* m, RankGroupOptions o = {}) {
    auto board = SharedMemoryBoard::open(path, ranks);
    EXPECT_TRUE(board.ok()) << board.status().to_string();
    o.rank = rank;
    o.clock = &clock;
    auto g = RankGroup::make(std::move(*board), m, o);
    EXPECT_TRUE(g.ok()) << g.status().to_string();
    return std::move(*g);
  }
  void poll_all() {
    for (int i = 0; i < 2; ++i)
      for (auto& g : groups) g->poll();
  }
  std::filesystem::path path;
  TickingClock clock;
  std::vector<Member> members;
  std::vector<std::unique_ptr<RankGroup>> groups;
};

const uint8_t kA[] = {1, 2, 3}, kB[] = {4};

TEST_F(RankGroupTest, EveryRankSwitchesAtTheSameStep) {
  start(3);
  for (auto& g : groups) EXPECT_EQ(g->step(1), 0u);
  EXPECT_EQ(*groups[1]->propose(kA), 1u);
  EXPECT_EQ(groups[0]->propose(kB).status().code(), Code::kBusy) << "one at a time";
  for (auto& g : groups) EXPECT_EQ(g->step(2), 0u) << "not prepared yet";
  poll_all();
  EXPECT_EQ(groups[0]->step(3), 0u);
  EXPECT_EQ(groups[0]->step(4), 0u) << "a step ahead";
  EXPECT_EQ(groups[1]->step(3), 0u);
  EXPECT_EQ(groups[2]->step(3), 0u) << "decided: from 3 + 2";
  EXPECT_EQ(groups[1]->step(4), 0u);
  EXPECT_EQ(groups[2]->step(4), 0u);
  for (auto& g : groups) EXPECT_EQ(g->step(5), 1u);
  for (const Member& m : members) EXPECT_EQ(m.serves, std::vector<uint8_t>({1, 2, 3}));
  for (auto& g : groups) EXPECT_EQ(g->stats().waits, 0u);
}

TEST_F(RankGroupTest, ARankThatCannotPrepareDropsItForAll) {
  start(2);
  members[1].refuses = true;
  ASSERT_TRUE(groups[0]->propose(kA).ok());
  poll_all();
  EXPECT_TRUE(members[0].prepared.empty()) << "dropped";
  for (uint64_t n = 1; n < 10; ++n)
    for (auto& g : groups) EXPECT_EQ(g->step(n), 0u);
  EXPECT_NE(groups[1]->stats().last_drop.find("no such kernel here"), std::string::npos);
  EXPECT_EQ(groups[0]->stats().dropped, 1u);
  members[1].refuses = false;
  EXPECT_EQ(*groups[0]->propose(kB), 3u) << "2 lies where version 0 does";
  poll_all();
  for (uint64_t n = 10; n < 13; ++n)
    for (auto& g : groups) (void)g->step(n);
  EXPECT_EQ(members[1].serves, std::vector<uint8_t>({4}));
}

TEST_F(RankGroupTest, ARankThatNeverPollsTimesOut) {
  start(2, {.prepare_ns_max = 50'000'000});
  ASSERT_TRUE(groups[0]->propose(kA).ok());
  for (int i = 0; i < 100; ++i) groups[0]->poll();
  EXPECT_EQ(groups[0]->stats().dropped, 1u);
  EXPECT_NE(groups[0]->stats().last_drop.find("in time"), std::string::npos);
  EXPECT_TRUE(members[0].prepared.empty());
}

// A rank that died after the version was armed: the others wait their time, then go on with what they have.
TEST_F(RankGroupTest, ARankThatNeverStepsAgainIsWaitedForAndThenDropped) {
  start(3, {.decide_ns_max = 20'000'000});
  ASSERT_TRUE(groups[0]->propose(kA).ok());
  poll_all();
  for (uint64_t n = 1; n < 8; ++n)
    for (int r = 0; r < 2; ++r) EXPECT_EQ(groups[static_cast<size_t>(r)]->step(n), 0u);
  poll_all();
  EXPECT_EQ(groups[0]->stats().waits + groups[1]->stats().waits, 1u) << "the first to wait drops it for all";
  EXPECT_TRUE(members[0].prepared.empty());
  EXPECT_TRUE(members[2].prepared.empty());
}

TEST_F(RankGroupTest, ARankThatComesBackTakesWhatTheOthersServe) {
  start(2);
  ASSERT_TRUE(groups[0]->propose(kA).ok());
  poll_all();
  for (uint64_t n = 1; n < 4; ++n)
    for (auto& g : groups) (void)g->step(n);
  groups[1].reset();
  Member again;
  groups[1] = join(1, 2, &again);
  EXPECT_EQ(again.serves, std::vector<uint8_t>({1, 2, 3}));
  EXPECT_EQ(groups[1]->step(4), 1u);
  // While a proposal is armed: it is dropped, since the newcomer does not know it.
  ASSERT_TRUE(groups[0]->propose(kB).ok());
  poll_all();
  (void)groups[0]->step(4);
  Member third;
  groups[1] = join(1, 2, &third);
  poll_all();
  for (uint64_t n = 5; n < 9; ++n)
    for (auto& g : groups) EXPECT_EQ(g->step(n), 1u);
  EXPECT_EQ(third.serves, std::vector<uint8_t>({1, 2, 3}));
  // After it was decided: the newcomer takes part.
  ASSERT_TRUE(groups[0]->propose(kB).ok());
  poll_all();
  for (auto& g : groups) EXPECT_EQ(g->step(9), 1u);
  Member fourth;
  groups[1] = join(1, 2, &fourth);
  EXPECT_EQ(fourth.serves, std::vector<uint8_t>({1, 2, 3}));
  for (auto& g : groups) EXPECT_EQ(g->step(10), 1u);
  for (auto& g : groups) EXPECT_GT(g->step(11), 1u);
  EXPECT_EQ(fourth.serves, std::vector<uint8_t>({4}));
}

TEST_F(RankGroupTest, WithoutARankTakingTheLastVersionNoneIsProposed) {
  start(2);
  ASSERT_TRUE(groups[0]->propose(kA).ok());
  poll_all();
  for (uint64_t n = 1; n < 4; ++n) (void)groups[0]->step(n), n < 3 ? (void)groups[1]->step(n) : void();
  EXPECT_EQ(groups[0]->propose(kB).status().code(), Code::kBusy);
  (void)groups[1]->step(3);
  EXPECT_TRUE(groups[0]->propose(kB).ok());
}

// Ranks of a group with a collective in each step: none enters a step before all have entered the one before.
// Whatever the order of everything else, all serve one version in each step, and nobody ever waits.
TEST_F(RankGroupTest, AnyOrderOfStepsPollsAndProposalsAgrees) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 rng(seed);
    const int ranks = 2 + static_cast<int>(rng() % 4);
    start(ranks, {.lead_steps = 2 + rng() % 3});
    std::vector<uint64_t> at(static_cast<size_t>(ranks));
    std::map<uint64_t, uint64_t> version_of_step;
    uint64_t switches = 0;
    for (int i = 0; i < 4000; ++i) {
      const auto r = static_cast<size_t>(rng() % static_cast<uint64_t>(ranks));
      switch (rng() % 8) {
        case 0:
          (void)groups[r]->propose(kB);
          break;
        case 1:
        case 2:
          members[r].refuses = rng() % 16 == 0;
          groups[r]->poll();
          break;
        default: {
          if (at[r] > *std::min_element(at.begin(), at.end())) break;
          const uint64_t n = ++at[r], v = groups[r]->step(n);
          const auto [it, first] = version_of_step.emplace(n, v);
          ASSERT_EQ(it->second, v) << "seed " << seed << " step " << n << " rank " << r;
          switches += first && n > 1 && v != version_of_step[n - 1] ? 1 : 0;
        }
      }
    }
    ASSERT_GT(switches, 10u) << "seed " << seed;
    for (auto& g : groups) ASSERT_EQ(g->stats().waits, 0u) << "seed " << seed;
  }
}

// Ranks that run apart as they like: some wait, some proposals are dropped, none disagrees.
TEST_F(RankGroupTest, RanksThatRunApartNeverDisagree) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 rng(seed);
    start(3, {.decide_ns_max = 3'000'000});
    std::vector<uint64_t> at(3);
    std::map<uint64_t, uint64_t> version_of_step;
    uint64_t waits = 0, switches = 0;
    for (int i = 0; i < 3000; ++i) {
      const auto r = static_cast<size_t>(rng() % 3);
      if (rng() % 4 == 0) (void)groups[r]->propose(kA);
      groups[rng() % 3]->poll();
      const uint64_t n = at[r] += 1 + (rng() % 8 == 0 ? rng() % 3 : 0);  // steps may be skipped by a rank
      const uint64_t v = groups[r]->step(n);
      const auto it = version_of_step.emplace(n, v).first;
      ASSERT_EQ(it->second, v) << "seed " << seed << " step " << n;
    }
    for (auto& g : groups) waits += g->stats().waits, switches += g->stats().switches;
    ASSERT_GT(waits + switches, 0u);
  }
}

TEST_F(RankGroupTest, ARankThatCannotTakeWhatItPreparedSaysSoAndTheGroupStaysWhereItIs) {
  start(2);
  members[1].forgets = true;
  ASSERT_TRUE(groups[0]->propose(kA).ok());
  poll_all();
  for (uint64_t n = 1; n < 6; ++n)
    for (auto& g : groups) (void)g->step(n);
  EXPECT_EQ(groups[0]->stats().version, 1u);
  EXPECT_EQ(groups[0]->stats().fault, "");
  EXPECT_EQ(groups[1]->stats().version, 0u);
  EXPECT_EQ(groups[1]->step(6), 0u);
  EXPECT_NE(groups[1]->stats().fault.find("version 1 at step 3: "), std::string::npos)
      << groups[1]->stats().fault;
  EXPECT_EQ(groups[0]->propose(kB).status().code(), Code::kBusy);
}

TEST_F(RankGroupTest, ABoardHasItsMemoryBeforeAnybodyWritesToIt) {
  start(2);
  struct stat st {};
  ASSERT_EQ(::stat(path.c_str(), &st), 0);
  EXPECT_GE(st.st_blocks * 512, st.st_size) << "a write to a page that is not there is a SIGBUS";
  std::filesystem::remove(path);
  // A limit on file sizes stands in for a full file system.
  const pid_t child = fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{64 << 10, RLIM_INFINITY};
    if (::setrlimit(RLIMIT_FSIZE, &small) != 0) _exit(1);
    const Status s = SharedMemoryBoard::open(path, 2).status();
    _exit(s.code() == Code::kIo && s.message().find("no room for its") != std::string::npos ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0) << (WIFEXITED(status) ? "" : "killed");
  EXPECT_TRUE(SharedMemoryBoard::open(path, 2).ok()) << "once there is room";
}

// A process that is killed while it makes the board leaves a file without its first words, of any length.
TEST_F(RankGroupTest, ABoardWhoseMakerWasKilledIsMadeAgain) {
  start(2);
  groups.clear();
  const auto bytes = std::filesystem::file_size(path);
  for (const auto left : {bytes, bytes / 2, decltype(bytes){1}, decltype(bytes){0}}) {
    std::filesystem::resize_file(path, 0);
    std::filesystem::resize_file(path, left);
    auto board = SharedMemoryBoard::open(path, 2);
    ASSERT_TRUE(board.ok()) << left << ": " << board.status().to_string();
    EXPECT_EQ((*board)->load(GroupBoard::Word::kState), 0u);
    EXPECT_EQ(std::filesystem::file_size(path), bytes);
  }
  // What was not made by open() is left alone.
  std::filesystem::resize_file(path, 0);
  std::ofstream(path) << std::string(16, '\0') << std::string(static_cast<size_t>(bytes) - 16, 'x');
  EXPECT_EQ(SharedMemoryBoard::open(path, 2).status().code(), Code::kCorrupt);
}

TEST_F(RankGroupTest, BadOptionsAndPayloadsAreNamed) {
  EXPECT_EQ(SharedMemoryBoard::open(path, 0).status().code(), Code::kInvalid);
  EXPECT_EQ(SharedMemoryBoard::open(path, 65).status().code(), Code::kInvalid);
  EXPECT_EQ(SharedMemoryBoard::open("/no/such/folder/board", 2).status().code(), Code::kIo);
  start(2);
  EXPECT_EQ(SharedMemoryBoard::open(path, 3).status().code(), Code::kInvalid) << "of two ranks";
  std::shared_ptr<GroupBoard> board = *SharedMemoryBoard::open(path, 2);
  Member m;
  EXPECT_EQ(RankGroup::make(board, &m, {.rank = 2, .clock = &clock}).status().code(), Code::kInvalid);
  EXPECT_EQ(RankGroup::make(board, &m, {.clock = &clock, .lead_steps = 1}).status().code(), Code::kInvalid);
  EXPECT_EQ(RankGroup::make(board, nullptr, {.clock = &clock}).status().code(), Code::kInvalid);
  const std::vector<uint8_t> large(GroupBoard::kPayloadBytesMax);
  EXPECT_EQ(groups[0]->propose(large).status().code(), Code::kInvalid);
  // Torn by a proposer that was given up.
  ASSERT_TRUE(groups[0]->propose(kA).ok());
  board->write_payload(1, kB);
  poll_all();
  EXPECT_EQ(groups[0]->stats().dropped, 1u);
  EXPECT_NE(groups[0]->stats().last_drop.find("torn"), std::string::npos);
  std::filesystem::resize_file(path, 100);
  EXPECT_EQ(SharedMemoryBoard::open(path, 2).status().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace niche::dispatch
