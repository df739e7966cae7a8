// The control plane on planted kernels: warm start, rollout, rollback, quarantine, probation.
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/runtime/planted_cache.h"

namespace niche::testing_ops {
namespace {

using kernels_cache::StandingState;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class ControlPlane : public AffineRuntime {
 protected:
  RuntimeConfig config() {
    RuntimeConfig c = AffineRuntime::config();
    c.cache_dir = dir.path();
    c.tick_seconds = 0.005;
    c.shadow_one_in = 4;
    c.time_one_in = 2;
    return c;
  }
  nlohmann::json status() { return nlohmann::json::parse(runtime->status()); }
  // Calls with M=64 until `done`, at most `seconds`. `first` is put into x[0] of every call.
  template <typename Done>
  bool serve_until(Done done, double seconds, float first = 0.5F) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    AffineCall c(64, kN);
    c.x[0] = first;
    for (int64_t i = 0;; ++i) {
      EXPECT_TRUE(call(c).ok());
      if (i % 64 != 0) continue;
      if (done()) return true;
      if (std::chrono::steady_clock::now() > end) return false;
    }
  }
  std::string events() {
    std::string text;
    const nlohmann::json now = status();
    for (const auto& e : now["events"])
      text += e["kind"].get<std::string>() + ": " + e["text"].get<std::string>() + "\n";
    return text;
  }

