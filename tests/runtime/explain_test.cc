// What a Runtime says of itself: which kernel serves a problem and why the others do not, why there is no session, and
// a cache that cannot be used.
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/runtime/planted_cache.h"

namespace niche::testing_ops {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class Explain : public AffineRuntime {
 protected:
  RuntimeConfig config() {
    RuntimeConfig c = AffineRuntime::config();
    c.cache_dir = dir.path();
    return c;
  }
  Explanation at(int64_t m) { return *runtime->explain(handle, {{"M", m}}); }
  TempDir dir;
};

TEST_F(Explain, AKernelThatWaitsIsTheReasonWhyTheLibraryServes) {
  plant(dir.path(), kN, {});
  start(config());
  const Explanation e = at(64);
  EXPECT_EQ(e.rung, "fallback");
  EXPECT_THAT(e.kernel, HasSubstr("fallback:"));
  // Its Guard holds here: that it does not would be a lie.
  EXPECT_THAT(e.why, AllOf(HasSubstr("affine.f32.affine_rows"), Not(HasSubstr("Guard holds here"))));
  ASSERT_EQ(e.kernels.size(), 1u);
  EXPECT_THAT(e.kernels[0].state, HasSubstr("waiting for its rollout"));
  EXPECT_EQ(e.kernels[0].guard, "M=1..4096, pointers at 4 bytes");
  EXPECT_EQ(e.kernels[0].verified_unix_ns, 1);
  EXPECT_THAT(e.to_text(), AllOf(HasSubstr("guard: M=1..4096"), HasSubstr("verified: 1970-01-01T00:00:00Z"),
                                 HasSubstr("its shadow begins with the next calls")));
  EXPECT_THAT(e.to_json(), AllOf(HasSubstr("\"guard\""), HasSubstr("\"verified_unix_ns\"")));
}

TEST_F(Explain, AKernelThatCannotBeginItsRolloutSaysWhy) {
  plant(dir.path(), kN, {});
  auto c = config();
  c.cache_read_only = true;
  start(c);
  const Explanation e = at(64);
  ASSERT_EQ(e.kernels.size(), 1u);
  EXPECT_EQ(e.kernels[0].state, "verified, not in service yet");
  EXPECT_THAT(e.kernels[0].reason,
              AllOf(HasSubstr("only reads"), HasSubstr("a server that may write to the cache")));
  EXPECT_EQ(e.cache, c.cache_dir + " (1 kernels, read only)");
  EXPECT_THAT(e.why, HasSubstr("verified here, but not in service"));
}

TEST_F(Explain, AnEmptyCacheIsNoFault) {
  auto c = config();
  c.cache_read_only = true;
  start(c);
  EXPECT_THAT(at(64).cache,
              AllOf(StartsWith(c.cache_dir + ": nothing of this environment ("), HasSubstr("is there yet")));
  runtime.reset();
  c.cache_dir += "/none";
  start(c);
  EXPECT_THAT(at(64).cache, AllOf(StartsWith("unusable: not_found"), HasSubstr("no such file")));
}

TEST_F(Explain, OutsideEveryGuardAndWithoutKernelsItSaysWhich) {
  start(config());
  EXPECT_EQ(at(64).why, "no verified kernel of this Definition is in the cache");
  runtime.reset();
  plant(dir.path(), kN, {.guard = rows(1, 32), .served_calls = 1000});
  start(config());
  const Explanation e = at(64);
  EXPECT_EQ(e.why, "no verified kernel's Guard holds here");
  ASSERT_EQ(e.kernels.size(), 1u);
  EXPECT_THAT(e.kernels[0].reason, HasSubstr("cannot serve this problem: guard"));
  EXPECT_EQ(e.kernels[0].guard, "M=1..32, pointers at 4 bytes");
  EXPECT_EQ(at(16).kernel, "affine.f32.affine_rows");
  EXPECT_EQ(at(16).kernels[0].state, "incumbent");
}

TEST_F(Explain, AnOperatorWithoutAFamilyAndAProposerHasNoSessions) {
  auto c = config();
  c.has_family = [](const Definition& d) { return d.schema().op != "affine"; };
  start(c);
  EXPECT_THAT(at(64).session, AllOf(HasSubstr("no family and no proposer"), HasSubstr("'affine'")));
  EXPECT_THAT(nlohmann::json::parse(runtime->status())["definitions"][0]["session"].get<std::string>(),
              HasSubstr("no family and no proposer"));
  runtime.reset();
  c.proposer = "exec:true";
  start(c);
  EXPECT_EQ(at(64).session, "none: not hot");
  EXPECT_EQ(nlohmann::json::parse(runtime->status())["proposer"]["asks"], "exec:true");
}

TEST_F(Explain, WithoutAFamilyAndAProposerNoSessionIsStarted) {
  auto c = config();
  c.evolve = true;
  c.worker_program = "/bin/false";
  c.has_family = [](const Definition& d) { return d.const_extents()[1] != kN; };
  start(c);
  auto other = runtime->op("affine", kF32, {{"N", kN / 2}});
  ASSERT_TRUE(other.ok());
  // This one is the hotter; a session for the other shows that sessions are started.
  AffineCall hot(4096, kN), cooler(2048, kN / 2);
  std::vector<std::string> started;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(90);
  while (started.empty() && std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 1000; ++i) {
      ASSERT_TRUE(call(hot).ok());
      ASSERT_TRUE(other->call(cooler.args()).ok());
    }
    const auto status = nlohmann::json::parse(runtime->status());
    for (const auto& e : status["events"])
      if (e["kind"] == "session started") started.push_back(e["definition"]);
  }
  EXPECT_EQ(started, std::vector<std::string>{other->definition().name()});
}

