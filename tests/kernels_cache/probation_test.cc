#include "kernels_cache/probation.h"

#include <sys/wait.h>

#include "test_support.h"

namespace niche::kernels_cache {
namespace {

using ProbationTest = CacheTest;

const KernelRef kKernel = kernel_ref(test_record(1));
const KernelRef kOther = kernel_ref(test_record(2));

// Runs `body` in a child that then ends as a crash does: no destructor, no clean end.
template <typename Body>
void in_a_process_that_crashes(Body body) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    body();
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the child ended early: " << status;
}
void require(bool ok) {
  if (!ok) ::_exit(3);
}

TEST_F(ProbationTest, AMarkNeedsARun) {
  auto cache = open();
  EXPECT_EQ(cache->probation().mark(kKernel, now_).code(), dispatch::Code::kInvalid);
}

TEST_F(ProbationTest, ACleanEndLeavesNothingBehind) {
  {
    auto cache = open();
    ASSERT_TRUE(cache->probation().begin_run(now_).ok());
    ASSERT_TRUE(cache->probation().mark(kKernel, now_).ok());
    EXPECT_TRUE(cache->probation().marked(kKernel.id));
    ASSERT_TRUE(cache->probation().end_run().ok());
  }
  auto cache = open();
  const StartupReport report = cache->probation().startup_scan(cache->standings(), now_);
  EXPECT_TRUE(report.complete);
  EXPECT_EQ(report.unclean_ends, 0);
  EXPECT_TRUE(report.held.empty());
  EXPECT_TRUE(report.explanation.empty());
}

TEST_F(ProbationTest, AKernelOnProbationInACrashedProcessIsHeldBack) {
  in_a_process_that_crashes([&] {
    auto cache = open();
    require(cache->commit(test_record(1)).ok() && cache->commit(test_record(2)).ok());
    require(cache->probation().begin_run(now_).ok());
    require(cache->probation().mark(kKernel, now_).ok());
  });
  auto cache = open();
  const StartupReport report = cache->probation().startup_scan(cache->standings(), now_ + kSecond);
  EXPECT_EQ(report.unclean_ends, 1);
  ASSERT_EQ(report.held.size(), 1u);
  EXPECT_EQ(report.held[0].id, kKernel.id);
  EXPECT_EQ(report.held[0].kernel, kKernel.kernel);
  EXPECT_FALSE(report.fallbacks_only);
  EXPECT_NE(report.explanation.find("held for re-verification"), std::string::npos);
  EXPECT_FALSE(cache->load(kKernel.id));
  EXPECT_EQ(misses(*cache, MissReason::kHeld), 1u);
  EXPECT_EQ(cache->all(), std::vector<KernelId>{kOther.id});

  // Held for every later start too, until verified again.
  cache = open();
  EXPECT_EQ(cache->probation().startup_scan(cache->standings(), now_ + 2 * kSecond).unclean_ends, 0);
  EXPECT_EQ(cache->standings().state(kKernel.id), StandingState::kHeld);
  ASSERT_TRUE(cache->standings().clear_hold(kKernel, now_).ok());
  EXPECT_TRUE(open()->load(kKernel.id));
}

TEST_F(ProbationTest, ACommitIsTheReverificationThatAHeldKernelWaitsFor) {
  auto cache = open();
  ASSERT_TRUE(cache->commit(test_record(1)).ok());
  for (int time = 1; time < StandingStore::kHoldsMax; ++time) {
    ASSERT_TRUE(cache->standings().hold(kKernel, "crash", "run-" + std::to_string(time), now_).ok());
    ASSERT_FALSE(cache->load(kKernel.id));
    ASSERT_TRUE(cache->commit(test_record(1)).ok());
    EXPECT_EQ(cache->standings().state(kKernel.id), StandingState::kCleared);
    EXPECT_TRUE(cache->load(kKernel.id));
    EXPECT_TRUE(open()->load(kKernel.id)) << "durably";
  }
  // Holds are counted over re-verifications: a kernel that crashes again and again does not come back.
  ASSERT_TRUE(cache->standings().hold(kKernel, "crash", "run-last", now_).ok());
  EXPECT_EQ(cache->commit(test_record(1)).status().code(), dispatch::Code::kUnsupported);
  EXPECT_FALSE(cache->load(kKernel.id));
}

TEST_F(ProbationTest, AKernelThatServedItsProbationIsNotSuspected) {
  in_a_process_that_crashes([&] {
    auto cache = open();
    require(cache->probation().begin_run(now_).ok());
    require(cache->probation().mark(kKernel, now_).ok() && cache->probation().mark(kOther, now_).ok());
    require(cache->probation().clear(kKernel.id).ok());
  });
  auto cache = open();
  const StartupReport report = cache->probation().startup_scan(cache->standings(), now_);
  ASSERT_EQ(report.held.size(), 1u);
  EXPECT_EQ(report.held[0].id, kOther.id);
}

TEST_F(ProbationTest, ASecondUncleanEndWithinTenMinutesMeansFallbacksAlone) {
  const auto crash = [&] {
    in_a_process_that_crashes([&] { require(open()->probation().begin_run(now_).ok()); });
  };
  const auto scan = [&] {
    auto cache = open();
    return cache->probation().startup_scan(cache->standings(), now_);
  };
  crash();
  EXPECT_FALSE(scan().fallbacks_only);
  now_ += 9 * kMinute;
  crash();
  const StartupReport second = scan();
  EXPECT_TRUE(second.fallbacks_only);
  EXPECT_EQ(second.fallbacks_only_until_unix_ns, now_ + kUncleanWindowNs);
  EXPECT_NE(second.explanation.find("fallbacks alone"), std::string::npos);
  now_ += 11 * kMinute;
  crash();
  EXPECT_FALSE(scan().fallbacks_only);
}

TEST_F(ProbationTest, ProcessesThatDieTogetherAreOneEnd) {
  for (int i = 0; i < 3; ++i)
    in_a_process_that_crashes([&] { require(open()->probation().begin_run(now_ + i).ok()); });
  auto cache = open();
  const StartupReport report = cache->probation().startup_scan(cache->standings(), now_);
  EXPECT_EQ(report.unclean_ends, 3);
  EXPECT_FALSE(report.fallbacks_only);
}

TEST_F(ProbationTest, AMachinesRestartHoldsItsKernelsButIsNoCrashOfOurs) {
  for (int i = 0; i < 2; ++i) {
    in_a_process_that_crashes([&] {
      auto cache = open();
      require(cache->probation().begin_run(now_ + i).ok());
      require(cache->probation().mark(kKernel, now_).ok());
    });
    auto o = options();
    o.boot_id = "boot-" + std::to_string(i + 2);
    auto cache = open(o);
    const StartupReport report = cache->probation().startup_scan(cache->standings(), now_ + i);
    EXPECT_TRUE(report.machine_restarted);
    EXPECT_FALSE(report.fallbacks_only);
    EXPECT_EQ(report.held.size(), 1u);
  }
}

TEST_F(ProbationTest, ALivingSiblingIsNotTakenForDead) {
  auto sibling = open();
  ASSERT_TRUE(sibling->probation().begin_run(now_).ok());
  ASSERT_TRUE(sibling->probation().mark(kKernel, now_).ok());
  auto cache = open();
  const StartupReport report = cache->probation().startup_scan(cache->standings(), now_);
  EXPECT_EQ(report.unclean_ends, 0);
  EXPECT_TRUE(report.held.empty());
  ASSERT_TRUE(sibling->probation().end_run().ok());
}

TEST_F(ProbationTest, WhileAnotherScansMarkedKernelsWait) {
  in_a_process_that_crashes([&] {
    auto cache = open();
    require(cache->probation().begin_run(now_).ok());
    require(cache->probation().mark(kKernel, now_).ok());
  });
  auto cache = open();
  auto scanner =
      posix_files().open(AT_FDCWD, cache->home().path() + "/probation/scan.lock", O_RDWR | O_CREAT, 0600);
  ASSERT_TRUE(scanner.ok());
  ASSERT_TRUE(*posix_files().try_lock(*scanner));
  StartupReport report = cache->probation().startup_scan(cache->standings(), now_);
  EXPECT_FALSE(report.complete);
  ASSERT_EQ(report.held.size(), 1u);
  EXPECT_EQ(report.held[0].id, kKernel.id);
  EXPECT_EQ(cache->standings().state(kKernel.id), StandingState::kHeld);
  cache->refresh();
  EXPECT_EQ(cache->standings().state(kKernel.id), StandingState::kHeld) << "also after a refresh";
  posix_files().close(*scanner);
  report = cache->probation().startup_scan(cache->standings(), now_);
  EXPECT_TRUE(report.complete);
  EXPECT_EQ(report.unclean_ends, 1);
}

TEST_F(ProbationTest, ADamagedMarkStillNamesItsKernel) {
  in_a_process_that_crashes([&] {
    auto cache = open();
    require(cache->probation().begin_run(now_).ok());
    require(cache->probation().mark(kKernel, now_).ok());
    for (const auto& e : std::filesystem::directory_iterator(cache->home().path() + "/probation"))
      std::filesystem::resize_file(e.path(), 7);
  });
  auto cache = open();
  const StartupReport report = cache->probation().startup_scan(cache->standings(), now_);
  ASSERT_EQ(report.held.size(), 1u);
  EXPECT_EQ(cache->standings().state(kKernel.id), StandingState::kHeld);
}

TEST_F(ProbationTest, AKernelHeldForTheThirdTimeIsQuarantined) {
  for (int time = 1; time <= StandingStore::kHoldsMax; ++time) {
    auto cache = open();
    StandingStore& standings = cache->standings();
    const std::string run = "run-" + std::to_string(time);
    ASSERT_TRUE(standings.hold(kKernel, "crash", run, now_).ok());
    ASSERT_TRUE(standings.hold(kKernel, "crash", run, now_).ok());  // the same end, seen twice
    if (time == StandingStore::kHoldsMax) break;
    EXPECT_EQ(standings.state(kKernel.id), StandingState::kHeld);
    EXPECT_EQ(standings.find(kKernel.id)->times_held, time);
    ASSERT_TRUE(standings.clear_hold(kKernel, now_).ok());
    EXPECT_EQ(standings.state(kKernel.id), StandingState::kCleared);
  }
  auto cache = open();
  EXPECT_EQ(cache->standings().state(kKernel.id), StandingState::kQuarantined);
  EXPECT_EQ(cache->standings().find(kKernel.id)->reason, "held 3 times: crash");
}

TEST_F(ProbationTest, ADamagedQuarantineStillCondemns) {
  auto cache = open();
  ASSERT_TRUE(cache->standings().quarantine(kKernel, "slow", now_).ok());
  for (const auto& e : std::filesystem::directory_iterator(cache->home().path() + "/standings"))
    std::filesystem::resize_file(e.path(), 0);
  cache = open();
  EXPECT_EQ(cache->standings().state(kKernel.id), StandingState::kQuarantined);
  EXPECT_EQ(cache->standings().list().size(), 1u);
}

TEST_F(ProbationTest, AQuarantineReachesOtherProcessesAtTheirNextRefresh) {
  auto a = open(), b = open();
  ASSERT_TRUE(a->standings().quarantine(kKernel, "fault", now_).ok());
  EXPECT_EQ(b->standings().state(kKernel.id), StandingState::kClear);
  b->refresh();
  EXPECT_EQ(b->standings().state(kKernel.id), StandingState::kQuarantined);
  ASSERT_TRUE(a->standings().forget(kKernel.id).ok());
  b->refresh();
  EXPECT_EQ(b->standings().state(kKernel.id), StandingState::kClear);
}

TEST_F(ProbationTest, StandingsAreBounded) {
  // Names alone carry the state: the files can be made without their contents, which keeps this test quick.
  auto cache = open();
  const std::string directory = cache->home().path() + "/standings/";
  for (size_t i = 0; i <= StandingStore::kStandingMax; ++i) {
    const KernelId id = kernel_id("d", "k" + std::to_string(i), "");
    const int fd =
        ::open((directory + id.hex() + ".quarantined").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    ASSERT_GE(fd, 0);
    ::close(fd);
  }
  cache = open();
  ASSERT_TRUE(cache->standings().quarantine(kKernel, "the newest", now_).ok());
  EXPECT_EQ(cache->standings().state(kKernel.id), StandingState::kQuarantined);
  EXPECT_GT(cache->standings().dropped(), 0u);
  cache = open();
  EXPECT_EQ(cache->standings().state(kKernel.id), StandingState::kQuarantined);
  size_t files = 0;
  for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator(directory)) ++files;
  EXPECT_LE(files, StandingStore::kStandingMax);
}

}  // namespace
}  // namespace niche::kernels_cache