  TempDir dir;
};

TEST_F(ControlPlane, AKernelThatServedBeforeAnswersTheFirstCall) {
  plant(dir.path(), kN, {.served_calls = 1000});
  start(config());
  AffineCall c(64, kN);
  ASSERT_TRUE(call(c).ok());
  EXPECT_EQ(op->runs[0], 0) << events();
  EXPECT_EQ(rung(Rung::kRegion), 1);
  EXPECT_LT(c.error(), 1e-6);
}

TEST_F(ControlPlane, AKernelOutsideThisEnvironmentIsNotServed) {
  plant(dir.path(), kN + 1, {.served_calls = 1000});  // another Definition
  start(config());
  AffineCall c(64, kN);
  ASSERT_TRUE(call(c).ok());
  EXPECT_EQ(op->runs[0], 1);
}

TEST_F(ControlPlane, AVerifiedKernelGoesThroughShadowAndCanaryToIncumbent) {
  plant(dir.path(), kN, {});
  start(config());
  ASSERT_TRUE(serve_until([&] { return status()["swaps"] == 1; }, 60)) << events();
  EXPECT_THAT(events(), AllOf(HasSubstr("shadow: "), HasSubstr("canary: "), HasSubstr("incumbent: ")));
  EXPECT_GT(status()["shadow"]["matched"], 0);
  ASSERT_TRUE(serve_until([&] { return rung(Rung::kExact) > 100; }, 20));
  const auto explained = runtime->explain(handle, {{"M", 64}});
  ASSERT_TRUE(explained.ok());
  EXPECT_EQ(explained->kernel, "affine.f32.affine_rows");
  EXPECT_EQ(explained->rung, "exact");
  const auto unseen = runtime->explain(handle, {{"M", 65}});
  EXPECT_EQ(unseen->rung, "region");
  const auto outside = runtime->explain(handle, {{"M", 5000}});
  EXPECT_EQ(outside->rung, "fallback");
}

TEST_F(ControlPlane, AWrongAnswerOnLiveTrafficRollsBackAndQuarantinesDurably) {
  const auto ref = plant(dir.path(), kN, {.symbol = "affine_wrong", .served_calls = 1000});
  start(config());
  ASSERT_TRUE(serve_until([&] { return rung(Rung::kExact) > 50; }, 20)) << events();
  ASSERT_TRUE(serve_until([&] { return status()["rollbacks"] == 1; }, 60, 42.0F)) << events();
  EXPECT_THAT(events(), AllOf(HasSubstr("wrong answer on live traffic"), HasSubstr("output 'y'")));
  const int before = op->runs[0];  // the comparisons of calls before may still run it
  const uint64_t evolved = rung(Rung::kExact);
  AffineCall c(64, kN);
  c.x[0] = 42.0F;
  ASSERT_TRUE(call(c).ok());
  EXPECT_GT(op->runs[0], before) << "the library answers from the rollback on";
  EXPECT_EQ(rung(Rung::kExact), evolved);
  EXPECT_LT(c.error(), 1e-5);
  runtime.reset();
  EXPECT_EQ(open_cache(dir.path())->standings().state(ref.id), StandingState::kQuarantined);
  start(config());
  const int restarted = op->runs[0];
  ASSERT_TRUE(call(c).ok());
  EXPECT_EQ(op->runs[0], restarted + 1) << "a quarantined kernel served after the restart";
}

TEST_F(ControlPlane, ASlowDownOnLiveTrafficRollsBackAndQuarantinesDurably) {
  const auto ref = plant(dir.path(), kN, {.symbol = "affine_slow"});
  start(config());
  ASSERT_TRUE(serve_until([&] { return status()["swaps"] == 1; }, 60)) << events();
  ASSERT_TRUE(serve_until([&] { return status()["rollbacks"] == 1; }, 120, 43.0F)) << events();
  EXPECT_THAT(events(), AllOf(HasSubstr("suspect"), HasSubstr("rolled back")));
  runtime.reset();
  EXPECT_EQ(open_cache(dir.path())->standings().state(ref.id), StandingState::kQuarantined);
}

TEST_F(ControlPlane, ACanaryThatIsSlowerNeverBecomesTheIncumbent) {
  const auto ref = plant(dir.path(), kN, {.symbol = "affine_slow"});
  start(config());
  ASSERT_TRUE(serve_until([&] { return status()["rollbacks"] == 1; }, 120, 43.0F)) << events();
  EXPECT_EQ(status()["swaps"], 0);
  runtime.reset();
  EXPECT_EQ(open_cache(dir.path())->standings().state(ref.id), StandingState::kQuarantined);
}

TEST_F(ControlPlane, AForcedKernelTakesEffectAtOnceAndUntilItIsReleased) {
  plant(dir.path(), kN, {});
  auto c = config();
  c.shadow_arena_bytes = 0;  // nothing is promoted meanwhile
  start(c);
  AffineCall x(64, kN);
  ASSERT_TRUE(call(x).ok());
  EXPECT_EQ(rung(Rung::kFallback), 1);
  ASSERT_TRUE(runtime->force("affine.f32.affine_rows").ok());
  ASSERT_TRUE(call(x).ok());
  EXPECT_EQ(rung(Rung::kForced), 1);
  EXPECT_EQ(rung(Rung::kFallback), 1);
  EXPECT_EQ(runtime->explain(handle, {{"M", 64}})->rung, "forced");
  ASSERT_TRUE(runtime->force("fallback").ok());
  ASSERT_TRUE(call(x).ok());
  EXPECT_EQ(reason(FallbackReason::kForced), 1);
  ASSERT_TRUE(runtime->force("").ok());
  ASSERT_TRUE(call(x).ok());
  EXPECT_EQ(reason(FallbackReason::kForced), 1);
  EXPECT_EQ(rung(Rung::kForced), 1);
  EXPECT_EQ(runtime->force("affine.f32.none").code(), Code::kNotFound);
}

TEST_F(ControlPlane, NicheForceOfTheEnvironmentTakesEffect) {
  plant(dir.path(), kN, {.served_calls = 1000});
  auto c = config();
  const char* environment[] = {"NICHE_FORCE=fallback", nullptr};
  ASSERT_TRUE(apply_environment(environment, &c).ok());
  start(c);
  AffineCall x(64, kN);
  ASSERT_TRUE(call(x).ok());
  EXPECT_EQ(op->runs[0], 1);
}

TEST_F(ControlPlane, WithoutAWorkerProgramEvolutionIsOffWithThatReason) {
  auto c = config();
  c.evolve = true;
  c.worker_program = "/no/such/niche";
  start(c);
  AffineCall x(64, kN);
  ASSERT_TRUE(call(x).ok());
  EXPECT_THAT(runtime->explain(handle, {{"M", 64}})->evolution,
              AllOf(HasSubstr("off: "), HasSubstr("/no/such/niche")));
  EXPECT_THAT(runtime->metrics(), HasSubstr("niche_evolution_on{reason=\"no worker program"));
}

TEST_F(ControlPlane, PackedKernelsServeFromTheFirstCallOnceTheirConstantsAreBound) {
  plant(dir.path(), kN, {.symbol = "affine_packed", .served_calls = 1000});
  start(config());
  AffineCall c(64, kN);
  ASSERT_TRUE(handle.bind_constant("w", c.w.view(), nullptr).ok());
  ASSERT_TRUE(handle.bind_constant("b", c.b.view(), nullptr).ok());
  ASSERT_TRUE(call(c).ok());
  EXPECT_EQ(op->runs[0], 0) << runtime->explain(handle, {{"M", 64}})->to_text();
  EXPECT_LT(c.error(), 1e-6);
}

TEST_F(ControlPlane, ProbationEndsAfterItsCallsAndTime) {
  const auto ref = plant(dir.path(), kN, {.served_calls = 1000});
  auto c = config();
  c.probation_calls = 500;
  c.probation_seconds = 0;
  start(c);
  ASSERT_TRUE(serve_until([&] { return events().find("probation served") != std::string::npos; }, 60))
      << events();
  runtime.reset();
  EXPECT_TRUE(open_cache(dir.path())->proven(ref.id));
}

TEST_F(ControlPlane, AReadOnlyCacheServesProvenKernelsAndWritesNothing) {
  const auto ref = plant(dir.path(), kN, {.served_calls = 1000});
  {
    auto cache = open_cache(dir.path());
    cache->set_proven(ref.id);
    ASSERT_TRUE(cache->flush().ok());
  }
  const auto listing = [&] {
    std::string text;
    for (const auto& e : std::filesystem::recursive_directory_iterator(dir.path()))
      if (e.is_regular_file())
        text +=
            e.path().string() + " " + std::to_string(e.last_write_time().time_since_epoch().count()) + "\n";
    return text;
  };
  const std::string before = listing();
  auto c = config();
  c.cache_read_only = true;
  start(c);
  AffineCall x(64, kN);
  ASSERT_TRUE(call(x).ok());
  EXPECT_EQ(op->runs[0], 0) << events();
  EXPECT_THAT(runtime->explain(handle, {{"M", 64}})->evolution, HasSubstr("off"));
  runtime.reset();
  EXPECT_EQ(listing(), before);
}

// A restart knows the problems that were seen. The kernel's gain is no more than 10 % wherever it was timed but at 64
// rows, so that it answers no region: a problem that nobody has asked for is the library's.
class Restarted : public ControlPlane {
 protected:
  void SetUp() override {
    const auto ref =
        plant(dir.path(), kN, {.served_calls = 1000, .timed = {{4, 1.1}, {64, 3}, {512, 1.1}, {2048, 0.8}}});
    auto cache = open_cache(dir.path());
    cache->set_proven(ref.id);
    ASSERT_TRUE(cache->flush().ok());
  }
  enum By { kKernel, kLibrary };
  class Lines final : public dispatch::LogSink {
   public:
    void write(LogLevel, std::string_view, std::string_view text) override {
      std::lock_guard<std::mutex> lock(mutex_);
      text_.append(text) += '\n';
    }
    std::string text() const {
      std::lock_guard<std::mutex> lock(mutex_);
      return text_;
    }

