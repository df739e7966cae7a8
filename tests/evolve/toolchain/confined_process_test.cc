#include "evolve/toolchain/confined_process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <fstream>

namespace niche::evolve {
namespace {

ConfinedResult run(std::vector<std::string> argv, double wall_seconds = 20, int landlock_fd = -1) {
  ConfinedCommand c;
  c.argv = std::move(argv);
  c.working_dir = "/tmp";
  c.wall_seconds = wall_seconds;
  c.landlock_fd = landlock_fd;
  auto r = run_confined(c);
  EXPECT_TRUE(r.ok()) << r.status().to_string();
  return r.ok() ? *r : ConfinedResult();
}

TEST(ConfinedProcess, OutputAndExitCodeComeBack) {
  const auto r = run({"/bin/sh", "-c", "echo out; echo err >&2; exit 3"});
  EXPECT_EQ(r.output, "out\nerr\n");
  EXPECT_EQ(r.exit_code, 3);
}

TEST(ConfinedProcess, EnvironmentHoldsNoSecret) {
  setenv("NICHE_TEST_SECRET", "hunter2", 1);
  EXPECT_EQ(run({"/usr/bin/env"}).output.find("hunter2"), std::string::npos);
}

TEST(ConfinedProcess, WallLimitKillsTheWholeGroup) {
  const auto start = std::chrono::steady_clock::now();
  const auto r = run({"/bin/sh", "-c", "sleep 100 & sleep 100"}, 0.2);
  EXPECT_TRUE(r.timed_out);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(ConfinedProcess, EndsWhenTheCallerWantsNoMore) {
  ConfinedCommand c;
  c.argv = {"/bin/sh", "-c", "echo begun; sleep 100 & sleep 100"};
  c.working_dir = "/tmp";
  int asked = 0;
  c.keep_going = [&] { return ++asked < 4; };
  const auto r = run_confined(c);
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_TRUE(r->stopped);
  EXPECT_FALSE(r->timed_out);
  EXPECT_EQ(r->output, "begun\n");
  EXPECT_EQ(asked, 4);
}

TEST(ConfinedProcess, HelperLeftBehindDoesNotOutliveTheCommand) {
  // The helper closes the captured output, so that only the kill of the group can end it.
  const auto r = run({"/bin/sh", "-c", "sleep 100 >/dev/null 2>&1 & echo $!"});
  const pid_t helper = std::stoi(r.output);
  // SIGKILL was sent; the descriptor tells when it has taken effect. No descriptor: gone and reaped already.
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, helper, 0));
  if (fd < 0) return;
  pollfd ended{fd, POLLIN, 0};
  EXPECT_EQ(poll(&ended, 1, 10'000), 1) << "process " << helper << " still runs";
  close(fd);
}

TEST(ConfinedProcess, LandlockKeepsOtherFilesUnread) {
  const int fd = make_landlock_ruleset({"/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache"}, {"/dev/null"});
  if (fd < 0) GTEST_SKIP() << "no Landlock in this kernel";
  EXPECT_EQ(run({"/bin/cat", "/etc/passwd"}, 20, fd).output.find("root:"), std::string::npos);
  EXPECT_NE(run({"/bin/cat", "/etc/passwd"}).output.find("root:"), std::string::npos);
  EXPECT_EQ(run({"/bin/sh", "-c", "echo x > /tmp/niche_landlock_probe && echo written"}, 20, fd)
                .output.find("written"),
            std::string::npos);
  close(fd);
}

TEST(ConfinedProcess, ProgramThatIsNotThereIsAnError) {
  ConfinedCommand c;
  c.argv = {"/no/such/program"};
  auto r = run_confined(c);
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), dispatch::Code::kIo);
}

}  // namespace
}  // namespace niche::evolve
