// What people and trainers get to see of a session: tables, trees, pages, exported trajectories.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "evolve/report/session_tree.h"
#include "evolve/report/trajectories.h"
#include "evolve/store/process_mark.h"
#include "evolve/verdict.h"
#include "tests/evolve/temp_dir.h"

namespace niche::evolve::report {
namespace {

using json = nlohmann::json;

class Report : public testing::Test {
 protected:
  Report() : store_(std::move(*store::Store::open(dir_.path() + "/s.sqlite"))) {
    store::SessionRow s;
    s.id = "20261129T1-aa";
    s.definition = "rms_norm.f32.N64";
    s.op = "rms_norm", s.dtype = "f32", s.arch = "cpu.avx2";
    s.started_unix_ns = 1'700'000'000'000'000'000;
    EXPECT_TRUE(store_->begin_session(s).ok());
    add(0, -1, "rms_norm.rows", R"({"rows":1,"unroll":2})", "screened", 0.8, "");
    add(1, 0, "rms_norm.rows", R"({"rows":4,"unroll":2})", "screened", 0.6, "");
    add(2, 0, "rms_norm.rows", R"({"rows":8,"unroll":2})", "failed", 0, "");
    const std::string exchange = *store_->put_blob(json{
        {"request", {{"stable", "rules"}, {"prompt", "improve <this>"}}},
        {"reply", {{"text", "two programs"}}}}.dump());
    const auto about = [&](const char* name) { return json{{"name", name}, {"exchange", exchange}}.dump(); };
    add(kProgram, 1, "model", about("wide & <bold>"), "screened", 0.5, "line one\nline two\n");
    add(kProgram + 1, 1, "model", about("narrow"), "failed", 0, "line one\nline 2\n");
    evaluation(kProgram, "judge", "faster", 0.48, "none", "");
  }
  void add(int id, int parent, const std::string& family, const std::string& point,
           const std::string& outcome, double cost, const std::string& text) {
    store::NodeRow n;
    n.id = id, n.parent = parent, n.made_by = "improve", n.family = family, n.point_json = point;
    n.source_hash = text.empty() ? "none" : *store_->put_blob(text);
    EXPECT_TRUE(store_->add_nodes("20261129T1-aa", std::span(&n, 1)).ok());
    evaluation(id, "screen", outcome, cost, cost > 0 ? "none" : "smoke", cost > 0 ? "" : "signal 11");
  }
  void evaluation(int id, const std::string& kind, const std::string& outcome, double cost,
                  const std::string& gate, const std::string& reason) {
    store::EvaluationRow e;
    e.node = id, e.kind = kind, e.outcome = outcome, e.cost = cost, e.gate = gate, e.reason = reason;
    e.verdict_json = "{}";
    EXPECT_TRUE(store_->add_evaluations("20261129T1-aa", std::span(&e, 1)).ok());
  }
  SessionTree load(const std::string& id = "last") { return std::move(*SessionTree::load(*store_, id)); }
  std::vector<json> lines(const std::string& format) {
    std::vector<json> out;
    std::istringstream in(*export_session(load(), format));
    for (std::string line; std::getline(in, line);) out.push_back(json::parse(line));
    return out;
  }
  static constexpr int kProgram = 1 << 20;
  TempDir dir_;
  std::unique_ptr<store::Store> store_;
};

TEST_F(Report, FindsSessionsByTheirBeginning) {
  EXPECT_EQ(load("20261129T1").session.id, "20261129T1-aa");
  const auto none = SessionTree::load(*store_, "x");
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.status().message().find("niche sessions"), std::string::npos);
}

TEST_F(Report, KnowsBestCurveAndRefusals) {
  const SessionTree t = load();
  EXPECT_EQ(t.best(), kProgram);
  EXPECT_EQ(t.curve(), (std::vector<double>{0.8, 0.6, 0.6, 0.5, 0.5}));
  EXPECT_EQ(t.refused().at("smoke"), 2);
  EXPECT_EQ(t.change(*t.find(1)), "rows=1->4");
  EXPECT_EQ(t.reason(2), "smoke: signal 11");
}

TEST_F(Report, TreeShowsLineageAndReasons) {
  const std::string text = tree_text(load(), true);
  EXPECT_NE(text.find("- 0 1.250x screened"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  - 1 1.667x screened  improve: rows=1->4\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n    * 1048576 2.083x faster  improve: model wide & <bold>\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("[smoke: signal 11]"), std::string::npos);
}

TEST_F(Report, ConfirmedGainsAreNotMixedWithScreenedOnes) {
  add(3, 0, "rms_norm.rows", R"({"rows":16,"unroll":2})", "screened", 0.25,
      "");  // 4x, and nothing confirmed it
  const std::string text = tree_text(load(), true), page = tree_page(load());
  EXPECT_NE(text.find("best confirmed 2.083x, best screened 4.000x"), std::string::npos) << text;
  EXPECT_NE(text.find("* 1048576 2.083x faster"), std::string::npos) << text;
  EXPECT_NE(page.find("best confirmed 2.083x, best screened 4.000x"), std::string::npos);
  EXPECT_NE(page.find("&#9733; 1048576"), std::string::npos);
  const std::string table = sessions_table(*store_->sessions(1));
  EXPECT_NE(table.find("confirmed  screened"), std::string::npos) << table;
  EXPECT_NE(table.find("2.083x    4.000x"), std::string::npos) << table;
}

TEST_F(Report, ASessionThatConfirmedNothingSaysSo) {
  evaluation(kProgram, "judge", "not_faster", 0.99, "timing", "");
  const std::string text = tree_text(load(), true), page = tree_page(load());
  EXPECT_NE(text.find("best confirmed none, best screened"), std::string::npos) << text;
  EXPECT_EQ(text.find("* "), std::string::npos) << text;
  EXPECT_NE(text.find("~ 1 1.667x screened"), std::string::npos) << text;
  EXPECT_NE(page.find("&#9734; 1 1.667x screened"), std::string::npos);
}

TEST_F(Report, PageIsEscapedAndHasTheDiff) {
  const std::string page = tree_page(load());
  EXPECT_NE(page.find("wide &amp; &lt;bold&gt;"), std::string::npos);
  EXPECT_EQ(page.find("<bold>"), std::string::npos);
  EXPECT_NE(page.find("<polyline"), std::string::npos);
  EXPECT_NE(page.find("<summary>source</summary>"), std::string::npos);
  // Of a program whose parent's text is there as well: what it changed.
  add(kProgram + 2, kProgram, "model", R"({"name":"third"})", "screened", 0.4, "line one\nline & two\n");
  const std::string more = tree_page(load());
  EXPECT_NE(more.find("<summary>diff to " + std::to_string(kProgram) + "</summary>"), std::string::npos);
  EXPECT_NE(more.find("-line two"), std::string::npos) << more;
  EXPECT_NE(more.find("+line &amp; two"), std::string::npos) << more;
  EXPECT_EQ(page.find("http"), std::string::npos);  // it needs nothing else
}

// A damaged store, or another program's.
TEST_F(Report, TextsOfAnyShapeAreShownAsFarAsTheyGo) {
  add(kProgram + 2, 1, "model", R"({"name":7,"exchange":5})", "o' onmouseover='x", 0.01, "text\n");
  add(kProgram + 3, 1, "model", std::string(200'000, '['), "faster", 0.01, "text\n");
  const std::string exchange = *store_->put_blob(R"({"request":"s","reply":[3]})");
  add(kProgram + 4, 1, "model", json{{"name", "n"}, {"exchange", exchange}}.dump(), "faster", 0.01, "text\n");
  store::EvaluationRow e;
  e.node = kProgram + 4, e.kind = "judge", e.outcome = "faster", e.cost = 0.01, e.gate = "none";
  e.verdict_json = R"({"digest":)" + std::string(200'000, '[') + std::string(200'000, ']') + '}';
  ASSERT_TRUE(store_->add_evaluations("20261129T1-aa", std::span(&e, 1)).ok());
  EXPECT_NE(tree_text(load(), true).find("model ?"), std::string::npos);
  EXPECT_EQ(tree_page(load()).find("' onmouseover='"), std::string::npos);
  for (const char* format : {"jsonl", "sft", "dpo"})
    EXPECT_TRUE(export_session(load(), format).ok()) << format;
}

// Of a candidate for a GPU: what its verdict's digest says, in tree, page and export; a profile adds counters to it and
// changes no result.
TEST_F(Report, ShowsWhatBoundsACandidate) {
  Digest d;
  d.kernel_us = 18, d.dram = 0.61, d.l2 = 0.2, d.flops_per_byte = 1, d.ridge = 200, d.roof = 0.61;
  d.registers = 40, d.threads = 256, d.blocks = 4096, d.blocks_per_sm = 6, d.occupancy = 0.75;
  d.limiter = "registers", d.waves = 5.2, d.multiprocessors = 132;
  const auto evaluate = [&](int node, const std::string& kind, const std::string& outcome,
                            const Digest& digest) {
    Verdict v;
    v.digest = digest;
    store::EvaluationRow e;
    e.node = node, e.kind = kind, e.outcome = outcome, e.cost = 0.48, e.gate = "none";
    e.verdict_json = v.to_json();
    EXPECT_TRUE(store_->add_evaluations("20261129T1-aa", std::span(&e, 1)).ok());
  };
  const int evaluations = load().session.evaluations;
  evaluate(1, "screen", "screened", d);
  evaluate(kProgram, "judge", "faster", d);
  Digest counted = d;
  counted.counters = ProfilerCounters();
  counted.counters->dram = 0.9;
  counted.counters->stalls = {{"long_scoreboard", 1}};
  evaluate(kProgram, "profile", "", counted);
  const SessionTree t = load();
  EXPECT_EQ(t.session.evaluations, evaluations + 2) << "a profile is no evaluation";
  EXPECT_EQ(t.find(kProgram)->outcome, "faster") << "a profile changes no outcome";
  EXPECT_DOUBLE_EQ(t.find(kProgram)->cost, 0.48);
  const std::string text = tree_text(t, true), page = tree_page(t);
  EXPECT_NE(text.find("- 1 2.083x screened  improve: rows=1->4  {memory, roof 61 %, DRAM 61 %, occupancy 75 "
                      "% by registers}"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("the best, 1048576: 18.00 us: DRAM 61 %"), std::string::npos) << text;
  EXPECT_NE(text.find("counted: DRAM 90 %; waits: long_scoreboard 100 %"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  bottleneck memory: 1 flops a byte, left of the ridge at 200: DRAM at 90 %\n"),
            std::string::npos)
      << text;
  EXPECT_NE(page.find("<summary>memory, roof 61 %, DRAM 61 %, occupancy 75 % by registers</summary>"),
            std::string::npos);
  const auto all = lines("jsonl");
  EXPECT_EQ(all[1]["digest"]["registers"], 40);
  EXPECT_EQ(all[3]["digest"]["counters"]["dram"], 0.9);
  EXPECT_EQ(all[3]["bottleneck"], "memory");
  EXPECT_FALSE(all[0].contains("digest"));
}

// A store of before: its verdicts have no digest, and nothing is shown of one.
TEST_F(Report, AStoreWithoutDigestsIsShownAsItWas) {
  const std::string text = tree_text(load(), true);
  EXPECT_EQ(text.find('{'), std::string::npos) << text;
  EXPECT_EQ(text.find("bottleneck"), std::string::npos) << text;
  for (const json& j : lines("jsonl")) EXPECT_FALSE(j.contains("bottleneck"));
}

TEST(LineDiff, ShowsWhatChangedWithContext) {
  EXPECT_EQ(line_diff("a\nb\nc\n", "a\nx\nc\n"), " a\n-b\n+x\n c\n");
  EXPECT_EQ(line_diff("same\n", "same\n"), "");
  std::string long_a, long_b;
  for (int i = 0; i < 20; ++i) long_a += std::to_string(i) + '\n';
  long_b = "first\n" + long_a + "last\n";
  EXPECT_EQ(line_diff(long_a, long_b), "+first\n 0\n 1\n 2\n ...\n 17\n 18\n 19\n+last\n");
}

TEST_F(Report, ExportsEveryCandidateWithItsReward) {
  const auto all = lines("jsonl");
  ASSERT_EQ(all.size(), 5U);
  EXPECT_DOUBLE_EQ(all[1]["reward"].get<double>(), 1 / 0.6);
  EXPECT_EQ(all[1]["point"]["rows"], 4);
  EXPECT_EQ(all[2]["gate"], "smoke");
  EXPECT_EQ(all[3]["text"], "line one\nline two\n");
  EXPECT_EQ(all[3]["outcome"], "faster");
}

TEST_F(Report, ExportsAnswersThatWereBetterThanTheirParent) {
  const auto all = lines("sft");
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0]["messages"][0]["content"], "rules");
  EXPECT_EQ(all[0]["messages"][2]["content"], "two programs");
  EXPECT_DOUBLE_EQ(all[0]["reward"].get<double>(), 1 / 0.48);
  EXPECT_TRUE(all[0]["verified"].get<bool>());
}

// A worker that is killed cannot write that it ended.
TEST_F(Report, ASessionWhoseProcessIsGoneIsShownAsKilled) {
  const std::string path = dir_.path() + "/s.sqlite";
  EXPECT_EQ(shown_state(load().session), "running") << "this process began it";
  const pid_t child = fork();
  if (child == 0) {
    auto store = store::Store::open(path);
    store::SessionRow s;
    s.id = "20261130T1-bb";
    s.definition = "softmax.f32.N64";
    s.started_unix_ns = 1'800'000'000'000'000'000;
    _exit(store.ok() && (*store)->begin_session(s).ok() ? 0 : 1);
  }
  siginfo_t ended;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  ASSERT_EQ(ended.si_status, 0);
  EXPECT_EQ(shown_state(load("20261130T1").session), "killed") << "its parent has not reaped it yet";
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(shown_state(load("20261130T1").session), "killed");
  const std::string table = sessions_table(*store_->sessions(10));
  EXPECT_NE(table.find(" killed "), std::string::npos) << table;
  EXPECT_NE(table.find(" running "), std::string::npos) << table;
  // Taken up again, by this process.
  ASSERT_TRUE(store_->set_session_state("20261130T1-bb", "running", "", 0).ok());
  EXPECT_EQ(shown_state(load("20261130T1").session), "running");
  ASSERT_TRUE(store_->set_session_state("20261130T1-bb", "done", "wall time", 1).ok());
  EXPECT_EQ(shown_state(load("20261130T1").session), "done");
}

TEST(ProcessMark, NumberStartBootAndNamespaceDecide) {
  using store::Liveness;
  using store::liveness;
  std::istringstream own(store::own_process_mark());
  std::string pid, start, boot, space;
  ASSERT_TRUE(own >> pid >> start >> boot >> space);
  EXPECT_EQ(liveness(store::own_process_mark()), Liveness::kRuns);
  EXPECT_EQ(liveness(pid + " 1 " + boot + ' ' + space), Liveness::kGone) << "the number is used again";
  EXPECT_EQ(liveness(pid + ' ' + start + " another-boot " + space), Liveness::kGone);
  EXPECT_EQ(liveness(pid + ' ' + start + ' ' + boot + " pid:[1]"), Liveness::kUnknown);
  for (const char* odd : {"", "7", "7 8 9", "../self 1 x y"})
    EXPECT_EQ(liveness(odd), Liveness::kUnknown) << odd;
}

TEST_F(Report, ExportsPairs) {
  const auto all = lines("dpo");
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0]["chosen"], "line one\nline two\n");
  EXPECT_EQ(all[0]["rejected"], "line one\nline 2\n");
  EXPECT_EQ(export_session(load(), "csv").status().code(), dispatch::Code::kInvalid);
}

}  // namespace
}  // namespace niche::evolve::report