   private:
    mutable std::mutex mutex_;
    std::string text_;
  };
  RuntimeConfig config() {
    RuntimeConfig c = ControlPlane::config();
    c.shadow_arena_bytes = 0;  // no live comparison interferes
    return c;
  }
  // Who answers one call.
  By answers(Runtime& r, const OpHandle& h, int64_t m) {
    const auto library = [&] { return r.dispatcher().totals().by_rung[static_cast<int>(Rung::kFallback)]; };
    const uint64_t before = library();
    AffineCall c(m, kN);
    EXPECT_TRUE(h.call(c.args()).ok());
    EXPECT_LT(c.error(), 1e-5);
    return library() == before ? kKernel : kLibrary;
  }
  By answers(int64_t m) { return answers(*runtime, handle, m); }
  // Calls with m rows until `done`.
  template <typename Done>
  bool ask(int64_t m, Done done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    AffineCall c(m, kN);
    while (!done()) {
      EXPECT_TRUE(call(c).ok());
      if (std::chrono::steady_clock::now() > end) return false;
    }
    return true;
  }
  bool ask_until_the_kernel_answers(int64_t m) {
    return ask(m, [&] {
      return runtime->explain(handle, {{"M", m}})->rung == "exact" && answers(m) == kKernel;
    });
  }
  std::vector<int64_t> remembered() {
    std::vector<int64_t> m;
    for (const auto& p : open_cache(dir.path())->seen(handle.definition().name())) m.push_back(p.axes[0]);
    std::sort(m.begin(), m.end());
    return m;
  }
  std::string seen_file() {
    for (const auto& e : std::filesystem::recursive_directory_iterator(dir.path()))
      if (e.path().extension() == ".seen") return e.path().string();
    return {};
  }
};

TEST_F(Restarted, ASeenProblemIsAnsweredByTheKernelAtItsFirstCallAnUnseenOneByTheLibrary) {
  start(config());
  EXPECT_EQ(answers(70), kLibrary) << "nobody has asked for it yet";
  ASSERT_TRUE(ask_until_the_kernel_answers(70)) << events();
  // Timed, and slower there; and one that lies between.
  for (const int64_t m : {2048, 200})
    ASSERT_TRUE(ask(m, [&] { return std::ranges::count(remembered(), m) == 1; })) << events();
  runtime.reset();
  EXPECT_EQ(remembered(), (std::vector<int64_t>{70, 200, 2048}));

  start(config());
  EXPECT_EQ(runtime->explain(handle, {{"M", 70}})->rung, "exact");
  EXPECT_EQ(answers(70), kKernel) << events();
  EXPECT_EQ(rung(Rung::kExact), 1u);
  EXPECT_EQ(answers(2048), kLibrary) << "it was measured to lose there";
  EXPECT_EQ(answers(200), kLibrary) << "seen, and as far from what was timed as before";
  EXPECT_EQ(answers(66), kLibrary) << "unseen";
  EXPECT_EQ(answers(1500), kLibrary) << "unseen and far";
  runtime.reset();

  // That it is the list which does it:
  std::filesystem::remove(seen_file());
  start(config());
  EXPECT_EQ(answers(70), kLibrary);
}

TEST_F(Restarted, AKilledProcessLosesOnlyWhatItSawLast) {
  ::testing::FLAGS_gtest_death_test_style = "fast";
  EXPECT_EXIT(
      {
        start(config());
        if (!ask(70, [&] { return !remembered().empty(); })) std::exit(7);
        std::raise(SIGKILL);
      },
      ::testing::KilledBySignal(SIGKILL), "");
  start(config());
  EXPECT_EQ(answers(70), kKernel) << events();
}

TEST_F(Restarted, ADamagedListIsToldAndCostsNothingElse) {
  start(config());
  ASSERT_TRUE(ask_until_the_kernel_answers(70)) << events();
  runtime.reset();
  std::filesystem::resize_file(seen_file(), 100);
  auto c = config();
  const auto log = std::make_shared<Lines>();
  c.log = log;
  start(c);
  EXPECT_THAT(log->text(), AllOf(HasSubstr("miss (truncated)"), HasSubstr(".seen")));
  EXPECT_EQ(answers(70), kLibrary);
  ASSERT_TRUE(ask_until_the_kernel_answers(70)) << events();
  runtime.reset();
  start(config());
  EXPECT_EQ(answers(70), kKernel) << "written anew";
}

TEST_F(Restarted, ServersOfOneCacheRememberForEachOther) {
  start(config());
  auto other = Runtime::create(config());
  ASSERT_TRUE(other.ok());
  auto others = (*other)->op("affine", kF32, {{"N", kN}});
  ASSERT_TRUE(others.ok());
  ASSERT_TRUE(ask_until_the_kernel_answers(70)) << events();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (answers(**other, *others, 60) != kKernel) ASSERT_LT(std::chrono::steady_clock::now(), end);
  std::thread first([&] { runtime.reset(); });
  other->reset();
  first.join();
  start(config());
  EXPECT_EQ(answers(60), kKernel);
  EXPECT_EQ(answers(70), kKernel);
}

TEST_F(Restarted, AReadOnlyCacheServesWhatItWasShippedWith) {
  start(config());
  ASSERT_TRUE(ask_until_the_kernel_answers(70)) << events();
  runtime.reset();
  auto c = config();
  c.cache_read_only = true;
  start(c);
  EXPECT_EQ(answers(70), kKernel);
}

// A kernel that faults in the server. The dying process is a re-execution of this test.
class Faulting : public ControlPlane {
 protected:
  void serve_and_die() {
    start(config());
    AffineCall c(64, kN);
    ASSERT_TRUE(call(c).ok());
    c.x[0] = 44.0F;
    (void)call(c);
    std::exit(7);  // it lived
  }
};

TEST_F(Faulting, TheRestartServesWithoutTheKernelAndASecondCrashMeansFallbacksAlone) {
  ::testing::FLAGS_gtest_death_test_style = "fast";
  const auto ref = plant(dir.path(), kN, {.symbol = "affine_fault", .served_calls = 1000});
  EXPECT_EXIT(serve_and_die(), ::testing::KilledBySignal(SIGSEGV), "");
  start(config());
  AffineCall c(64, kN);
  c.x[0] = 44.0F;
  ASSERT_TRUE(call(c).ok());
  EXPECT_EQ(op->runs[0], 1);
  EXPECT_LT(c.error(), 1e-5);
  EXPECT_EQ(status()["startup"]["held"][0], "affine.f32.affine_fault");
  EXPECT_THAT(runtime->explain(handle, {{"M", 64}})->to_text(),
              AllOf(HasSubstr("affine_fault"), HasSubstr("held")));
  EXPECT_TRUE(runtime->health().ok);
  runtime.reset();
  EXPECT_EQ(open_cache(dir.path())->standings().state(ref.id), StandingState::kHeld);

  plant(dir.path(), kN, {.symbol = "affine_rows", .served_calls = 1000});
  EXPECT_EXIT(
      {
        start(config());
        AffineCall x(64, kN);
        (void)call(x);
        std::raise(SIGKILL);
      },
      ::testing::KilledBySignal(SIGKILL), "");
  start(config());
  const int before = op->runs[0];
  ASSERT_TRUE(call(c).ok());
  EXPECT_EQ(op->runs[0], before + 1);
  EXPECT_EQ(reason(FallbackReason::kProbation), 1);
  EXPECT_EQ(status()["startup"]["fallbacks_only"], true);
  EXPECT_THAT(runtime->explain(handle, {{"M", 64}})->why, AnyOf(HasSubstr("fallback"), HasSubstr("unclean")));
}

TEST_F(ControlPlane, HttpServesMetricsStatusAndHealth) {
  auto c = config();
  c.http_address = "127.0.0.1:0";
  start(c);
  ASSERT_GT(runtime->http_port(), 0);
  const std::string url = "http://127.0.0.1:" + std::to_string(runtime->http_port());
  const auto get = [&](const std::string& path) {
    const std::string command = "curl -s " + url + path;
    FILE* pipe = popen(command.c_str(), "r");
    std::string text;
    char buffer[4096];
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, n);
    pclose(pipe);
    return text;
  };
  EXPECT_THAT(get("/metrics"), AllOf(HasSubstr("niche_calls_total{rung=\"region\"} 0"),
                                     HasSubstr("# TYPE niche_swaps_total counter")));
  EXPECT_EQ(get("/health"), "ok\n");
  EXPECT_EQ(nlohmann::json::parse(get("/status"))["evolution"], "off: switched off (evolve = false)");
  EXPECT_THAT(get("/other"), HasSubstr("not found"));
}

