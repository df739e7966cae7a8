// Proposers against services that refuse, stall, break off and answer nonsense, and against programs that hang, lie and
// chatter.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "evolve/proposer/chat_proposer.h"
#include "evolve/proposer/local_proposers.h"
#include "tests/evolve/misbehaving_server.h"
#include "tests/evolve/seconds_of.h"
#include "tests/evolve/temp_dir.h"

namespace niche::evolve::proposer {
namespace {

using dispatch::Code;
using dispatch::Result;
using Server = MisbehavingServer;

constexpr const char* kKey = "sk-test-0123456789abcdef";

ProposalRequest request(double seconds = 20) {
  return {"s-p1", "draft", "stable rules", "the question", "", seconds, 100};
}

ProposerOptions options() {
  ProposerOptions o;
  o.budget.usd_max = 1;
  o.price = {1, 1};
  o.stall_seconds = 1;
  o.retry_first_seconds = 0.01;
  return o;
}

std::string openai_text(const std::string& text) {
  return "data: {\"choices\":[{\"delta\":{\"content\":\"" + text + "\"}}]}\n\n";
}
const std::string kOpenAiEnd =
    "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":22}}\n\ndata: [DONE]\n\n";
const std::string kGood = openai_text("hel") + openai_text("lo") + kOpenAiEnd;

class Chat : public ::testing::Test {
 protected:
  ChatProposer openai(ProposerOptions o = options()) {
    return ChatProposer(openai_dialect(server.url() + "/v1", "m"), kKey, o);
  }
  ChatProposer anthropic(ProposerOptions o = options()) {
    return ChatProposer(anthropic_dialect(server.url(), "claude-x"), kKey, o);
  }
  Server server;
};

TEST_F(Chat, StreamsAnAnswerAndSettlesItsCost) {
  server.then(Server::answer(200, kGood));
  auto p = openai();
  const auto r = p.propose(request());
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->text, "hello");
  EXPECT_EQ(r->usage.input_tokens, 11);
  EXPECT_FALSE(r->usage.estimated);
  EXPECT_NEAR(p.budget()->usd_spent(), 33e-6, 1e-12);
  const std::string sent = server.requests().front();
  EXPECT_NE(sent.find("POST /v1/chat/completions"), std::string::npos);
  EXPECT_NE(sent.find("Authorization: Bearer sk-test"), std::string::npos);
  EXPECT_EQ(sent.find("temperature"), std::string::npos);
}

TEST_F(Chat, NegotiatesParametersAndRemembers) {
  server.then(Server::answer(
      400,
      R"({"error":{"message":"Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."}})"));
  server.then(Server::answer(400, R"({"error":{"message":"unknown field stream_options"}})"));
  server.then(Server::answer(200, kGood));
  auto p = openai();
  ASSERT_TRUE(p.propose(request()).ok());
  ASSERT_TRUE(p.propose(request()).ok());
  const auto sent = server.requests();
  ASSERT_EQ(sent.size(), 4U);
  EXPECT_NE(sent[0].find("\"max_tokens\""), std::string::npos);
  EXPECT_NE(sent[1].find("\"max_completion_tokens\""), std::string::npos);
  EXPECT_EQ(sent[3].find("stream_options"), std::string::npos);
  EXPECT_EQ(sent[3].find("\"max_tokens\""), std::string::npos);
}

TEST_F(Chat, WaitsOutA429StormAndHonoursRetryAfter) {
  for (int i = 0; i < 2; ++i) server.then(Server::answer(429, "slow down", "Retry-After: 0\r\n"));
  server.then(Server::answer(429, "slow down", "Retry-After: 1\r\n"));
  server.then(Server::answer(200, kGood));
  auto p = openai();
  const double took = seconds_of([&] { EXPECT_TRUE(p.propose(request()).ok()); });
  EXPECT_GE(took, 1.0);
  EXPECT_EQ(server.requests().size(), 4U);
}

