// What a session makes of a model's answer, and the ledgers around a call: pure parts of evolve/proposer.
#include <gtest/gtest.h>

#include "evolve/proposer/budget.h"
#include "evolve/proposer/edits.h"
#include "evolve/proposer/reply_parser.h"
#include "evolve/proposer/retry.h"
#include "evolve/proposer/sse.h"

namespace niche::evolve::proposer {
namespace {

const std::string kProgram =
    "extern \"C\" void k(const NicheKernelArgs* a, long begin, long end) noexcept {\n"
    "  const long n = a->n[1];\n"
    "  for (long i = begin; i < end; ++i) {\n"
    "    float s = 0;\n"
    "    for (long j = 0; j < n; ++j) s += x[i * n + j];\n"
    "    y[i] = s;\n"
    "  }\n"
    "}\n";

std::string edit(const std::string& search, const std::string& replace) {
  return "<<<<<<< SEARCH\n" + search + "=======\n" + replace + ">>>>>>> REPLACE\n";
}

dispatch::Result<std::string> applied(const std::string& diff) {
  auto edits = parse_edits(diff);
  if (!edits.ok()) return edits.status();
  return apply_edits(kProgram, *edits);
}

TEST(Edits, AppliesAnExactMatch) {
  const auto r = applied(edit("    y[i] = s;\n", "    y[i] = 2 * s;\n"));
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_NE(r->find("    y[i] = 2 * s;\n  }\n}\n"), std::string::npos);
  EXPECT_EQ(r->find("y[i] = s;"), std::string::npos);
}

TEST(Edits, IgnoresSpacingAndTakesThePlacesIndentation) {
  const auto r = applied(edit("float   s = 0;\nfor (long j = 0;  j < n; ++j) s += x[i * n + j];\n",
                              "float s = sum(x + i * n, n);\n"));
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_NE(
      r->find("  for (long i = begin; i < end; ++i) {\n    float s = sum(x + i * n, n);\n    y[i] = s;\n"),
      std::string::npos)
      << *r;
}

TEST(Edits, TakesAUniqueLikeness) {
  const auto r = applied(edit("    for (long j = 0; j < n; ++j) s += x[i*n + j];\n", "    s = 1;\n"));
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_NE(r->find("    s = 1;\n"), std::string::npos);
}

TEST(Edits, RefusesWhatMatchesNothingAndNamesTheClosestLines) {
  const auto r = applied(edit("    y[i] = s;\n    float t = unknown(0);\n    return t;\n", "x\n"));
  ASSERT_FALSE(r.ok());
  EXPECT_NE(r.status().message().find("not in the program"), std::string::npos);
  EXPECT_NE(r.status().message().find("y[i] = s;"), std::string::npos) << r.status().message();
}

TEST(Edits, RefusesWhatMatchesTwice) {
  const auto edits = parse_edits(edit("a();\n", "b();\n"));
  const auto r = apply_edits("a();\nc();\na();\n", *edits);
  ASSERT_FALSE(r.ok());
  EXPECT_NE(r.status().message().find("more than once"), std::string::npos);
}

TEST(Edits, OneBadEditFailsAllAndNoneIsAFailure) {
  EXPECT_FALSE(
      applied(edit("    y[i] = s;\n", "    y[i] = 0;\n") + edit("no such line at all\n", "x\n")).ok());
  EXPECT_FALSE(applied("no edits here").ok());
  EXPECT_FALSE(applied(edit("    y[i] = s;\n", "    y[i] = s;\n")).ok());
  EXPECT_FALSE(applied(edit("", "x\n")).ok());
  EXPECT_FALSE(applied("<<<<<<< SEARCH\n    y[i] = s;\n=======\n    y[i] = 0;\n").ok());
}

TEST(ReplyParser, TaggedSectionsSurviveChatter) {
  const auto r = parse_reply(
      "Sure! I < you.\n<NAME>wide</NAME>\n<DESCRIPTION>eight lanes</DESCRIPTION>\n<CODE>\n```cpp\n" +
          kProgram + "```\n</CODE>\nand\n<NAME>two</NAME><CODE>" + kProgram + "</CODE> done",
      "");
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  ASSERT_EQ(r->size(), 2U);
  EXPECT_EQ((*r)[0].name, "wide");
  EXPECT_EQ((*r)[0].description, "eight lanes");
  EXPECT_EQ((*r)[0].code, kProgram);
  EXPECT_EQ((*r)[1].code, kProgram);
}

TEST(ReplyParser, DiffNeedsAParentAndAppliesToIt) {
  const std::string text = "<DIFF>\n" + edit("    y[i] = s;\n", "    y[i] = -s;\n") + "</DIFF>";
  const auto r = parse_reply(text, kProgram);
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_NE(r->front().code.find("-s;"), std::string::npos);
  EXPECT_FALSE(parse_reply(text, "").ok());
}

TEST(ReplyParser, FallsBackToTheLastFenceWithAnEntryAndToBarePrograms) {
  const auto r = parse_reply("first\n```cpp\nextern \"C\" void old();\n```\nbetter\n```cpp\n" + kProgram +
                                 "```\nrun\n```sh\nls\n```\n",
                             "");
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->front().code, kProgram);
  EXPECT_TRUE(parse_reply(kProgram, "").ok());
}

TEST(ReplyParser, SaysWhatAnAnswerLacks) {
  EXPECT_NE(parse_reply("I cannot.", "").status().message().find("no program"), std::string::npos);
  EXPECT_NE(parse_reply("<CODE>int x;", "").status().message().find("not closed"), std::string::npos);
  EXPECT_NE(parse_reply("<CODE>int x;</CODE>", "").status().message().find("entry"), std::string::npos);
  EXPECT_NE(parse_reply("```cpp\n" + kProgram, "").status().message().find("no program"), std::string::npos);
  const std::string long_one = "<CODE>extern \"C\" " + std::string(kProgramBytesMax, 'x') + "</CODE>";
  EXPECT_NE(parse_reply(long_one, "").status().message().find("64 KiB"), std::string::npos);
}

TEST(ReplyText, TakesJsonOrTextAndRefusesOtherBytes) {
  ProposalRequest q;
  q.id = "s-p1";
  const auto j = reply_from_text(R"({"text": "hello", "usage": {"input_tokens": 7, "usd": 0.5}})", q);
  ASSERT_TRUE(j.ok());
  EXPECT_EQ(j->text, "hello");
  EXPECT_EQ(j->usage.input_tokens, 7);
  EXPECT_EQ(reply_from_text("plain words", q)->text, "plain words");
  EXPECT_FALSE(reply_from_text("", q).ok());
  EXPECT_FALSE(reply_from_text(" \n", q).ok());
  EXPECT_FALSE(reply_from_text(std::string("a\0b", 3), q).ok());
  EXPECT_FALSE(reply_from_text("\xff\xfe", q).ok());
  EXPECT_FALSE(reply_from_text("\xed\xa0\x80", q).ok());  // a surrogate
  EXPECT_FALSE(
      reply_from_text(R"({"text": 3, "usage": "x"})" + std::string(kReplyTextBytesMax, ' '), q).ok());
  EXPECT_FALSE(reply_from_text(R"({"text": "x", "usage": {"usd": "free"}})", q).ok());
}

TEST(ReplyText, RequestsGoThereAndBack) {
  ProposalRequest q{"s-p1", "improve", "rules", "do", "old", 12.5, 77};
  const auto r = request_from_json(request_to_json(q));
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->parent, "old");
  EXPECT_EQ(r->tokens_max, 77);
  q.id = "../../etc/passwd";
  EXPECT_FALSE(request_from_json(request_to_json(q)).ok());
}