// Clients that send a byte now and then, and clients that ask without end on connections that they would keep.
TEST_F(ControlPlane, ClientsThatKeepTalkingDoNotShutAScraperOut) {
  auto c = config();
  c.http_address = "127.0.0.1:0";
  start(c);
  const int port = runtime->http_port();
  const auto connected = [port] {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{60, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    return fd;
  };
  std::atomic<bool> stop{false};
  std::atomic<int> cut{0}, answered{0};
  const auto trickle = [&](int fd) {
    const std::string begin = "GET /metrics HTTP/1.1\r\nX: ";
    (void)!::send(fd, begin.data(), begin.size(), MSG_NOSIGNAL);
    while (!stop) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      if (::send(fd, "x", 1, MSG_NOSIGNAL) == 1) continue;
      ++cut;
      break;
    }
    ::close(fd);
  };
  const auto insist = [&] {
    while (!stop) {
      const int fd = connected();
      const std::string ask = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
      char reply[4096];
      while (!stop && ::send(fd, ask.data(), ask.size(), MSG_NOSIGNAL) > 0 &&
             ::recv(fd, reply, sizeof reply, 0) > 0)
        ++answered;
      ::close(fd);
    }
  };
  std::vector<std::thread> clients;
  for (int i = 0; i < 16; ++i) clients.emplace_back(trickle, connected());
  for (int i = 0; i < 4; ++i) clients.emplace_back(insist);
  const std::string url = "http://127.0.0.1:" + std::to_string(port) + "/metrics";
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(std::system(("curl -s -f -m 60 -o /dev/null " + url).c_str()), 0) << "scrape " << i;
  // A client learns of it by its second byte after the cut.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (cut == 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  stop = true;
  for (std::thread& t : clients) t.join();
  EXPECT_GT(cut, 0) << "every thread had a client that never ended its request";
  EXPECT_GT(answered, 0);
}

