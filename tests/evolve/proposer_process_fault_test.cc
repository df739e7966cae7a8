// Proposers across the process boundary: answers, failures and ends of the process that asks, and what it keeps to itself.
#include "evolve/proposer/proposer_process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "evolve/proposer/secrets.h"
#include "tests/evolve/misbehaving_server.h"
#include "tests/evolve/seconds_of.h"
#include "tests/evolve/temp_dir.h"

namespace niche::evolve::proposer {
namespace {

using dispatch::Code;
using dispatch::Result;

// For an account: whoever gets it sooner did not wait it out.
constexpr double kFinishSeconds = 10;

ProposalRequest request(double seconds = 20) {
  return {"s-p1", "draft", "stable rules", "the question", "", seconds, 100};
}

ProposerProcessOptions process(const std::string& spec) {
  ProposerProcessOptions o;
  o.program = "/proc/self/exe";
  o.args = {"proposer"};
  o.spec = spec;
  return o;
}

std::optional<Result<ProposalReply>> wait(ProposalSource& s) {
  for (int i = 0; i < 300; ++i)
    if (auto r = s.poll(100)) return r;
  return std::nullopt;
}

TEST(ProposerProcess, AnswersWithoutHoldingUpTheSession) {
  TempDir dir;
  const std::string asked_for = dir.path() + "/asked_for";
  auto s = start_proposer_process(
      process("exec:until [ -e " + asked_for +
              " ]; do sleep 0.01; done; echo answer; exit $(( $(cat | wc -c) == 0 ))"));
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  ASSERT_TRUE((*s)->idle());
  ASSERT_TRUE((*s)->start(request()).ok());
  EXPECT_FALSE((*s)->idle());
  EXPECT_FALSE((*s)->poll(0).has_value());
  std::ofstream(asked_for) << "now";
  const auto r = wait(**s);
  ASSERT_TRUE(r && r->ok());
  EXPECT_EQ((*r)->text, "answer\n");
  EXPECT_TRUE((*s)->idle());
}

TEST(ProposerProcess, FailuresComeBackAndLastingOnesEndIt) {
  auto s = start_proposer_process(process("exec:exit 9"));
  ASSERT_TRUE(s.ok());
  ASSERT_TRUE((*s)->start(request()).ok());
  auto r = wait(**s);
  ASSERT_TRUE(r && !r->ok());
  EXPECT_FALSE((*s)->ended());
  auto t = start_proposer_process(process("exec:/no/such/program"));
  ASSERT_TRUE((*t)->start(request()).ok());
  ASSERT_TRUE(wait(**t));
  EXPECT_TRUE((*t)->ended());
  EXPECT_FALSE(start_proposer_process(process("what:is this")).ok());
  // Nobody waits for its first word: what is wrong is what came of the first question.
  auto unheard = process("what:is this");
  unheard.hello_seconds_max = 0;
  auto u = start_proposer_process(unheard);
  ASSERT_TRUE(u.ok()) << u.status().to_string();
  if (const auto asked = (*u)->start(request()); asked.ok()) {
    r = wait(**u);
    ASSERT_TRUE(r && !r->ok());
    EXPECT_NE(r->status().message().find("what:is this"), std::string::npos) << r->status().to_string();
  } else {
    EXPECT_NE(asked.message().find("what:is this"), std::string::npos) << asked.to_string();
  }
  EXPECT_TRUE((*u)->ended());
  auto missing = process("exec:true");
  missing.program = "/no/such/niche";
  EXPECT_EQ(start_proposer_process(missing).status().code(), Code::kNotFound);
}

TEST(ProposerProcess, ItsDeathIsTheEndOfModelsNotOfTheSession) {
  auto s = start_proposer_process(process("exec:kill -9 $PPID"));
  ASSERT_TRUE(s.ok());
  ASSERT_TRUE((*s)->start(request()).ok());
  const auto r = wait(**s);
  ASSERT_TRUE(r && !r->ok());
  EXPECT_TRUE((*s)->ended());
}

TEST(ProposerProcess, GoesWithTheSession) {
  auto s = start_proposer_process(process("exec:sleep 1000"));
  ASSERT_TRUE((*s)->start(request(900)).ok());
  EXPECT_LT(seconds_of([&] { s->reset(); }), 5);
}

// The account comes in time, or there is no time for it: then the most that the question may have cost counts.
TEST(ProposerProcess, TellsWhatAQuestionCostThatItGaveUp) {
  for (const double seconds : {kFinishSeconds, 0.0}) {
    MisbehavingServer server;
    server.then([&server](int, const std::string&) {
      while (!server.stopping()) ::poll(nullptr, 0, 10);
    });
    auto o = process("openai:" + server.url() + "/v1#m");
    o.price = {1, 1};
    o.budget.usd_max = 1;
    auto s = start_proposer_process(o);
    ASSERT_TRUE(s.ok()) << s.status().to_string();
    ASSERT_TRUE((*s)->start_from({10, 20, 0, 0.5, false}).ok());
    ASSERT_TRUE((*s)->spent());
    EXPECT_NEAR((*s)->spent()->usd, 0.5, 1e-9);
    ASSERT_TRUE((*s)->start(request(900)).ok());
    for (int i = 0; i < 6000 && server.requests().empty(); ++i) ::poll(nullptr, 0, 5);
    ASSERT_FALSE(server.requests().empty()) << "the question did not go out";
    EXPECT_LT(seconds_of([&] { (*s)->finish(seconds); }), std::max(1.0, seconds));
    EXPECT_TRUE((*s)->ended());
    EXPECT_GT((*s)->spent()->usd, 0.5 + 100e-6);
    EXPECT_LT((*s)->spent()->usd, 0.501);
    (*s)->finish(seconds);  // has nothing left to do
  }
}

TEST(ProposerProcess, AnAccountKnowsWhatWasSpentBeforeItsFirstWord) {
  MisbehavingServer server;
  server.then(MisbehavingServer::answer(401, "{}"));
  auto o = process("openai:" + server.url() + "/v1#m");
  o.price = {1, 1};
  o.budget.usd_max = 1;
  o.hello_seconds_max = 0;
  auto s = start_proposer_process(o);
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  ASSERT_TRUE((*s)->start_from({10, 20, 0, 0.5, false}).ok());
  ASSERT_TRUE((*s)->start(request()).ok());
  ASSERT_TRUE(wait(**s));
  ASSERT_TRUE((*s)->spent());
  EXPECT_NEAR((*s)->spent()->usd, 0.5, 1e-9);
}

TEST(ProposerProcess, GivingUpAProgramCostsNothing) {
  auto s = start_proposer_process(process("exec:sleep 1000"));
  ASSERT_TRUE(s.ok());
  ASSERT_TRUE((*s)->start(request(900)).ok());
  EXPECT_LT(seconds_of([&] { (*s)->finish(kFinishSeconds); }), kFinishSeconds);
  EXPECT_TRUE((*s)->ended());
  EXPECT_EQ((*s)->spent()->usd, 0);
}

TEST(Secrets, LeaveTheMemoryOfTheProcessThatForks) {
  const char* value = "sk-very-secret-value";
  ::setenv("NICHE_TEST_API_KEY", value, 1);
  const char* at = ::getenv("NICHE_TEST_API_KEY");
  auto s = start_proposer_process(process("exec:printf %s \"$NICHE_TEST_API_KEY\"; cat >/dev/null"));
  ASSERT_TRUE(s.ok());
  EXPECT_GE(scrub_environment(), 1);
  EXPECT_EQ(::getenv("NICHE_TEST_API_KEY"), nullptr);
  EXPECT_EQ(std::string(at, 5), std::string(5, '\0'));
  // The process that asks the model has it still.
  ASSERT_TRUE((*s)->start(request()).ok());
  const auto r = wait(**s);
  ASSERT_TRUE(r && r->ok());
  EXPECT_EQ((*r)->text, value);
}

}  // namespace
}  // namespace niche::evolve::proposer

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "proposer") return niche::evolve::proposer::proposer_main();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