TEST_F(Chat, EndsAnEndlessStormAndThenLeavesTheServiceAlone) {
  server.then(Server::answer(429, "slow down"));
  auto p = openai();
  for (int i = 0; i < CircuitBreaker::kFailuresMax; ++i)
    EXPECT_EQ(p.propose(request()).status().code(), Code::kIo);
  const size_t asked = server.requests().size();
  EXPECT_EQ(asked, static_cast<size_t>(CircuitBreaker::kFailuresMax * RetryPlan::kTriesMax));
  EXPECT_EQ(p.propose(request()).status().code(), Code::kBusy);
  EXPECT_EQ(server.requests().size(), asked);
  EXPECT_EQ(p.budget()->usd_spent(), 0);
}

TEST_F(Chat, DoesNotWaitForCreditOrAKeyThatWillNotCome) {
  server.then(Server::answer(
      429, R"({"error":{"code":"insufficient_quota","message":"You exceeded your current quota"}})"));
  auto p = openai();
  EXPECT_EQ(p.propose(request()).status().code(), Code::kUnsupported);
  EXPECT_EQ(server.requests().size(), 1U);
  EXPECT_EQ(p.propose(request()).status().code(), Code::kBusy);
  EXPECT_EQ(server.requests().size(), 1U);
}

TEST_F(Chat, NeverRepeatsTheKey) {
  server.then(Server::answer(
      401, std::string(R"({"error":{"message":"Incorrect API key provided: )") + kKey + "\"}}"));
  auto p = openai();
  const auto r = p.propose(request());
  EXPECT_EQ(r.status().code(), Code::kUnsupported);
  EXPECT_EQ(r.status().message().find(kKey), std::string::npos);
  EXPECT_NE(r.status().message().find("[key]"), std::string::npos) << r.status().message();
}

TEST_F(Chat, TriesACutStreamAgainAndPaysForIt) {
  server.then(Server::answer(200, openai_text("half an ans")));
  server.then(Server::answer(200, kGood));
  auto p = openai();
  const auto r = p.propose(request());
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->text, "hello");
  EXPECT_EQ(server.requests().size(), 2U);
  EXPECT_GT(p.budget()->usd_spent(), 33e-6);
}

TEST_F(Chat, AnErrorAfterStatus200IsAnError) {
  server.then(
      Server::answer(200,
                     "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":"
                     "{\"input_tokens\":5}}}\n\nevent: error\ndata: {\"type\":\"error\",\"error\":{\"type\":"
                     "\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n"));
  server.then(
      Server::answer(200,
                     "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\","
                     "\"message\":\"no\"}}\n\n"));
  auto p = anthropic();
  const auto r = p.propose(request());
  EXPECT_EQ(r.status().code(), Code::kIo);
  EXPECT_NE(r.status().message().find("invalid_request_error"), std::string::npos) << r.status().message();
  EXPECT_EQ(server.requests().size(), 2U);
}