TEST_F(ControlPlane, AForcedKernelThatArrivesLaterIsForcedThen) {
  auto c = config();
  c.force = "affine.f32.affine_rows";
  c.shadow_arena_bytes = 0;      // nothing is promoted meanwhile
  (void)open_cache(dir.path());  // the directory of an environment with a compiler: this server has none
  start(c);
  AffineCall x(64, kN);
  ASSERT_TRUE(call(x).ok());
  EXPECT_EQ(rung(Rung::kForced), 0);
  EXPECT_THAT(events(), HasSubstr("force without effect"));
  plant(dir.path(), kN, {});  // as another process commits it
  ASSERT_TRUE(serve_until([&] { return rung(Rung::kForced) > 0; }, 60)) << events();
  EXPECT_EQ(runtime->explain(handle, {{"M", 64}})->rung, "forced");
  EXPECT_THAT(events(), HasSubstr("forced: affine.f32.affine_rows"));
}

// The cache directory is moved, replaced or removed under a server.
class MovedCache : public ControlPlane {
 protected:
  RuntimeConfig config() {
    RuntimeConfig c = ControlPlane::config();
    c.cache_dir = path;
    return c;
  }
  bool recovers() {
    return serve_until([&] { return events().find("cache moved") != std::string::npos; }, 60);
  }
  std::string path = dir.path() + "/cache", elsewhere = dir.path() + "/old";
};

