// Several processes and threads over one directory at once.
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "kernels_cache/lease.h"
#include "kernels_cache/maintenance.h"
#include "test_support.h"

namespace niche::kernels_cache {
namespace {

using KernelCacheStress = CacheTest;

constexpr int kProcesses = 4;
constexpr int kRounds = 60;

// Child p commits records p*1000+i and, all of them, the shared ones 0..4 over and over.
int child(const CacheOptions& options, int p) {
  auto cache = KernelCache::open(options);
  if (!cache.ok()) return 2;
  std::mt19937 random(static_cast<unsigned>(p));
  for (int i = 0; i < kRounds; ++i) {
    if (!(*cache)->commit(test_record(1000 * (p + 1) + i, 500)).ok()) return 3;
    if (!(*cache)->commit(test_record(static_cast<int>(random() % 5), 500)).ok()) return 4;
    (*cache)->count_served(kernel_id(test_record(static_cast<int>(random() % 5))), 3);
    (*cache)->refresh();
    const auto shared = (*cache)->load(kernel_id(test_record(static_cast<int>(random() % 5))));
    if (shared && shared->artefact_sha256 != to_hex(sha256(shared->artefact))) return 5;
    const auto flushed = (*cache)->flush();
    if (!flushed.ok() && flushed.code() != dispatch::Code::kBusy) return 6;
  }
  for (int tries = 0; tries < 1'000'000; ++tries) {
    const auto flushed = (*cache)->flush();
    if (flushed.ok()) break;
    if (flushed.code() != dispatch::Code::kBusy) return 7;
  }
  const auto c = (*cache)->counters();
  for (MissReason bad : {MissReason::kCorrupt, MissReason::kTruncated, MissReason::kForeign, MissReason::kIo})
    if (c.misses[static_cast<size_t>(bad)] != 0) return 8;
  return 0;
}

TEST_F(KernelCacheStress, ProcessesThatWriteAtOnceLoseNothing) {
  { auto cache = open(); }
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) ::_exit(child(options(), p));
    children.push_back(pid);
  }
  for (pid_t pid : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "child ended with " << WEXITSTATUS(status);
  }
  auto cache = open();
  cache->refresh();
  EXPECT_EQ(cache->all().size(), static_cast<size_t>(kProcesses * kRounds + 5));
  const auto report = verify_entries(*cache, false);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->bad.empty());
}

TEST_F(KernelCacheStress, AKillAtAnyMomentLosesNothingAcknowledged) {
  std::mt19937 random(5);
  std::set<int> acknowledged;
  for (int round = 0; round < 25; ++round) {
    int pipe_fds[2];
    ASSERT_EQ(::pipe2(pipe_fds, O_CLOEXEC), 0);
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      auto cache = KernelCache::open(options());
      if (!cache.ok()) ::_exit(2);
      for (int i = round * 1000;; ++i) {
        if (!(*cache)->commit(test_record(i, 500)).ok()) ::_exit(3);
        if (::write(pipe_fds[1], &i, sizeof i) != sizeof i) ::_exit(4);
        const auto flushed = (*cache)->flush();
        if (!flushed.ok() && flushed.code() != dispatch::Code::kBusy) ::_exit(5);
      }
    }
    ::close(pipe_fds[1]);
    // The kill comes after a random number of acknowledgements: at a random point of the next commit or
    // flush.
    const int kill_after = static_cast<int>(random() % 12);
    int seen = 0;
    for (int i; seen <= kill_after && ::read(pipe_fds[0], &i, sizeof i) == sizeof i; ++seen)
      acknowledged.insert(i);
    ::kill(pid, SIGKILL);
    for (int i; ::read(pipe_fds[0], &i, sizeof i) == sizeof i;) acknowledged.insert(i);
    ::close(pipe_fds[0]);
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFSIGNALED(status)) << "child ended with " << WEXITSTATUS(status);
  }
  auto cache = open();
  cache->refresh();
  const auto report = verify_entries(*cache, false);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->bad.empty());
  for (int i : acknowledged) EXPECT_TRUE(cache->load(kernel_id(test_record(i)))) << i;
  EXPECT_GE(acknowledged.size(), 25u);
}