TEST_F(Chat, TakesTextBlocksAndLeavesThinkingOut) {
  server.then(Server::answer(
      200,
      "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"claude-x\",\"usage\":"
      "{\"input_tokens\":5,\"cache_read_input_tokens\":100}}}\n\n"
      "data: "
      "{\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"thinking\",\"thinking\":"
      "\"\"}}\n\n"
      "data: "
      "{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":"
      "\"hm\"}}\n\n"
      "data: {\"type\":\"content_block_stop\",\"index\":0}\n\n"
      "event: ping\ndata: {\"type\":\"ping\"}\n\n"
      "data: "
      "{\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"redacted_thinking\","
      "\"data\":\"zz\"}}\n\n"
      "data: "
      "{\"type\":\"content_block_start\",\"index\":2,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n"
      "data: {\"type\":\"content_block_delta\",\"index\":2,\"delta\":{\"type\":\"text_delta\",\"text\":\"one "
      "\"}}\n\n"
      "data: {\"type\":\"content_block_stop\",\"index\":2}\n\n"
      "data: "
      "{\"type\":\"content_block_start\",\"index\":3,\"content_block\":{\"type\":\"text\",\"text\":\"two\"}}"
      "\n\n"
      "data: "
      "{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":9}}"
      "\n\n"
      "data: {\"type\":\"message_stop\"}\n\n"));
  auto p = anthropic();
  const auto r = p.propose(request());
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->text, "one two");
  EXPECT_EQ(r->usage.input_tokens, 105);
  EXPECT_EQ(r->usage.cached_tokens, 100);
  EXPECT_EQ(r->usage.output_tokens, 9);
  const std::string sent = server.requests().front();
  EXPECT_NE(sent.find("x-api-key: sk-test"), std::string::npos);
  EXPECT_NE(sent.find("cache_control"), std::string::npos);
  EXPECT_LT(sent.find("stable rules"), sent.find("the question"));
}

TEST_F(Chat, WrongJsonIsNamed) {
  server.then(Server::answer(200, "data: {\"choices\": [oops\n\n"));
  auto p = openai();
  const auto r = p.propose(request());
  EXPECT_EQ(r.status().code(), Code::kCorrupt);
  EXPECT_NE(r.status().message().find("JSON"), std::string::npos);
}

TEST_F(Chat, UnexpectedShapesDoNotCrash) {
  for (const char* data :
       {"[]", "{\"choices\":5}", "{\"choices\":[5]}", "{\"choices\":[{\"delta\":7}]}", "{\"usage\":[]}",
        "{\"choices\":[{\"delta\":{\"content\":7}}],\"usage\":{\"prompt_tokens\":-4}}", "null"}) {
    Server one;
    one.then(Server::answer(200, std::string("data: ") + data + "\n\ndata: [DONE]\n\n"));
    ChatProposer p(openai_dialect(one.url(), "m"), "", options());
    EXPECT_FALSE(p.propose(request()).ok()) << data;
    ChatProposer q(anthropic_dialect(one.url(), "m"), "", options());
    EXPECT_FALSE(q.propose(request()).ok()) << data;
  }
}

TEST_F(Chat, AWholeObjectInsteadOfAStreamIsTaken) {
  server.then(Server::answer(
      200, "{\"choices\":[{\"message\":{\"content\":\"all at once\"},\"finish_reason\":\"stop\"}]}"));
  auto p = openai();
  const auto r = p.propose(request());
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->text, "all at once");
  EXPECT_TRUE(r->usage.estimated);
}

TEST_F(Chat, TenMegabytesAreRefused) {
  server.then([](int fd, const std::string&) {
    Server::send(fd, Server::head(200));
    const std::string block = openai_text(std::string(4000, 'x'));
    for (size_t n = 0; n < (10U << 20) && Server::send(fd, block); n += block.size()) {
    }
  });
  auto p = openai();
  const auto r = p.propose(request());
  EXPECT_EQ(r.status().code(), Code::kCorrupt) << r.status().to_string();
  EXPECT_EQ(server.requests().size(), 1U);  // too long once is too long again
}

TEST_F(Chat, ASilentServiceIsGivenUp) {
  server.then([this](int fd, const std::string&) {
    Server::send(fd, Server::head(200) + openai_text("a"));
    while (!server.stopping()) ::poll(nullptr, 0, 10);
    (void)fd;
  });
  auto o = options();
  o.stall_seconds = 0.3;
  auto p = openai(o);
  const double took = seconds_of([&] { EXPECT_EQ(p.propose(request(1.5)).status().code(), Code::kBusy); });
  EXPECT_LT(took, 5);
}