TEST_F(MovedCache, ARenamedDirectoryIsNoticedAndWhatServesIsInTheNextOne) {
  std::filesystem::create_directory(path);
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  plant(path, kN, {.served_calls = 1000});
  start(config());
  ASSERT_TRUE(serve_until([&] { return rung(Rung::kExact) > 50; }, 20)) << events();
  std::filesystem::rename(path, elsewhere);
  ASSERT_TRUE(recovers()) << events();
  EXPECT_THAT(events(), AllOf(HasSubstr("cache lost: "), HasSubstr("was renamed or removed"),
                              HasSubstr("1 kernels are in it, 0 live in memory alone")));
  EXPECT_THAT(runtime->metrics(),
              AllOf(HasSubstr("niche_cache_moves_total 1"), HasSubstr("niche_cache_lost 0")));
  EXPECT_EQ(status()["cache"]["problem"], "");
  EXPECT_EQ(status()["cache"]["entries"], 1);
  // It serves on, and what another process commits to the directory of that name is found.
  const uint64_t served = rung(Rung::kExact);
  plant(path, kN, {.symbol = "affine_slow", .speedup = 9});
  ASSERT_TRUE(serve_until([&] { return events().find("affine_slow") != std::string::npos; }, 60)) << events();
  EXPECT_GT(rung(Rung::kExact), served);
  runtime.reset();
  start(config());
  const int before = op->runs[0];
  AffineCall c(64, kN);
  ASSERT_TRUE(call(c).ok());
  EXPECT_EQ(op->runs[0], before) << "the restart serves it from the first call";
}