// Two processes remember problems, one after the other is killed: what was acknowledged is there, the file is whole.
TEST_F(KernelCacheStress, AKillWhileRememberingLosesNothingAcknowledged) {
  std::mt19937 random(6);
  std::set<int64_t> acknowledged;
  const auto problem = [](int64_t m) {
    SeenProblem p;
    p.axes[0] = m;
    p.last_unix_ns = m;
    return p;
  };
  { auto cache = open(); }
  struct Writer {
    pid_t pid;
    int from;
  };
  const auto begin = [&](int64_t first) {
    int pipe_fds[2];
    EXPECT_EQ(::pipe2(pipe_fds, O_CLOEXEC), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      auto cache = KernelCache::open(options());
      if (!cache.ok()) ::_exit(2);
      for (int64_t m = first;; ++m) {
        const auto merged = (*cache)->remember("d", {problem(m)});
        if (merged.code() == dispatch::Code::kBusy) continue;  // never acknowledged: the next one is another
        if (!merged.ok()) ::_exit(3);
        if (::write(pipe_fds[1], &m, sizeof m) != sizeof m) ::_exit(4);
      }
    }
    ::close(pipe_fds[1]);
    return Writer{pid, pipe_fds[0]};
  };
  for (int round = 0; round < 15; ++round) {
    const Writer writers[] = {begin(1 + round * 2'000'000), begin(1'000'001 + round * 2'000'000)};
    for (const Writer& w : writers) {
      const int kill_after = static_cast<int>(random() % 8);
      int n = 0;
      for (int64_t m; n <= kill_after && ::read(w.from, &m, sizeof m) == sizeof m; ++n)
        acknowledged.insert(m);
      ::kill(w.pid, SIGKILL);
      for (int64_t m; ::read(w.from, &m, sizeof m) == sizeof m;) acknowledged.insert(m);
      ::close(w.from);
      int status = 0;
      ASSERT_EQ(::waitpid(w.pid, &status, 0), w.pid);
      ASSERT_TRUE(WIFSIGNALED(status)) << "child ended with " << WEXITSTATUS(status);
    }
  }
  auto cache = open();
  std::set<int64_t> found;
  for (const SeenProblem& p : cache->seen("d")) found.insert(p.axes[0]);
  for (MissReason bad : {MissReason::kCorrupt, MissReason::kTruncated, MissReason::kForeign, MissReason::kIo})
    EXPECT_EQ(cache->counters().misses[static_cast<size_t>(bad)], 0u) << miss_reason_name(bad);
  EXPECT_GE(acknowledged.size(), 30u);
  size_t missing = 0;
  if (found.size() < SeenStore::kProblemsMax) {
    for (int64_t m : acknowledged) missing += found.count(m) == 0;
  } else {  // more than the bound were written: the latest are there
    for (auto m = acknowledged.rbegin(); m != acknowledged.rend() && *m > *found.begin(); ++m)
      missing += found.count(*m) == 0;
  }
  EXPECT_EQ(missing, 0u);
}

TEST_F(KernelCacheStress, AStoppedProcessDelaysNobody) {
  { auto cache = open(); }
  int pipe_fds[2];
  ASSERT_EQ(::pipe2(pipe_fds, O_CLOEXEC), 0);
  const pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {  // stops while it holds the index's lock
    auto cache = KernelCache::open(options());
    auto fd = posix_files().open(AT_FDCWD, (*cache)->home().path() + "/index.lock", O_RDWR | O_CREAT, 0600);
    if (!fd.ok() || !*posix_files().try_lock(*fd)) ::_exit(2);
    if (::write(pipe_fds[1], "x", 1) != 1) ::_exit(3);
    ::raise(SIGSTOP);
    ::_exit(0);
  }
  char c;
  ASSERT_EQ(::read(pipe_fds[0], &c, 1), 1);
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
  auto cache = open();
  EXPECT_TRUE(cache->commit(test_record(1)).ok());
  EXPECT_EQ(cache->flush().code(), dispatch::Code::kBusy);
  EXPECT_TRUE(cache->load(kernel_id(test_record(1))));
  ::kill(pid, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(cache->flush().ok());
}

TEST_F(KernelCacheStress, ThreadsShareOneCache) {
  auto cache = open();
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        const KernelRecord r = test_record(100 * t + i, 300);
        failures += !cache->commit(r).ok();
        cache->count_served(kernel_id(r), i);
        failures += !cache->load(kernel_id(r));
        failures +=
            !cache->standings().quarantine(kernel_ref(test_record(5000 + 100 * t + i)), "slow", now_).ok();
        cache->refresh();
        cache->hot_set();
        failures += !cache->flush().ok();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(failures.load(), 0);
  EXPECT_EQ(cache->all().size(), 100u);
  EXPECT_EQ(cache->standings().list().size(), 100u);
}

TEST_F(KernelCacheStress, ExactlyOneOfManyProcessesHoldsALease) {
  auto cache = open();
  const Directory& leases = *cache->leases();
  int to_parent[2], go[2];
  ASSERT_EQ(::pipe2(to_parent, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(go, O_CLOEXEC), 0);
  std::vector<pid_t> children;
  for (int p = 0; p < 6; ++p) {
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      ::close(go[1]);
      auto lease = Lease::try_acquire(leases, "d");
      const char answer = lease.ok() ? '1' : lease.status().code() == dispatch::Code::kBusy ? '0' : 'e';
      if (::write(to_parent[1], &answer, 1) != 1) ::_exit(2);
      char c;
      if (::read(go[0], &c, 1) != 0) ::_exit(3);  // hold it until the parent has counted
      ::_exit(0);
    }
    children.push_back(pid);
  }
  int holders = 0, errors = 0;
  for (size_t i = 0; i < children.size(); ++i) {
    char answer = 'e';
    ASSERT_EQ(::read(to_parent[0], &answer, 1), 1);
    holders += answer == '1';
    errors += answer == 'e';
  }
  for (int fd : {go[0], go[1], to_parent[0], to_parent[1]}) ::close(fd);
  for (pid_t pid : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(holders, 1);
  EXPECT_EQ(errors, 0);
}

}  // namespace
}  // namespace niche::kernels_cache