TEST_F(Chat, ASlowDripEndsAtTheDeadline) {
  server.then([this](int fd, const std::string&) {
    Server::send(fd, Server::head(200));
    while (!server.stopping() && Server::send(fd, openai_text("a"))) ::poll(nullptr, 0, 20);
  });
  auto p = openai();
  const double took = seconds_of([&] { EXPECT_EQ(p.propose(request(1)).status().code(), Code::kBusy); });
  EXPECT_GE(took, 1);
  EXPECT_LT(took, 5);
}

TEST_F(Chat, StopsWhenToldSo) {
  server.then([this](int, const std::string&) {
    while (!server.stopping()) ::poll(nullptr, 0, 10);
  });
  auto o = options();
  o.stall_seconds = 100;
  int asked = 0;
  o.keep_going = [&] { return ++asked < 4; };
  auto p = openai(o);
  EXPECT_LT(seconds_of([&] { EXPECT_FALSE(p.propose(request(100)).ok()); }), 5);
  EXPECT_EQ(server.requests().size(), 1U);
  // The service had the whole question and may have thought about it.
  EXPECT_GT(p.budget()->usd_spent(), 100e-6);
}

TEST_F(Chat, ARedirectIsNotFollowed) {
  server.then(Server::answer(302, "", "Location: " + server.url() + "/elsewhere\r\n"));
  auto p = openai();
  EXPECT_FALSE(p.propose(request()).ok());
  EXPECT_EQ(server.requests().size(), 1U);
}

TEST_F(Chat, NobodyThereIsAnError) {
  ChatProposer p(openai_dialect("http://127.0.0.1:1", "m"), "", options());
  EXPECT_EQ(p.propose(request()).status().code(), Code::kIo);
  EXPECT_EQ(p.budget()->usd_spent(), 0);
}

TEST_F(Chat, NoCallThatTheBudgetMightNotCover) {
  server.then(Server::answer(200, kGood));
  auto o = options();
  o.budget.usd_max = 1e-4;
  auto p = openai(o);
  EXPECT_EQ(p.propose(request()).status().code(), Code::kBusy);
  EXPECT_EQ(server.requests().size(), 0U);
}

TEST(Exec, AsksOnStandardInputAndReadsStandardOutput) {
  ExecProposer p("grep -o 'the question' && echo; echo warning >&2", options());
  const auto r = p.propose(request());
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_NE(r->text.find("the question"), std::string::npos);
}

TEST(Exec, HangsChatterCrashesAndSilenceAreErrors) {
  const auto code = [](const std::string& command, double seconds = 20) {
    ExecProposer p(command, options());
    return p.propose(request(seconds)).status();
  };
  EXPECT_EQ(code("sleep 100", 0.3).code(), Code::kBusy);
  EXPECT_EQ(code("exec >&- 2>&-; sleep 100", 0.3).code(), Code::kBusy);
  EXPECT_EQ(code("cat /dev/zero").code(), Code::kCorrupt);
  EXPECT_EQ(code("echo why >&2; exit 3").code(), Code::kIo);
  EXPECT_NE(code("echo why >&2; exit 3").message().find("status 3: why"), std::string::npos);
  EXPECT_EQ(code("/no/such/program").code(), Code::kUnsupported);
  EXPECT_EQ(code("true").code(), Code::kInvalid);
  EXPECT_EQ(code("kill -9 $$").code(), Code::kIo);
}

TEST(Exec, KillsWhatItLeftBehind) {
  TempDir dir;
  const std::string file = dir.path() + "/pid";
  ExecProposer p("sleep 1000 & echo $! >" + file + "; sleep 1000", options());
  EXPECT_FALSE(p.propose(request(0.5)).ok());
  int pid = 0;
  std::ifstream(file) >> pid;
  ASSERT_GT(pid, 0);
  // Reaped by init; until then a zombie.
  std::string state = "R";
  for (int i = 0; i < 500 && state != "Z" && ::kill(pid, 0) == 0; ++i) {
    std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
    std::string ignored;
    in >> ignored >> ignored >> state;
    ::poll(nullptr, 0, 10);
  }
  EXPECT_TRUE(::kill(pid, 0) != 0 || state == "Z");
}