TEST_F(MovedCache, QuarantinesMoveAlong) {
  std::filesystem::create_directory(path);
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  const auto ref = plant(path, kN, {.symbol = "affine_wrong", .served_calls = 1000});
  start(config());
  ASSERT_TRUE(serve_until([&] { return status()["rollbacks"] == 1; }, 60, 42.0F)) << events();
  std::filesystem::rename(path, elsewhere);
  ASSERT_TRUE(recovers()) << events();
  EXPECT_EQ(open_cache(path)->standings().state(ref.id), StandingState::kQuarantined);
}

TEST_F(MovedCache, ARemovedDirectoryIsMadeAgainAndTheKernelServesOn) {
  std::filesystem::create_directory(path);
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  plant(path, kN, {.served_calls = 1000});
  start(config());
  ASSERT_TRUE(serve_until([&] { return rung(Rung::kExact) > 50; }, 20)) << events();
  std::filesystem::remove_all(path);
  ASSERT_TRUE(recovers()) << events();
  EXPECT_THAT(events(), HasSubstr("0 kernels are in it, 1 live in memory alone"));
  const int before = op->runs[0];
  const uint64_t served = rung(Rung::kExact);
  ASSERT_TRUE(serve_until([&] { return rung(Rung::kExact) > served + 50; }, 20)) << events();
  EXPECT_LT(op->runs[0] - before, 10) << "the library took over";
}

TEST_F(MovedCache, WhereNoneCanBeOpenedItSaysSoUntilItIsBack) {
  std::filesystem::create_directory(path);
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  plant(path, kN, {.served_calls = 1000});
  auto c = config();
  c.cache_read_only = true;
  c.state_dir = dir.path() + "/state";
  start(c);
  ASSERT_TRUE(serve_until([&] { return rung(Rung::kExact) > 50; }, 20)) << events();
  std::filesystem::rename(path, elsewhere);
  ASSERT_TRUE(serve_until([&] { return !status()["cache"]["problem"].get<std::string>().empty(); }, 60));
  EXPECT_THAT(runtime->explain(handle, {{"M", 64}})->cache,
              HasSubstr("was renamed or removed, and no other"));
  EXPECT_THAT(runtime->metrics(), HasSubstr("niche_cache_lost 1"));
  EXPECT_FALSE(runtime->health().reason.empty());
  const uint64_t served = rung(Rung::kExact);
  ASSERT_TRUE(serve_until([&] { return rung(Rung::kExact) > served + 50; }, 20)) << "it serves from memory";
  std::filesystem::rename(elsewhere, path);
  ASSERT_TRUE(serve_until([&] { return status()["cache"]["problem"] == ""; }, 60)) << events();
  EXPECT_THAT(events(), HasSubstr("is there again"));
}

}  // namespace
}  // namespace niche::testing_ops