class Unusable : public Explain {
 protected:
  // What it printed while it started.
  std::string start_and_listen(RuntimeConfig c) {
    testing::internal::CaptureStderr();
    start(std::move(c));
    return testing::internal::GetCapturedStderr();
  }
  void expect_said(const std::string& what) {
    AffineCall call_(3, kN);
    EXPECT_TRUE(call(call_).ok());  // it serves all the same
    const auto cache = nlohmann::json::parse(runtime->status())["cache"];
    EXPECT_FALSE(cache["usable"].get<bool>());
    EXPECT_THAT(cache["problem"].get<std::string>(), HasSubstr(what));
    EXPECT_THAT(runtime->health().reason, HasSubstr(what));
    EXPECT_THAT(runtime->metrics(), AllOf(HasSubstr("niche_cache_usable{reason=\""), HasSubstr(what)));
    EXPECT_THAT(at(64).cache, HasSubstr(what));
  }
};

TEST_F(Unusable, AFileInItsPlaceIsSaidOnce) {
  auto c = config();
  c.cache_dir = dir.path() + "/file";
  std::ofstream(c.cache_dir) << "x";
  const std::string said = start_and_listen(c);
  EXPECT_THAT(said, AllOf(HasSubstr("niche: cache '" + c.cache_dir + "'"), HasSubstr("the library serves")));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  expect_said("file");
}

TEST_F(Unusable, ADirectoryThatOthersMayWriteToIsSaid) {
  auto c = config();
  c.cache_dir = dir.path() + "/open";
  ASSERT_EQ(::mkdir(c.cache_dir.c_str(), 0777), 0);
  ASSERT_EQ(::chmod(c.cache_dir.c_str(), 0777), 0);
  EXPECT_THAT(start_and_listen(c), HasSubstr(c.cache_dir));
  expect_said("open");
}

TEST_F(Unusable, ALogHookHearsItInstead) {
  struct Log final : dispatch::LogSink {
    void write(dispatch::LogLevel, std::string_view, std::string_view text) override { said += text; }
    std::string said;
  };
  auto c = config();
  const auto log = std::make_shared<Log>();
  c.log = log;
  c.cache_dir = dir.path() + "/file";
  std::ofstream(c.cache_dir) << "x";
  EXPECT_EQ(start_and_listen(c), "");
  EXPECT_THAT(log->said, HasSubstr("cache '" + c.cache_dir + "'"));
}

TEST_F(Unusable, AUsableOneSaysNothing) {
  EXPECT_EQ(start_and_listen(config()), "");
  EXPECT_THAT(runtime->metrics(), HasSubstr("niche_cache_usable{reason=\"open\"} 1"));
}

}  // namespace
}  // namespace niche::testing_ops