// Answers once the question is there, as a person would.
ProposerOptions answering(const TempDir& dir, const std::string& text) {
  ProposerOptions o = options();
  o.keep_going = [path = dir.path(), text] {
    if (std::filesystem::exists(path + "/s-p1.request.md") &&
        !std::filesystem::exists(path + "/s-p1.reply.md"))
      std::ofstream(path + "/s-p1.reply.md") << text;
    return true;
  };
  return o;
}

TEST(Mailbox, AReplyFromBeforeTheQuestionIsPutAside) {
  TempDir dir;
  std::ofstream(dir.path() + "/s-p1.reply.md") << "of a session that was killed";
  const auto r = MailboxProposer(dir.path(), answering(dir, "mine"), 0.05).propose(request());
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->text, "mine");
  EXPECT_TRUE(std::filesystem::exists(dir.path() + "/s-p1.reply.md.old"));
}

TEST(Mailbox, AnswersFromAFileAndKeepsIt) {
  TempDir dir;
  const auto r = MailboxProposer(dir.path(), answering(dir, "my program"), 0.05).propose(request());
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->text, "my program");
  EXPECT_TRUE(std::filesystem::exists(dir.path() + "/s-p1.reply.md"));
  EXPECT_FALSE(std::filesystem::exists(dir.path() + "/s-p1.request.md"));
}

TEST(Mailbox, WritesTheQuestionAndGivesUpInTime) {
  TempDir dir;
  ProposerOptions o = options();
  std::string question;
  o.keep_going = [&] {
    std::ifstream in(dir.path() + "/s-p1.request.md");
    question.assign(std::istreambuf_iterator<char>(in), {});
    return true;
  };
  MailboxProposer p(dir.path(), o, 0.05);
  EXPECT_EQ(p.propose(request(0.3)).status().code(), Code::kBusy);
  EXPECT_NE(question.find("the question"), std::string::npos);
  EXPECT_NE(question.find("s-p1.reply.md"), std::string::npos);
  EXPECT_EQ(MailboxProposer("/no/such/folder", o).propose(request()).status().code(), Code::kUnsupported);
}

TEST(MakeProposer, RefusesWhatCannotBeSafeOrBounded) {
  ProposerOptions o;
  const auto why = [&](const std::string& spec) { return make_proposer(spec, o).status().message(); };
  EXPECT_NE(why("nonsense").find("expected"), std::string::npos);
  EXPECT_NE(why("openai:https://host/v1").find("no model"), std::string::npos);
  EXPECT_NE(why("openai:http://host/v1#m").find("https"), std::string::npos);
  EXPECT_NE(why("openai:http://127.0.0.1.evil.example/v1#m").find("https"), std::string::npos);
  EXPECT_NE(why("openai:https://host/v1#m").find("--model-price"), std::string::npos);
  o.price = {1, 2};
  EXPECT_NE(why("openai:https://host/v1#m").find("--model-budget"), std::string::npos);
  o.budget.usd_max = 1;
  ::unsetenv("OPENAI_API_KEY");
  EXPECT_NE(why("openai:https://host/v1#m").find("no key"), std::string::npos);
  TempDir dir;
  o.key_file = dir.path() + "/key";
  std::ofstream(o.key_file) << kKey << "\n";
  ::chmod(o.key_file.c_str(), 0644);
  EXPECT_NE(why("openai:https://host/v1#m").find("chmod 600"), std::string::npos);
  ::chmod(o.key_file.c_str(), 0600);
  EXPECT_TRUE(make_proposer("openai:https://host/v1#m", o).ok());
  o = {};
  EXPECT_TRUE(make_proposer("openai:http://127.0.0.1:8080/v1#m", o).ok());
}

}  // namespace
}  // namespace niche::evolve::proposer
