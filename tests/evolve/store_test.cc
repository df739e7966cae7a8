#include "evolve/store/store.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kernels_cache/sha256.h"
#include "tests/evolve/temp_dir.h"

namespace niche::evolve::store {
namespace {

using dispatch::Code;

std::string sha(const std::string& text) {
  return kernels_cache::to_hex(kernels_cache::sha256(std::string_view(text)));
}
SessionRow session_row(const std::string& id, int64_t started = 1) {
  SessionRow r;
  r.id = id;
  r.definition = "op.f32.N64";
  r.definition_json = "{}";
  r.op = "op";
  r.dtype = "f32";
  r.arch = "cpu.avx2";
  r.problems_json = "[]";
  r.request_json = "{}";
  r.started_unix_ns = started;
  return r;
}
NodeRow node_row(int id, int parent = -1, int second = -1) {
  NodeRow n;
  n.id = id;
  n.parent = parent;
  n.second_parent = second;
  n.made_by = "test";
  n.family = "op.rows";
  n.point_json = "{\"rows\":" + std::to_string(id) + "}";
  n.source_hash = sha("source " + std::to_string(id));
  return n;
}
EvaluationRow evaluation(int node, const std::string& outcome, double cost,
                         const std::string& kind = "screen") {
  EvaluationRow r;
  r.node = node;
  r.kind = kind;
  r.outcome = outcome;
  r.gate = "none";
  r.cost = cost;
  r.verdict_json = "{}";
  return r;
}

class StoreTest : public testing::Test {
 protected:
  std::unique_ptr<Store> open() {
    auto s = Store::open(path_);
    EXPECT_TRUE(s.ok()) << s.status().to_string();
    return s.ok() ? std::move(*s) : nullptr;
  }
  void add(Store& store, const std::string& session, std::vector<NodeRow> nodes) {
    for (const NodeRow& n : nodes) {
      const auto hash = store.put_blob("source " + std::to_string(n.id));
      ASSERT_TRUE(hash.ok());
      ASSERT_EQ(*hash, n.source_hash);
    }
    const auto s = store.add_nodes(session, nodes);
    ASSERT_TRUE(s.ok()) << s.to_string();
  }
  static std::vector<int> ids(const dispatch::Result<std::vector<NodeRow>>& rows) {
    EXPECT_TRUE(rows.ok()) << rows.status().to_string();
    std::vector<int> out;
    if (rows.ok())
      for (const NodeRow& n : *rows) out.push_back(n.id);
    return out;
  }
  TempDir dir_;
  std::string path_ = dir_.path() + "/search.db";
};

TEST_F(StoreTest, WhatWasWrittenIsReadBackByAnotherProcessesStore) {
  auto a = open();
  ASSERT_TRUE(a->begin_session(session_row("s1")).ok());
  add(*a, "s1", {node_row(0), node_row(1, 0)});
  const EvaluationRow rows[] = {evaluation(0, "screened", 0.8), evaluation(1, "failed", 0)};
  ASSERT_TRUE(a->add_evaluations("s1", rows).ok());

  auto b = open();
  const auto nodes = b->nodes("s1");
  ASSERT_TRUE(nodes.ok());
  ASSERT_EQ(nodes->size(), 2u);
  EXPECT_EQ((*nodes)[0].outcome, "screened");
  EXPECT_EQ((*nodes)[0].cost, 0.8);
  EXPECT_EQ((*nodes)[1].parent, 0);
  EXPECT_EQ((*nodes)[1].point_json, "{\"rows\":1}");
  EXPECT_EQ(*b->blob(sha("source 1")), "source 1");
  const auto back = b->session("s1");
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->evaluations, 2);
  EXPECT_EQ(back->best_cost, 0.8);
  EXPECT_EQ(back->state, "running");
  ASSERT_TRUE(a->set_session_state("s1", "done", "stagnation", 9).ok());
  EXPECT_EQ(b->session("s1")->reason, "stagnation");
  EXPECT_EQ(b->session("s1")->state, "done");
}

TEST_F(StoreTest, ErrorsNameWhatIsMissing) {
  auto s = open();
  EXPECT_EQ(s->session("nope").status().code(), Code::kNotFound);
  EXPECT_NE(s->session("nope").status().message().find("'nope'"), std::string::npos);
  EXPECT_EQ(s->blob("00").status().code(), Code::kNotFound);
  ASSERT_TRUE(s->begin_session(session_row("s1")).ok());
  EXPECT_EQ(s->begin_session(session_row("s1")).code(), Code::kBusy);
  // A node of no session, an evaluation of no node: refused, and nothing of the batch stays.
  const NodeRow orphan[] = {node_row(0)};
  EXPECT_FALSE(s->add_nodes("s2", orphan).ok());
  const EvaluationRow rows[] = {evaluation(5, "screened", 1)};
  EXPECT_FALSE(s->add_evaluations("s1", rows).ok());
  EXPECT_TRUE(s->evaluations("s1")->empty());
}

//  0 ── 1 ── 3 ─┐
//   └── 2 ──────┴─ 4 (crossed) ── 5        6: another draft
TEST_F(StoreTest, LineageFollowsBothParents) {
  auto s = open();
  ASSERT_TRUE(s->begin_session(session_row("s1")).ok());
  add(*s, "s1",
      {node_row(0), node_row(1, 0), node_row(2, 0), node_row(3, 1), node_row(4, 3, 2), node_row(5, 4),
       node_row(6)});
  EXPECT_EQ(ids(s->ancestors("s1", 5)), (std::vector<int>{4, 2, 3, 0, 1}));
  EXPECT_EQ(ids(s->ancestors("s1", 0)), std::vector<int>{});
  EXPECT_EQ(ids(s->siblings("s1", 1)), std::vector<int>{2});
  EXPECT_EQ(ids(s->siblings("s1", 0)), std::vector<int>{6});
  EXPECT_EQ(ids(s->descendants("s1", 2)), (std::vector<int>{4, 5}));
}

TEST_F(StoreTest, BestPrefersTheVerified) {
  auto s = open();
  for (const char* id : {"s1", "s2"}) ASSERT_TRUE(s->begin_session(session_row(id, id[1])).ok());
  add(*s, "s1", {node_row(0), node_row(1), node_row(2)});
  add(*s, "s2", {node_row(0), node_row(1)});
  EXPECT_EQ(s->global_best("op.f32.N64").status().code(), Code::kNotFound);
  const EvaluationRow first[] = {evaluation(0, "screened", 0.3), evaluation(1, "faster", 0.5, "judge"),
                                 evaluation(2, "failed", 0)};
  const EvaluationRow second[] = {evaluation(0, "screened", 0.2), evaluation(1, "faster", 0.4, "judge")};
  ASSERT_TRUE(s->add_evaluations("s1", first).ok());
  ASSERT_TRUE(s->add_evaluations("s2", second).ok());
  const auto best = s->global_best("op.f32.N64");
  ASSERT_TRUE(best.ok());
  EXPECT_EQ(best->session, "s2");
  EXPECT_EQ(best->cost, 0.4);
  const auto past = s->past_bests("op", "f32", "cpu.avx2", 1);
  ASSERT_TRUE(past.ok());
  ASSERT_EQ(past->size(), 2u);
  EXPECT_EQ((*past)[0].session, "s2");
  EXPECT_EQ((*past)[1].cost, 0.5);
  EXPECT_TRUE(s->past_bests("op", "bf16", "cpu.avx2", 1)->empty());
}

TEST_F(StoreTest, PruneKeepsTheNewest) {
  auto s = open();
  for (int i = 0; i < 5; ++i) {
    const std::string id = "s" + std::to_string(i);
    ASSERT_TRUE(s->begin_session(session_row(id, i)).ok());
    add(*s, id, {node_row(i)});
  }
  ASSERT_TRUE(s->prune(2, 1 << 30).ok());
  const auto rows = s->sessions(10);
  ASSERT_TRUE(rows.ok());
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_EQ((*rows)[0].id, "s4");
  EXPECT_EQ((*rows)[1].id, "s3");
  EXPECT_TRUE(s->blob(sha("source 4")).ok());
  EXPECT_EQ(s->blob(sha("source 2")).status().code(), Code::kNotFound);
}

TEST_F(StoreTest, PruneHoldsTheBytesThatItWasGiven) {
  auto s = open();
  for (int i = 0; i < 16; ++i) {
    const std::string id = "s" + std::to_string(i);
    ASSERT_TRUE(s->begin_session(session_row(id, i)).ok());
    add(*s, id, {node_row(i)});
    EvaluationRow e = evaluation(i, "screened", 1);
    e.verdict_json = std::string(100'000, 'v');
    ASSERT_TRUE(s->add_evaluations(id, {&e, 1}).ok());
  }
  ASSERT_TRUE(s->prune(1000, 600'000).ok());
  const auto rows = s->sessions(100);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->size(), 4u);
  EXPECT_EQ(rows->front().id, "s15");
  ASSERT_TRUE(s->prune(1000, 1).ok());
  EXPECT_EQ(s->sessions(100)->size(), 1u);  // the newest always stays
}

TEST_F(StoreTest, UnfinishedIsTheNewestThatDidNotEnd) {
  auto s = open();
  EXPECT_EQ(s->unfinished("op.f32.N64").status().code(), Code::kNotFound);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(s->begin_session(session_row("s" + std::to_string(i), i)).ok());
  ASSERT_TRUE(s->set_session_state("s2", "done", "", 3).ok());
  EXPECT_EQ(s->unfinished("op.f32.N64")->id, "s1");
  ASSERT_TRUE(s->set_session_state("s2", "stopped", "wall time", 3).ok());
  EXPECT_EQ(s->unfinished("op.f32.N64")->id, "s2");
}

TEST_F(StoreTest, ADamagedFileIsNamedAndAFreshOneOpenedBesideIt) {
  for (const char* damage : {"text", "page"}) {
    const std::string path = dir_.path() + "/" + damage + ".db";
    if (damage == std::string("text")) {
      std::ofstream(path) << std::string(8192, 'x');
    } else {
      auto s = *Store::open(path);
      ASSERT_TRUE(s->begin_session(session_row("s1")).ok());
      add(*s, "s1", {node_row(0)});
      s.reset();  // checkpoints and removes the log
      std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
      f.seekp(4096);
      f << std::string(3 * 4096, '\xff');
    }
    const auto strict = Store::open(path);
    ASSERT_FALSE(strict.ok()) << damage;
    EXPECT_EQ(strict.status().code(), Code::kCorrupt) << strict.status().to_string();
    EXPECT_NE(strict.status().message().find(path), std::string::npos);
    EXPECT_NE(strict.status().message().find("move"), std::string::npos);
    const auto before = std::filesystem::file_size(path);
    auto fresh = Store::open_or_fresh(path);
    ASSERT_TRUE(fresh.ok()) << fresh.status().to_string();
    EXPECT_EQ(fresh->damage.code(), Code::kCorrupt);
    EXPECT_EQ(fresh->store->path(), path + ".2");
    EXPECT_TRUE(fresh->store->begin_session(session_row("s1")).ok());
    // The next process finds the same one, and the damaged file is as it was.
    EXPECT_TRUE(Store::open_or_fresh(path)->store->session("s1").ok());
    EXPECT_EQ(std::filesystem::file_size(path), before);
  }
}

TEST_F(StoreTest, ForeignAndNewerFilesAreRefused) {
  {
    auto db = *Database::open("store", path_, 100);
    ASSERT_TRUE(db->exec("CREATE TABLE t(x)").ok());
  }
  EXPECT_EQ(Store::open(path_).status().code(), Code::kCorrupt);
  EXPECT_NE(Store::open(path_).status().message().find("not of niche"), std::string::npos);
  const std::string newer = dir_.path() + "/newer.db";
  (void)*Store::open(newer);
  {
    auto db = *Database::open("store", newer, 100);
    ASSERT_TRUE(db->exec("PRAGMA user_version=99").ok());
  }
  EXPECT_EQ(Store::open(newer).status().code(), Code::kUnsupported);
  EXPECT_NE(Store::open(newer).status().message().find("schema 99"), std::string::npos);
}

TEST_F(StoreTest, AFileOfTheVersionBeforeIsBroughtUpToDate) {
  ASSERT_TRUE(open()->begin_session(session_row("s1")).ok());
  {
    auto db = *Database::open("store", path_, 100);
    ASSERT_TRUE(db->exec("ALTER TABLE sessions DROP COLUMN process; PRAGMA user_version=2").ok());
  }
  auto s = open();
  EXPECT_EQ(s->session("s1")->process, "");
  ASSERT_TRUE(s->begin_session(session_row("s2")).ok());
  EXPECT_NE(s->session("s2")->process, "");
}

TEST_F(StoreTest, ABlobThatChangedIsCorrupt) {
  auto s = open();
  ASSERT_TRUE(s->begin_session(session_row("s1")).ok());
  add(*s, "s1", {node_row(0)});
  {
    auto db = *Database::open("store", path_, 100);
    ASSERT_TRUE(db->exec("UPDATE blobs SET bytes='other'").ok());
  }
  EXPECT_EQ(s->blob(sha("source 0")).status().code(), Code::kCorrupt);
}

TEST_F(StoreTest, ADirectoryThatIsNotThereIsAnIoError) {
  const auto s = Store::open(dir_.path() + "/no/such/dir/x.db");
  ASSERT_FALSE(s.ok());
  EXPECT_EQ(s.status().code(), Code::kIo);
}

}  // namespace
}  // namespace niche::evolve::store
