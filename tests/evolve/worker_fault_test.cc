// The worker and its client when either end misbehaves or dies.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "evolve/definition_json.h"
#include "evolve/search/rng.h"
#include "evolve/session/local_session.h"
#include "evolve/store/store.h"
#include "evolve/worker/frame_channel.h"
#include "evolve/worker/process_tree.h"
#include "evolve/worker/protocol.h"
#include "evolve/worker_client.h"
#include "tests/evolve/temp_dir.h"
#include "tests/evolve/toy_op.h"

namespace niche::evolve {
namespace {

using dispatch::Code;
using Kind = SessionEvent::Kind;
using std::chrono::steady_clock;

WorkerOptions program(std::vector<std::string> args) {
  WorkerOptions o;
  o.program = NICHE_TEST_WORKER;
  o.args = std::move(args);
  return o;
}
std::unique_ptr<WorkerClient> spawn(std::vector<std::string> args) {
  auto c = WorkerClient::spawn(program(std::move(args)));
  if (!c.ok()) throw std::runtime_error(c.status().to_string());  // ends the test, not the program
  return std::move(*c);
}
// The next event within ten seconds.
SessionEvent next(WorkerClient& c) {
  auto e = c.poll(10'000);
  if (!e) throw std::runtime_error("no event within ten seconds");
  return *e;
}
SessionEvent last(WorkerClient& c) {
  for (;;) {
    SessionEvent e = next(c);
    if (e.kind == Kind::kDone || e.kind == Kind::kFailed) return e;
  }
}
// Whether the process ends within ten seconds; works for processes that are not our children.
bool ends(int pidfd) {
  pollfd p{pidfd, POLLIN, 0};
  return ::poll(&p, 1, 10'000) == 1;
}
int open_pid(pid_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }
std::string read_text(const std::string& path) {
  std::ifstream in(path);
  std::stringstream s;
  s << in.rdbuf();
  return s.str();
}
char process_state(pid_t pid) {
  const std::string stat = read_text("/proc/" + std::to_string(pid) + "/stat");
  const size_t at = stat.rfind(')');
  return at == std::string::npos || at + 2 >= stat.size() ? '?' : stat[at + 2];
}

class WorkerFault : public testing::Test {
 protected:
  WorkerFault() {
    std::filesystem::create_directory(dir_.path() + "/cache");
    std::filesystem::permissions(dir_.path() + "/cache", std::filesystem::perms::owner_all);
    testing_ops::ToyOp op;
    request_.session_id = "s1";
    request_.definition_json =
        definition_to_json(**dispatch::Definition::make(op.schema(), dispatch::kF32, {{"N", 64}}));
    request_.problems = {{{16}, 1, false}};
    request_.cache_dir = dir_.path() + "/cache";
    request_.store_path = dir_.path() + "/search.db";
    request_.wall_seconds_max = 30;
    request_.seed = 3;
  }
  TempDir dir_;
  SessionRequest request_;
};

TEST_F(WorkerFault, AnHonestSessionRunsToItsEnd) {
  auto c = spawn({"worker"});
  ASSERT_TRUE(c->start(request_).ok());
  EXPECT_EQ(c->start(request_).code(), Code::kBusy);
  int kernels = 0;
  SessionEvent e;
  do {
    e = next(*c);
    if (e.kind == Kind::kKernel) {
      ++kernels;
      EXPECT_FALSE(e.record_file.empty());
    }
  } while (e.kind != Kind::kDone && e.kind != Kind::kFailed);
  EXPECT_EQ(e.kind, Kind::kDone) << e.reason;
  EXPECT_GE(kernels, 1);
  EXPECT_EQ(e.kernels, kernels);
  EXPECT_FALSE(c->poll(0).has_value());  // nothing after the end
}

TEST_F(WorkerFault, TheWorkerMakesItselfSmall) {
  auto c = spawn({"worker", "50"});
  ASSERT_TRUE(c->start(request_).ok());
  next(*c);
  const std::string proc = "/proc/" + std::to_string(c->pid());
  EXPECT_EQ(read_text(proc + "/oom_score_adj"), "1000\n");
  EXPECT_EQ(::sched_getscheduler(c->pid()), SCHED_IDLE);
  EXPECT_EQ(::getsid(c->pid()), c->pid());
  EXPECT_NE(read_text(proc + "/limits").find("Max data size             4294967296"), std::string::npos);
  // Nothing of the server's but its socket and stderr; no secrets.
  int descriptors = 0;
  for (const auto& entry : std::filesystem::directory_iterator(proc + "/fd")) {
    const std::string target = std::filesystem::read_symlink(entry).string();
    const int fd = std::stoi(entry.path().filename());
    if (fd <= 3 || target.find(dir_.path()) != std::string::npos) continue;  // its own cache and store
    ++descriptors;
    ADD_FAILURE() << "descriptor " << fd << " -> " << target;
  }
  EXPECT_EQ(descriptors, 0);
}

TEST_F(WorkerFault, SecretsStayWithTheServer) {
  ::setenv("NICHE_TEST_API_KEY", "hunter2", 1);
  auto c = spawn({"worker", "50"});
  ::unsetenv("NICHE_TEST_API_KEY");
  const std::string env = read_text("/proc/" + std::to_string(c->pid()) + "/environ");
  EXPECT_NE(env.find("PATH="), std::string::npos);
  EXPECT_EQ(env.find("hunter2"), std::string::npos);
}

TEST_F(WorkerFault, EachMisbehaviourIsNamedAndLeavesNoProcess) {
  const struct {
    std::string how, says;
    Code code;
  } cases[] = {
      {"garbage", "worker message", Code::kCorrupt},
      {"huge", "claims 4294967295 bytes", Code::kCorrupt},
      {"old", "there niche 0.0.1, protocol 0", Code::kUnsupported},
      {"exit3", "ended with status 3", Code::kIo},
  };
  for (const auto& t : cases) {
    const auto c = WorkerClient::spawn(program({t.how}));
    ASSERT_FALSE(c.ok()) << t.how;
    EXPECT_EQ(c.status().code(), t.code) << t.how << ": " << c.status().to_string();
    EXPECT_NE(c.status().message().find(t.says), std::string::npos) << c.status().to_string();
  }
  WorkerOptions silent = program({"silent"});
  silent.handshake_timeout_ms = 200;
  const auto c = WorkerClient::spawn(silent);
  ASSERT_FALSE(c.ok());
  EXPECT_NE(c.status().message().find("no answer within 200 ms"), std::string::npos)
      << c.status().to_string();
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a worker was left behind";
  EXPECT_EQ(errno, ECHILD);
}

TEST_F(WorkerFault, NonsenseAfterTheHandshakeEndsTheSession) {
  for (const auto& [how, says] :
       {std::pair{"half", "ended inside a frame"}, std::pair{"chatter", "not an event"}}) {
    auto c = spawn({how});
    const SessionEvent e = next(*c);
    EXPECT_EQ(e.kind, Kind::kFailed);
    EXPECT_NE(e.reason.find(says), std::string::npos) << e.reason;
    EXPECT_FALSE(c->poll(0).has_value());
  }
}

// Permits 7, 8, ...: what became of each.
class CountedPermits final : public PermitSource {
 public:
  Permit ask(int64_t wanted_ns) override {
    ++out;
    return {next++, wanted_ns, 0};
  }
  void give_back(const Permit&) override { ++returned; }
  void revoke(const Permit&) override { ++revoked; }
  uint64_t next = 7;
  int out = 0, returned = 0, revoked = 0;
};

TEST_F(WorkerFault, PermitsComeBackWhateverTheWorkerDoesWithThem) {
  const auto run = [&](const std::string& how, CountedPermits& permits) {
    WorkerOptions o = program({how});
    o.permits = &permits;
    auto c = WorkerClient::spawn(o);
    if (!c.ok()) throw std::runtime_error(c.status().to_string());
    EXPECT_TRUE((*c)->start(request_).ok());
    for (int i = 0; i < 100; ++i)
      if (const auto e = (*c)->poll(1000)) return e->reason;
    return std::string("no end");
  };
  CountedPermits kept, twice, another, returned;
  (void)run("permit_kept", kept);
  EXPECT_EQ(kept.out, 1);
  EXPECT_EQ(kept.revoked, 1) << "its holder is gone";
  EXPECT_NE(run("permit_twice", twice).find("a second permit"), std::string::npos);
  EXPECT_EQ(twice.out, 1);
  EXPECT_EQ(twice.revoked, 1);
  EXPECT_NE(run("permit_another", another).find("does not hold"), std::string::npos);
  EXPECT_EQ(another.returned, 0);
  EXPECT_EQ(another.revoked, 1);
  (void)run("permit_returned", returned);
  EXPECT_EQ(returned.out, 2);
  EXPECT_EQ(returned.returned, 1);
  EXPECT_EQ(returned.revoked, 1);
}

TEST_F(WorkerFault, AWorkerWithoutADeviceThatAsksForOneIsEnded) {
  auto c = spawn({"permit_kept"});
  ASSERT_TRUE(c->start(request_).ok());
  EXPECT_NE(last(*c).reason.find("was not given"), std::string::npos);
}

TEST_F(WorkerFault, AMissingProgramIsNamed) {
  WorkerOptions o;
  o.program = "/no/such/niche";
  const auto c = WorkerClient::spawn(o);
  ASSERT_FALSE(c.ok());
  EXPECT_EQ(c.status().code(), Code::kNotFound);
  EXPECT_NE(c.status().message().find("/no/such/niche"), std::string::npos);
}

TEST_F(WorkerFault, DestroyingTheClientKillsChildrenInGroupsOfTheirOwn) {
  auto c = spawn({"offspring"});
  const pid_t child = std::stoi(next(*c).reason);
  ASSERT_NE(::getpgid(child), c->pid());
  const int child_fd = open_pid(child), worker_fd = open_pid(c->pid());
  ASSERT_GE(child_fd, 0);
  c.reset();
  EXPECT_TRUE(ends(child_fd));
  EXPECT_TRUE(ends(worker_fd));
  ::close(child_fd);
  ::close(worker_fd);
}

TEST_F(WorkerFault, AWorkerThatDiesTakesItsChildrenAlong) {
  auto c = spawn({"offspring"});
  const pid_t child = std::stoi(next(*c).reason);
  const int child_fd = open_pid(child);
  ::kill(c->pid(), SIGKILL);
  const SessionEvent e = next(*c);
  EXPECT_EQ(e.kind, Kind::kFailed);
  EXPECT_NE(e.reason.find("killed by signal 9"), std::string::npos) << e.reason;
  EXPECT_TRUE(ends(child_fd));
  ::close(child_fd);
}

TEST_F(WorkerFault, PauseStopsAllOfItAndTimeInPauseDoesNotCount) {
  auto c = spawn({"worker", "40"});
  request_.wall_seconds_max = 3;
  ASSERT_TRUE(c->start(request_).ok());
  next(*c);
  ASSERT_TRUE(c->pause().ok());
  const auto since = steady_clock::now();
  while (process_state(c->pid()) != 'T' && steady_clock::now() - since < std::chrono::seconds(5))
    std::this_thread::yield();
  EXPECT_EQ(process_state(c->pid()), 'T');
  while (c->poll(0)) {  // what it had said before
  }
  // Longer than the session's whole time. Nothing may come meanwhile.
  EXPECT_FALSE(c->poll(3500).has_value());
  EXPECT_EQ(process_state(c->pid()), 'T');
  ASSERT_TRUE(c->resume().ok());
  const SessionEvent first = next(*c);  // it goes on, instead of finding its time over
  EXPECT_TRUE(first.kind == Kind::kProgress || first.kind == Kind::kKernel) << first.reason;
  const SessionEvent e = last(*c);
  EXPECT_EQ(e.kind, Kind::kDone) << e.reason;
  // Its 3 s, and not the pause of 3.5 s as well.
  EXPECT_LT(e.seconds_used, 3.0 + 3.5);
}

TEST_F(WorkerFault, StopEndsTheSessionAtTheNextCandidate) {
  auto c = spawn({"worker", "100"});
  request_.evaluations_max = 100'000;
  ASSERT_TRUE(c->start(request_).ok());
  next(*c);
  ASSERT_TRUE(c->stop().ok());
  const SessionEvent e = last(*c);
  EXPECT_EQ(e.kind, Kind::kDone);
  EXPECT_EQ(e.reason, "stopped");
}

TEST_F(WorkerFault, TwoSessionsOfOneDefinitionExcludeEachOther) {
  auto a = spawn({"worker", "50"}), b = spawn({"worker", "50"});
  ASSERT_TRUE(a->start(request_).ok());
  next(*a);
  request_.session_id = "s2";
  ASSERT_TRUE(b->start(request_).ok());
  const SessionEvent e = last(*b);
  EXPECT_EQ(e.kind, Kind::kFailed);
  EXPECT_NE(e.reason.find("is being evolved by process " + std::to_string(a->pid())), std::string::npos)
      << e.reason;
}

TEST_F(WorkerFault, KillAtRandomMomentsLosesNothingCommitted) {
  search::Rng rng(11);
  std::vector<std::string> files;
  request_.resume = true;
  // A session can end while nobody listens: the store knows, whatever was read from the worker.
  const auto session_is_over = [&] {
    auto store = store::Store::open(request_.store_path);
    if (!store.ok()) throw std::runtime_error(store.status().to_string());
    auto row = (*store)->session("s1");
    return row.ok() && row->state != "running";
  };
  int kills = 0;
  bool over = false;
  while (!over) {
    ASSERT_LT(kills, 200);
    auto c = spawn({"worker", "8"});
    ASSERT_TRUE(c->start(request_).ok());
    SessionEvent e;
    for (size_t left = 1 + rng.below(3); left > 0 && e.kind != Kind::kDone; --left) {
      e = next(*c);
      ASSERT_NE(e.kind, Kind::kFailed) << e.reason;
      if (e.kind == Kind::kKernel) files.push_back(e.record_file);
    }
    const auto deadline = steady_clock::now() + std::chrono::microseconds(rng.below(12'000));
    while (steady_clock::now() < deadline) {
    }
    if (kills % 2 == 0) {  // otherwise the client goes, and takes the worker along
      ::kill(c->pid(), SIGKILL);
      while (e.kind != Kind::kDone && e.kind != Kind::kFailed) {
        e = next(*c);
        if (e.kind == Kind::kKernel) files.push_back(e.record_file);
      }
    }
    c.reset();
    over = session_is_over();
    kills += !over;
  }
  EXPECT_GE(kills, 5);
  ASSERT_FALSE(files.empty());
  // Every kernel that was announced is in the cache, and the store is whole.
  for (const std::string& file : files) {
    bool found = false;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(request_.cache_dir))
      found |= entry.path().filename() == file;
    EXPECT_TRUE(found) << file;
  }
}

// The server is a process of its own here; it is killed as a whole.
TEST_F(WorkerFault, TheWorkerDiesWithTheServerEvenWhilePaused) {
  for (const bool paused : {false, true}) {
    request_.session_id = paused ? "paused" : "running";
    int fds[2];
    ASSERT_EQ(::pipe(fds), 0);
    const pid_t server = ::fork();
    ASSERT_GE(server, 0);
    if (server == 0) {
      std::unique_ptr<WorkerClient> client;
      // Started by a thread that ends: the worker must not die with that one.
      std::thread([&] { client = std::move(*WorkerClient::spawn(program({"worker", "20"}))); }).join();
      const auto e = client->start(request_).ok() ? client->poll(10'000) : std::nullopt;
      if (!e || e->kind != Kind::kProgress) ::_exit(1);
      if (paused && !client->pause().ok()) ::_exit(2);
      const int pid = client->pid();
      if (::write(fds[1], &pid, sizeof pid) != sizeof pid) ::_exit(3);
      for (;;) ::pause();
    }
    ::close(fds[1]);
    int worker = 0;
    ASSERT_EQ(::read(fds[0], &worker, sizeof worker), static_cast<ssize_t>(sizeof worker));
    ::close(fds[0]);
    const int worker_fd = open_pid(worker);
    ASSERT_GE(worker_fd, 0);
    ::kill(server, SIGKILL);
    ASSERT_EQ(::waitpid(server, nullptr, 0), server);
    EXPECT_TRUE(ends(worker_fd)) << (paused ? "paused" : "running");
    ::close(worker_fd);
  }
}

TEST_F(WorkerFault, AForkedChildDoesNotTouchTheWorker) {
  auto c = spawn({"worker", "20"});
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool refused = c->start(request_).code() == Code::kUnsupported && !c->poll(0);
    c.reset();
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE(c->start(request_).ok());
  EXPECT_EQ(next(*c).kind, Kind::kProgress);
}

// A server that speaks nonsense to an honest worker.
TEST_F(WorkerFault, TheWorkerEndsCleanlyWhenTheServerSpeaksNonsense) {
  const std::string hello = worker::encode_hello(worker::own_hello());
  worker::Hello newer = worker::own_hello();
  newer.abi = 99;
  const struct {
    std::vector<std::string> says;
    int status;
  } cases[] = {
      {{"not json"}, 65},
      {{R"({"type":"stop"})"}, 65},
      {{worker::encode_hello(newer)}, 70},
      {{hello, R"({"type":"start"})"}, 65},
      {{hello, hello}, 65},
      {{hello, R"({"type":"stop"})"}, 0},
      {{hello}, 0},  // and then the server is gone
  };
  for (const auto& t : cases) {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      ::dup2(fds[1], 3);
      ::execl(NICHE_TEST_WORKER, NICHE_TEST_WORKER, "worker", nullptr);
      ::_exit(99);
    }
    ::close(fds[1]);
    {
      worker::FrameChannel channel(fds[0]);
      for (const std::string& text : t.says) {
        ASSERT_TRUE(channel.send(text, 1000).ok());
        if (text == hello && &text == &t.says.front()) {
          EXPECT_TRUE(channel.receive(10'000)->has_value());
        }
      }
    }
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFEXITED(status)) << t.says.back();
    EXPECT_EQ(WEXITSTATUS(status), t.status) << t.says.back();
  }
}

TEST(FrameChannel, RefusesWhatIsNoFrame) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  worker::FrameChannel a(fds[0]);
  EXPECT_EQ(a.send(std::string(worker::kFrameBytesMax + 1, 'x'), 0).code(), Code::kInvalid);
  EXPECT_FALSE(a.receive(0)->has_value());
  {
    worker::FrameChannel b(fds[1]);
    ASSERT_TRUE(b.send("", 0).ok());
    ASSERT_TRUE(b.send("two", 0).ok());
  }
  EXPECT_EQ(**a.receive(0), "");
  EXPECT_EQ(**a.receive(0), "two");
  EXPECT_EQ(a.receive(0).status().code(), Code::kNotFound);
  EXPECT_EQ(a.send("x", 0).code(), Code::kNotFound);
}

TEST(FrameChannel, AReaderThatStallsDoesNotBlockTheWriter) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  worker::FrameChannel a(fds[0]), b(fds[1]);
  const std::string message(64 << 10, 'm');
  int sent = 0;
  dispatch::Status s;
  while ((s = a.send(message, 0)).ok()) ASSERT_LT(++sent, 1000);
  EXPECT_EQ(s.code(), Code::kBusy);
  for (int i = 0; i < sent; ++i) ASSERT_TRUE(b.receive(1000)->has_value());
}

// Any bytes at all: a Status or a message, never more than 16 MiB held, never a crash.
TEST(FrameChannel, RandomBytesNeverCrash) {
  search::Rng rng(5);
  for (int round = 0; round < 300; ++round) {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    worker::FrameChannel a(fds[0]);
    std::string bytes(rng.below(200), '\0');
    for (char& c : bytes) c = static_cast<char>(rng.chance(0.5) ? rng.below(4) : rng.below(256));
    ASSERT_EQ(::send(fds[1], bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    ::close(fds[1]);
    for (;;) {
      const auto m = a.receive(0);
      if (!m.ok()) break;
      ASSERT_TRUE(m->has_value());
      (void)worker::decode(**m);
    }
  }
}

TEST(FindWorker, SaysWhereItLooked) {
  EXPECT_EQ(*find_worker_program(NICHE_TEST_WORKER), NICHE_TEST_WORKER);
  const auto missing = find_worker_program("/no/such/program");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
  EXPECT_NE(missing.status().message().find("/no/such/program"), std::string::npos);
  EXPECT_TRUE(find_worker_program("sh").ok());  // by PATH
  const auto here = find_worker_program("");
  if (!here.ok()) {
    EXPECT_NE(here.status().message().find("/niche"), std::string::npos);
  }
}

}  // namespace
}  // namespace niche::evolve