TEST(SseParser, ReadsEventsInAnyPieces) {
  const std::string stream =
      ": comment\r\nevent: a\r\ndata: 1\r\ndata: 2\r\n\r\nid: 5\ndata:3\n\nevent: ping\n\ndata: last";
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    std::string seen;
    SseParser p([&](std::string_view e, std::string_view d) {
      seen += std::string(e) + '=' + std::string(d) + ';';
      return true;
    });
    for (size_t at = 0; at < stream.size(); at += piece)
      ASSERT_TRUE(p.feed(std::string_view(stream).substr(at, piece)));
    ASSERT_TRUE(p.finish());
    EXPECT_EQ(seen, "a=1\n2;=3;=last;");
  }
}

TEST(SseParser, BoundsAnEvent) {
  SseParser p([](std::string_view, std::string_view) { return true; });
  const std::string kilobyte(1024, 'x');
  bool alive = true;
  for (int i = 0; i < 2000 && alive; ++i) alive = p.feed(kilobyte);
  EXPECT_FALSE(alive);
  EXPECT_FALSE(p.feed("\n\n"));
}

TEST(ModelBudget, HoldsTheWorstCaseOfACall) {
  ModelBudget b({1.0, 0}, {10, 30});            // dollars a million tokens
  EXPECT_TRUE(b.reserve(10'000, 30'000).ok());  // 0.10 + 0.90
  EXPECT_EQ(b.reserve(1, 0).code(), dispatch::Code::kBusy);
  Usage u{10'000, 1'000, 0, 0, false};
  b.settle(u);
  EXPECT_NEAR(u.usd, 0.13, 1e-9);
  EXPECT_NEAR(b.usd_left(), 0.87, 1e-9);
  EXPECT_FALSE(b.reserve(0, 30'000).ok());
  EXPECT_TRUE(b.reserve(0, 20'000).ok());
  b.release();
  EXPECT_NEAR(b.usd_left(), 0.87, 1e-9);
}

TEST(ModelBudget, CountsTokensWhereNothingHasAPrice) {
  ModelBudget b({0, 1000}, {0, 0});
  EXPECT_TRUE(b.reserve(500, 500).ok());
  Usage u{400, 300, 0, 0, false};
  b.settle(u);
  EXPECT_FALSE(b.reserve(200, 200).ok());
  EXPECT_TRUE(b.reserve(100, 200).ok());
}

TEST(RetryPlan, BacksOffHonoursRetryAfterAndEnds) {
  RetryPlan p(100);
  EXPECT_DOUBLE_EQ(p.next_wait(0, 0, 0.5), 0.5);
  EXPECT_DOUBLE_EQ(p.next_wait(1, 20, 0.5), 20);
  EXPECT_DOUBLE_EQ(p.next_wait(21, 0, 0.5), 2);
  EXPECT_LT(p.next_wait(23, 90, 0.5), 0);  // past the limit of all tries
  EXPECT_LT(p.next_wait(24, 0, 0), 0);     // the last try
}

TEST(CircuitBreaker, OpensClosesAndOpensForLonger) {
  CircuitBreaker b;
  for (int i = 0; i < 4; ++i) b.failed(0, false);
  EXPECT_FALSE(b.open(0));
  b.failed(0, false);
  EXPECT_TRUE(b.open(29));
  EXPECT_FALSE(b.open(30));
  b.failed(31, false);  // the one try
  EXPECT_TRUE(b.open(31 + 59));
  b.succeeded();
  EXPECT_FALSE(b.open(200));
  b.failed(200, true);  // a wrong key: at once, and for long
  EXPECT_TRUE(b.open(200 + 3599));
}

}  // namespace
}  // namespace niche::evolve::proposer
