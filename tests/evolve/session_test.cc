#include "evolve/session/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "evolve/definition_json.h"
#include "evolve/session/judge_plan.h"
#include "evolve/session/objective.h"
#include "evolve/session/session_json.h"
#include "evolve/session/warm_start.h"
#include "tests/evolve/fake_evaluator.h"
#include "tests/evolve/temp_dir.h"
#include "tests/evolve/toy_family.h"
#include "tests/evolve/toy_op.h"

namespace niche::evolve {
namespace {

using dispatch::Code;
using Kind = SessionEvent::Kind;
using Params = FakeWorld::Params;

class ListSink final : public KernelSink {
 public:
  dispatch::Result<std::string> commit(const kernels_cache::KernelRecord& r) override {
    if (!status.ok()) return status;
    records.push_back(r);
    return "file" + std::to_string(records.size()) + ".kc";
  }
  std::optional<EarlierJudgement> earlier(const std::string&, const std::string&,
                                          const std::string&) override {
    return before;
  }
  std::vector<kernels_cache::KernelRecord> records;
  dispatch::Status status;
  std::optional<EarlierJudgement> before;
};

class SessionTest : public testing::Test {
 protected:
  SessionTest() {
    EXPECT_TRUE(ops_.add(std::make_shared<testing_ops::ToyOp>()).ok());
    families_.add(std::make_shared<testing_ops::ToyFamily>());
    definition_ =
        *dispatch::Definition::make(ops_.find("toy_affine_relu")->schema(), dispatch::kF32, {{"N", 64}});
    request_.session_id = "s1";
    request_.definition_json = definition_to_json(*definition_);
    request_.problems = {{{16}, 1, false}};
    request_.seed = 5;
    request_.wall_seconds_max = 1000;
    world_.cost = [](const Params& p, const SeenProblem&) { return smooth(p); };
  }
  // Best at rows=4, unroll=16, back=0: 0.5.
  static double smooth(const Params& p) {
    return 0.5 + 0.1 * std::abs(std::log2(p.at("rows") / 4.0)) +
           0.1 * std::abs(std::log2(p.at("unroll") / 16.0)) + 0.05 * p.at("back");
  }
  SessionParts parts() {
    SessionParts p;
    p.ops = &ops_;
    p.families = &families_;
    p.target.threads = 1;
    p.make_evaluator = [this](EvaluatorSpec spec,
                              EvaluatorOptions options) -> dispatch::Result<std::unique_ptr<Evaluator>> {
      return std::unique_ptr<Evaluator>(
          std::make_unique<FakeEvaluator>(world_, std::move(spec), std::move(options)));
    };
    p.sink = &sink_;
    p.store = store_.get();
    p.clock = &world_.clock;
    p.on_event = [this](const SessionEvent& e) { events_.push_back(e); };
    p.profile = profile_;
    return p;
  }
  SessionEvent run() {
    auto s = Session::create(request_, parts());
    EXPECT_TRUE(s.ok()) << s.status().to_string();
    if (!s.ok()) return {};
    const SessionEvent last = (*s)->run();
    tried_keys_.clear();
    for (int i = 0; i < (*s)->tree().size(); ++i) tried_keys_.push_back(key((*s)->tree(), i));
    return last;
  }
  static std::string key(const search::Tree& tree, int i) {
    const search::Node& n = tree.node(i);
    return std::to_string(n.parent) + ' ' + std::to_string(n.second_parent) + ' ' + std::to_string(n.batch) +
           ' ' + n.made_by + ' ' + search::point_key(n.candidate) + ' ' + std::to_string(n.cost);
  }
  int count(Kind kind) const {
    return static_cast<int>(std::count_if(events_.begin(), events_.end(),
                                          [kind](const SessionEvent& e) { return e.kind == kind; }));
  }
  void open_store(const std::string& file = "search.db") {
    auto s = store::Store::open(dir_.path() + "/" + file);
    ASSERT_TRUE(s.ok()) << s.status().to_string();
    store_ = std::move(*s);
  }

  TempDir dir_;
  dispatch::OpRegistry ops_;
  FamilyRegistry families_;
  std::shared_ptr<const dispatch::Definition> definition_;
  FakeWorld world_;
  bool profile_ = false;
  ListSink sink_;
  std::unique_ptr<store::Store> store_;
  SessionRequest request_;
  std::vector<SessionEvent> events_;
  std::vector<std::string> tried_keys_;
};

TEST_F(SessionTest, TriesWhatASkillOfAnotherOperatorSuggestsAndCountsWhetherItHelped) {
  auto book = kb::SkillBook::open(dir_.path() + "/skills.sqlite");
  ASSERT_TRUE(book.ok());
  open_store();
  kb::Skill skill;
  skill.kind = "win", skill.op = "other", skill.dtype = "f32", skill.arch = arch_name(CpuTarget{});
  skill.title = "other.rows rows=4 unroll=16 lanes=3";
  const int64_t good = *(*book)->add(skill);
  skill.op = "third", skill.title = "third.rows rows=16 unroll=1", skill.gain = -1;
  const int64_t bad = *(*book)->add(skill);
  request_.evaluations_max = 8;
  SessionParts p = parts();
  p.model.skills = book->get();
  auto s = Session::create(request_, std::move(p));
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  (*s)->run();
  const search::Node& first = (*s)->tree().node(0);
  EXPECT_EQ(first.made_by, "warm");
  EXPECT_EQ(first.candidate, (search::FamilyPoint{0, {2, 4, 0, 0}}));
  const auto skills = (*book)->all();
  for (const kb::Skill& k : *skills) {
    if (k.id != good && k.id != bad) continue;
    EXPECT_EQ(k.shown, k.id == good ? 1 : 0) << k.title;  // one suspect skill at a time
    EXPECT_EQ(k.helped, k.id == good ? 1 : 0) << k.title;
  }
}

TEST_F(SessionTest, WhatTheNearestSessionEvaluatedIsThePriorOfTheNext) {
  open_store();
  request_.evaluations_max = 30;
  run();
  const auto learnt = [&](const std::string& session) {
    const std::string text = store_->session(session)->request_json;
    return text.substr(text.find("\"past\":"), 9) != "\"past\":[]";
  };
  EXPECT_FALSE(learnt("s1"));
  request_.session_id = "s2", request_.problems = {{{24}, 1, false}};
  run();
  EXPECT_TRUE(learnt("s2"));
  const auto nodes = store_->nodes("s2");
  ASSERT_TRUE(nodes.ok() && !nodes->empty());
  EXPECT_EQ(nodes->front().made_by, "warm");
  for (const store::NodeRow& n : *nodes) {
    if (n.batch == 0) {
      EXPECT_NE(n.made_by, "seed");
    }
  }
  // Too far to go by: the model begins anew.
  request_.session_id = "s3", request_.problems = {{{16 << 12}, 1, false}};
  run();
  EXPECT_FALSE(learnt("s3"));
}

TEST_F(SessionTest, FindsTheBestAndCommitsIt) {
  const SessionEvent last = run();
  EXPECT_EQ(last.kind, Kind::kDone);
  ASSERT_FALSE(sink_.records.empty());
  EXPECT_NEAR(last.committed_speedup, 2.0, 0.01);
  EXPECT_EQ(sink_.records.back().provenance.parameters.substr(0, 24), "rows=4 unroll=16 back=0 ");
  EXPECT_EQ(count(Kind::kDone), 1);
  EXPECT_EQ(count(Kind::kKernel), static_cast<int>(sink_.records.size()));
  EXPECT_EQ(last.kernels, static_cast<int>(sink_.records.size()));
}

TEST_F(SessionTest, TheFirstWinIsLiveAfterOneScreenAndOneJudgement) {
  run();
  const auto first =
      std::find_if(events_.begin(), events_.end(), [](const auto& e) { return e.kind == Kind::kKernel; });
  ASSERT_NE(first, events_.end());
  EXPECT_LE(first->seconds_used, world_.screen_seconds + world_.judge_seconds + 0.01);
  EXPECT_EQ(first->record_file, "file1.kc");
  EXPECT_GT(first->committed_speedup, 1.0);
}

TEST_F(SessionTest, ARecordCarriesAllThatAServerNeeds) {
  run();
  ASSERT_FALSE(sink_.records.empty());
  const kernels_cache::KernelRecord& r = sink_.records.front();
  EXPECT_EQ(r.definition, definition_->name());
  EXPECT_EQ((*definition_from_json(r.definition_json, ops_))->name(), definition_->name());
  EXPECT_EQ(r.op, "toy_affine_relu");
  EXPECT_EQ(r.artefact.size(), r.source.size());  // the fake's artefact is its source
  EXPECT_EQ(r.artefact_sha256.size(), 64u);
  EXPECT_EQ(r.plan.phases.at(0).symbol, "toy_k");
  EXPECT_EQ(r.guard.var[0].hi, 1 << 20);
  EXPECT_EQ(r.fallback_name, "column order");
  EXPECT_NEAR(r.kernel_ns / r.fallback_ns, 1 / (*Verdict::from_json(r.verdict_json)).timing[0].speedup, 1e-9);
  EXPECT_EQ(r.provenance.session, "s1");
  EXPECT_EQ(r.provenance.compiler, "fake 1.0");
}

TEST_F(SessionTest, AKernelThatIsFoundAgainKeepsWhatWasTimedBefore) {
  const auto timing = [](int64_t rows, double speedup, VerdictStatus status) {
    PointTiming t;
    t.var_axes = {rows};
    t.speedup = speedup;
    t.status = status;
    return t;
  };
  EarlierJudgement before;
  before.compiler = "fake 1.0";
  before.verdict.timing = {timing(4, 0.7, VerdictStatus::kNotFaster), timing(16, 9, VerdictStatus::kFaster)};
  sink_.before = before;
  run();
  ASSERT_FALSE(sink_.records.empty());
  EXPECT_EQ(world_.judged_with_earlier, static_cast<int>(world_.judged.size()));
  auto kept = (*Verdict::from_json(sink_.records.front().verdict_json)).timing;
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0].var_axes[0], 16);
  EXPECT_LT(kept[0].speedup, 3) << "timed again: the later figure";
  EXPECT_EQ(kept[1].var_axes[0], 4);
  EXPECT_EQ(kept[1].speedup, 0.7) << "a loss is kept as well";
  EXPECT_EQ(kept[1].status, VerdictStatus::kNotFaster);

  sink_.records.clear();
  sink_.before->compiler = "another";
  run();
  ASSERT_FALSE(sink_.records.empty());
  EXPECT_EQ((*Verdict::from_json(sink_.records.front().verdict_json)).timing.size(), 1u);
}

TEST_F(SessionTest, TheCacheTellsWhatACommitWouldReplace) {
  run();
  ASSERT_FALSE(sink_.records.empty());
  const kernels_cache::KernelRecord& r = sink_.records.front();
  kernels_cache::CacheOptions options;
  options.root = dir_.path() + "/cache";
  options.environment.device_class = "cpu";
  auto cache = *kernels_cache::KernelCache::open(options);
  CacheSink sink(*cache);
  const auto before = [&] { return sink.earlier(r.definition, r.name, r.provenance.source_hash); };
  EXPECT_FALSE(before());
  for (uint64_t misses : cache->counters().misses) EXPECT_EQ(misses, 0u) << "not there yet is no miss";
  ASSERT_TRUE(sink.commit(r).ok());
  ASSERT_TRUE(before());
  EXPECT_EQ(before()->compiler, r.provenance.compiler);
  EXPECT_EQ(before()->verdict.guard.var[0].hi, r.guard.var[0].hi);
  EXPECT_EQ(before()->verdict.timing.size(), 1u);
  EXPECT_FALSE(sink.earlier(r.definition, r.name, "another source"));
  ASSERT_TRUE(cache->standings().hold(kernels_cache::kernel_ref(r), "crash", "run", 1).ok());
  EXPECT_FALSE(before()) << "held back: it must be verified anew, by itself";
}

TEST_F(SessionTest, OfPointsThatAreOneKernelOneIsTried) {
  run();
  std::set<std::string> different;
  for (const std::string& id : world_.screened) different.insert(id.substr(0, id.find(" tag=")));
  EXPECT_EQ(different.size(), world_.screened.size());
  EXPECT_EQ(tried_keys_.size(), world_.screened.size());
  EXPECT_EQ(events_.back().rejected[static_cast<size_t>(Gate::kDuplicate)], 0);
}

TEST_F(SessionTest, EvaluationLimitHoldsExactly) {
  request_.evaluations_max = 21;
  const SessionEvent last = run();
  EXPECT_EQ(last.reason, "evaluations");
  EXPECT_EQ(world_.screened.size(), 21u);
  EXPECT_EQ(last.tried, 21);
}

TEST_F(SessionTest, WallLimitHoldsToTheSecond) {
  for (double limit : {2.5, 5.0, 7.3, 12.0, 19.9}) {
    request_.wall_seconds_max = limit;
    request_.session_id = "s" + std::to_string(limit);
    const SessionEvent last = run();
    EXPECT_LE(last.seconds_used, limit + 1.0) << last.reason;
  }
}

TEST_F(SessionTest, TimeThatIsLeftIsUsedToJudgeWhatCouldStillGain) {
  world_.judge_seconds = 4;
  request_.wall_seconds_max = 12;
  // All of one batch alike but for a best that comes late.
  const SessionEvent last = run();
  EXPECT_GE(last.kernels, 1);
  EXPECT_LE(last.seconds_used, 13);
}

TEST_F(SessionTest, TargetEndsItWithEvidence) {
  request_.target_speedup = 1.3;
  const SessionEvent last = run();
  EXPECT_EQ(last.reason, "target reached");
  EXPECT_GE(last.committed_speedup, 1.3);
}

TEST_F(SessionTest, NothingFasterMeansNothingCommitted) {
  world_.cost = [](const Params& p, const SeenProblem&) { return 1.0 + smooth(p); };
  const SessionEvent last = run();
  EXPECT_EQ(last.kind, Kind::kDone);
  EXPECT_TRUE(world_.judged.empty());
  EXPECT_TRUE(sink_.records.empty());
  EXPECT_EQ(last.committed_speedup, 0);
}

TEST_F(SessionTest, AScreensPromiseThatTheJudgeDeniesIsNotCommitted) {
  world_.judge_status = [](const Params& p) {
    return p.at("unroll") >= 8 ? VerdictStatus::kRejected
           : p.at("rows") > 2  ? VerdictStatus::kNotFaster
                               : VerdictStatus::kFaster;
  };
  const SessionEvent last = run();
  for (const auto& r : sink_.records) {
    EXPECT_EQ(r.provenance.parameters.find("unroll=16"), std::string::npos);
    EXPECT_EQ(r.provenance.parameters.find("rows=4"), std::string::npos);
  }
  EXPECT_FALSE(sink_.records.empty());
  EXPECT_EQ(std::set<std::string>(world_.judged.begin(), world_.judged.end()).size(), world_.judged.size());
  EXPECT_EQ(last.kind, Kind::kDone);
}

TEST_F(SessionTest, FailuresAreCountedByTheGateThatSaidNo) {
  world_.failing_gate = Gate::kCompile;
  world_.cost = [](const Params& p, const SeenProblem&) { return p.at("back") == 1 ? 0 : smooth(p); };
  const SessionEvent last = run();
  const auto failed =
      std::count_if(world_.screened.begin(), world_.screened.end(),
                    [](const std::string& id) { return id.find("back=1") != std::string::npos; });
  EXPECT_GT(failed, 0);
  EXPECT_EQ(last.rejected[static_cast<size_t>(Gate::kCompile)], failed);
}

TEST_F(SessionTest, JudgingTakesAThirdOfTheTimeAtMost) {
  // Every step of the search is a small gain: an eager judge would do nothing else.
  world_.judge_seconds = 6;
  request_.wall_seconds_max = 300;
  const SessionEvent last = run();
  const double judging = world_.judge_seconds * static_cast<double>(world_.judged.size());
  EXPECT_LE(judging, last.seconds_used / 3 + 2 * world_.judge_seconds);
}

TEST_F(SessionTest, ASpecialistOfOneProblemIsCommittedBesideTheGeneralist) {
  request_.problems = {{{16}, 1, false}, {{512}, 1, false}};
  world_.cost = [](const Params& p, const SeenProblem& s) {
    const double rows = s.var_axes[0] == 16 ? 1 : 16;
    return 0.5 + 0.12 * std::abs(std::log2(p.at("rows") / rows)) +
           0.02 * std::abs(std::log2(p.at("unroll") / 8.0));
  };
  const SessionEvent last = run();
  EXPECT_GE(sink_.records.size(), 2u);
  // No single kernel gives more than 1 / (0.5 + 0.24) = 1.35 on both.
  EXPECT_GT(last.committed_speedup, 1.6);
}

TEST_F(SessionTest, StopEndsItAtTheNextStep) {
  auto p = parts();
  p.stop = [this] { return world_.screens >= 3; };
  auto s = Session::create(request_, std::move(p));
  ASSERT_TRUE(s.ok());
  EXPECT_EQ((*s)->run().reason, "stopped");
  EXPECT_EQ(world_.screens, 3);
}

TEST_F(SessionTest, ACacheThatRefusesDoesNotEndTheSession) {
  sink_.status = dispatch::io_error("disk full");
  const SessionEvent last = run();
  EXPECT_EQ(last.kind, Kind::kDone);
  EXPECT_NE(last.warning.find("disk full"), std::string::npos);
  EXPECT_EQ(last.kernels, 0);
  EXPECT_EQ(count(Kind::kKernel), 0);
}

TEST_F(SessionTest, AStoreThatFailsDoesNotEndTheSession) {
  open_store();
  auto s = Session::create(request_, parts());
  ASSERT_TRUE(s.ok());
  {
    auto db = *store::Database::open("store", store_->path(), 100);
    ASSERT_TRUE(db->exec("PRAGMA foreign_keys=OFF; DROP TABLE evaluations").ok());
  }
  const SessionEvent last = (*s)->run();
  EXPECT_EQ(last.kind, Kind::kDone);
  EXPECT_NE(last.warning.find("no such table"), std::string::npos);
  EXPECT_FALSE(sink_.records.empty());
}

TEST_F(SessionTest, AMachineThatCannotMeasureFailsTheSession) {
  world_.baseline_status = dispatch::device_error("fallback 'column order' crashed");
  const SessionEvent last = run();
  EXPECT_EQ(last.kind, Kind::kFailed);
  EXPECT_NE(last.reason.find("crashed"), std::string::npos);
}

TEST_F(SessionTest, RequestsThatMakeNoSenseAreRefusedByName) {
  const auto refuse = [&](auto change, const std::string& says, Code code = Code::kInvalid) {
    SessionRequest r = request_;
    change(r);
    const auto s = Session::create(r, parts());
    ASSERT_FALSE(s.ok()) << says;
    EXPECT_EQ(s.status().code(), code) << s.status().to_string();
    EXPECT_NE(s.status().message().find(says), std::string::npos) << s.status().to_string();
  };
  refuse([](SessionRequest& r) { r.session_id.clear(); }, "no session id");
  refuse([](SessionRequest& r) { r.problems.clear(); }, "no problem");
  refuse([](SessionRequest& r) { r.problems.resize(65, r.problems[0]); }, "at most 64");
  refuse([](SessionRequest& r) { r.problems[0].var_axes = {1, 2}; }, "2 axes");
  refuse([](SessionRequest& r) { r.problems[0].weight = -1; }, "weight");
  refuse([](SessionRequest& r) { r.wall_seconds_max = 0; }, "wall_seconds_max");
  refuse([](SessionRequest& r) { r.evaluations_max = 0; }, "evaluations_max");
  refuse([](SessionRequest& r) { r.batch = 65; }, "batch");
  refuse([](SessionRequest& r) { r.definition_json = "{}"; }, "op_type");
  families_ = FamilyRegistry();
  refuse([](SessionRequest&) {}, "no template family", Code::kUnsupported);
}

TEST_F(SessionTest, ACrashedSessionResumesToTheSameTree) {
  // The tree of a run that nothing disturbs.
  open_store();
  request_.evaluations_max = 60;
  run();
  const auto whole = tried_keys_;
  ASSERT_GT(whole.size(), 40u);
  // The same, with a crash in every second screen; each time the process starts again.
  const auto a = store_->nodes("s1");
  open_store("second.db");
  request_.session_id = "s2";
  int crashes = 0;
  for (;; ++crashes) {
    ASSERT_LT(crashes, 50);
    world_.screens = 0;
    world_.crash_after_screens = 2;
    auto s = Session::create(request_, parts());
    ASSERT_TRUE(s.ok()) << s.status().to_string();
    try {
      (*s)->run();
      tried_keys_.clear();
      for (int i = 0; i < (*s)->tree().size(); ++i) tried_keys_.push_back(key((*s)->tree(), i));
      break;
    } catch (const std::runtime_error&) {
      request_.resume = true;
    }
  }
  EXPECT_GE(crashes, 3);
  EXPECT_EQ(tried_keys_, whole);
  const auto b = store_->nodes("s2");
  ASSERT_TRUE(a.ok() && b.ok());
  ASSERT_EQ(a->size(), b->size());
  for (size_t i = 0; i < a->size(); ++i) EXPECT_EQ((*a)[i].point_json, (*b)[i].point_json);
  EXPECT_NE(store_->session("s2")->state, "running");
}

TEST_F(SessionTest, AStoppedSessionGoesOnWithANewBudget) {
  open_store();
  request_.evaluations_max = 20;
  EXPECT_EQ(run().reason, "evaluations");
  EXPECT_EQ(store_->session("s1")->state, "stopped");
  request_.resume = true;
  request_.evaluations_max = 40;
  request_.session_id = "ignored";
  const SessionEvent last = run();
  EXPECT_GT(last.tried, 20) << last.reason;
  EXPECT_LE(last.tried, 40) << last.reason;
  EXPECT_TRUE(last.tried == 40 || last.reason != "evaluations") << last.tried;
  EXPECT_EQ(world_.screened.size(), static_cast<size_t>(last.tried));  // nothing was evaluated twice
  EXPECT_EQ(store_->session("s1")->evaluations, last.tried + static_cast<int>(world_.judged.size()));
  EXPECT_EQ(store_->session("ignored").status().code(), Code::kNotFound);
}

TEST_F(SessionTest, ResumeWithoutAnUnfinishedSessionBeginsOne) {
  open_store();
  request_.resume = true;
  EXPECT_EQ(run().kind, Kind::kDone);
  EXPECT_EQ(store_->session("s1")->state, "done");
}

TEST_F(SessionTest, AnEndedSessionIsNotResumedAndSaysWhy) {
  open_store();
  EXPECT_EQ(run().kind, Kind::kDone);
  const auto row = store_->session("s1");
  ASSERT_EQ(row->state, "done");
  request_.resume = true;
  const auto again = Session::create(request_, parts());
  ASSERT_FALSE(again.ok());
  EXPECT_NE(again.status().message().find("session s1 has ended (" + row->reason + ")"), std::string::npos)
      << again.status().message();
}

// What a profiler says of the best verified candidate is kept beside it, and costs the session nothing when it fails.
TEST_F(SessionTest, TheBestIsProfiledAtTheEnd) {
  open_store();
  world_.digest = [](const Params& p) {
    Digest d;
    d.kernel_us = 10, d.registers = 10 * p.at("rows");
    return d;
  };
  Digest counted;
  counted.counters = ProfilerCounters();
  counted.counters->dram = 0.7;
  world_.profiled = counted;
  profile_ = true;
  const SessionEvent e = run();
  EXPECT_EQ(e.kind, Kind::kDone) << e.reason;
  ASSERT_EQ(world_.profiles.size(), 1u);
  const auto rows = *store_->evaluations("s1");
  ASSERT_FALSE(rows.empty());
  EXPECT_EQ(rows.back().kind, "profile");
  const auto nodes = *store_->nodes("s1");
  EXPECT_EQ(nodes[static_cast<size_t>(rows.back().node)].outcome, "faster");
  EXPECT_GT(nodes[static_cast<size_t>(rows.back().node)].cost, 0);
  const auto verdict = Verdict::from_json(rows.back().verdict_json);
  ASSERT_TRUE(verdict.ok() && verdict->digest && verdict->digest->counters);
  EXPECT_DOUBLE_EQ(verdict->digest->counters->dram, 0.7);
  EXPECT_GT(verdict->digest->registers, 0) << "what was computed of it stays";
}

// Its time is kept of the session's, and what takes longer is ended: limits hold to the second.
TEST_F(SessionTest, AProfileTakesNoMoreThanTheSessionsTime) {
  open_store();
  request_.wall_seconds_max = 40;
  request_.batch = 2;
  world_.screen_seconds = 4;
  Digest counted;
  counted.counters = ProfilerCounters();
  world_.profiled = counted;
  profile_ = true;
  for (const auto& [seconds, held] : {std::pair{8.0, true}, {120.0, false}}) {
    world_.profile_seconds = seconds;
    world_.profiles.clear();
    request_.session_id = held ? "s1" : "s2";
    const SessionEvent e = run();
    EXPECT_EQ(e.reason, "wall time");
    EXPECT_EQ(world_.profiles.size(), 1u);
    EXPECT_LE(e.seconds_used, 41.2) << "the wall time, and a step of the fake";
    const auto rows = *store_->evaluations(request_.session_id);
    ASSERT_FALSE(rows.empty());
    EXPECT_EQ(rows.back().kind == "profile", held);
    EXPECT_EQ(e.warning.find("the time was up") == std::string::npos, held) << e.warning;
  }
}

TEST_F(SessionTest, AProfilerThatFailsIsToldAndEndsNothing) {
  world_.profiled = dispatch::device_error("ERR_NVGPUCTRPERM");
  profile_ = true;
  const SessionEvent e = run();
  EXPECT_EQ(e.kind, Kind::kDone);
  EXPECT_FALSE(sink_.records.empty());
  EXPECT_NE(e.warning.find("no profile of"), std::string::npos) << e.warning;
  EXPECT_NE(e.warning.find("ERR_NVGPUCTRPERM"), std::string::npos) << e.warning;
  profile_ = false;
  world_.profiles.clear();
  request_.session_id = "s2";
  run();
  EXPECT_TRUE(world_.profiles.empty()) << "nobody asked for it";
}

TEST_F(SessionTest, TheStoreTellsTheWholeStory) {
  open_store();
  const SessionEvent last = run();
  const auto session = store_->session("s1");
  ASSERT_TRUE(session.ok());
  EXPECT_EQ(session->reason, last.reason);
  const auto nodes = store_->nodes("s1");
  const auto evaluations = store_->evaluations("s1");
  ASSERT_TRUE(nodes.ok() && evaluations.ok());
  EXPECT_EQ(nodes->size(), tried_keys_.size());
  int faster = 0;
  for (const auto& e : *evaluations) faster += e.outcome == "faster";
  EXPECT_EQ(faster, last.kernels);
  for (const auto& e : *evaluations) {
    if (e.kind != "judge") continue;
    const auto source = store_->blob((*nodes)[static_cast<size_t>(e.node)].source_hash);
    ASSERT_TRUE(source.ok()) << source.status().to_string();
    EXPECT_NE(source->find("extern \"C\" void toy_k("), std::string::npos);
  }
}

TEST_F(SessionTest, TheNextSessionOfANearProblemStartsWhereTheLastOneEnded) {
  open_store();
  run();
  const auto cold = world_.screened.size();
  world_.screened.clear();
  request_.session_id = "s2";
  request_.problems = {{{24}, 1, false}};
  request_.target_speedup = 1.99;
  const SessionEvent last = run();
  EXPECT_EQ(last.reason, "target reached");
  EXPECT_LE(world_.screened.size(), 8u) << "cold start took " << cold;
}

TEST(JudgePlan, GainIsWhatTrafficWouldSave) {
  JudgePlan plan({0.75, 0.25}, 2);
  EXPECT_NEAR(plan.gain({0.5, 1.0}), 0.375, 1e-12);
  EXPECT_NEAR(plan.gain({0.5, 2.0}), 0.375, 1e-12);  // where it is slower, the fallback goes on serving
  plan.screened(1, {0.5, 1.0});
  plan.screened(2, {0.9, 0.2});
  EXPECT_EQ(plan.next(1, false), 1);
  plan.judged(1, {0.5, 1.0}, 2);
  EXPECT_NEAR(plan.committed_cost(), 0.625, 1e-12);
  EXPECT_EQ(plan.next(3, false), -1);  // two of three seconds went into judging
  EXPECT_EQ(plan.next(3, true), 2);
  EXPECT_EQ(plan.next(30, false), 2);
}

TEST(JudgePlan, SmallGainsWaitForTheEnd) {
  JudgePlan plan({1.0}, 1);
  plan.screened(1, {0.5});
  plan.judged(1, {0.5}, 1);
  plan.screened(2, {0.485});  // 3 %
  EXPECT_EQ(plan.next(100, false), -1);
  EXPECT_EQ(plan.next(100, true), 2);
  plan.screened(3, {0.47});
  EXPECT_EQ(plan.next(100, false), 3);
  plan.judged(3, {}, 1);  // it failed
  EXPECT_EQ(plan.next(100, false), -1);
}

TEST(JudgePlan, WhatWasFoundNeitherWayIsJudgedAgainAtTheEndAlone) {
  JudgePlan plan({1.0}, 1);
  plan.screened(1, {0.5});
  plan.screened(2, {0.8});
  EXPECT_EQ(plan.next(100, false), 1);
  plan.undecided(1, {0.6}, 1);
  EXPECT_EQ(plan.next(100, false), 2);  // never judged
  plan.undecided(2, {0.99}, 1);         // as measured now it gains too little
  EXPECT_EQ(plan.next(100, false), -1);
  EXPECT_EQ(plan.next(100, true), 1);
  plan.undecided(1, {0.6}, 1);
  EXPECT_EQ(plan.next(100, true), 1);
  plan.undecided(1, {0.6}, 1);
  EXPECT_EQ(plan.next(100, true), -1);  // three in all
  EXPECT_FALSE(plan.any_committed());
}

TEST(JudgePlan, ALaterScreenOverrulesTheEarlier) {
  JudgePlan plan({1.0}, 1);
  plan.screened(1, {0.9});
  plan.screened(2, {0.8});
  plan.screened(1, {0.7});
  EXPECT_EQ(plan.next(100, false), 1);
  plan.judged(1, {0.7}, 1);
  EXPECT_EQ(plan.next(100, true), -1);
}

TEST(Objective, EachHeavyProblemGetsItsTurn) {
  Objective o({0.2, 0.5, 0.01, 0.29});
  const std::vector<double> costs{0.1, 0.2, 0.3, 0.4};
  EXPECT_NEAR(o.of(costs), 0.02 + 0.1 + 0.003 + 0.116, 1e-12);
  std::vector<int> turns;
  while (o.advance()) {
    turns.push_back(o.focus());
    EXPECT_EQ(o.of(costs), costs[static_cast<size_t>(o.focus())]);
  }
  EXPECT_EQ(turns, (std::vector<int>{1, 3, 0}));  // the one of 1 % is not worth it
  EXPECT_EQ(o.focus(), -1);
  EXPECT_FALSE(Objective({1.0}).advance());
}

TEST(NormaliseSource, KeepsWhatCompilersSeeAlone) {
  EXPECT_EQ(normalise_source("int  a = 1 ; // x\n/* y */ int b=2;"), "int a=1;int b=2;");
  EXPECT_EQ(normalise_source("char* s = \"a  // b\";"), "char*s=\"a  // b\";");
  EXPECT_EQ(normalise_source("long n = 1'000'000; char c = '\\''; /*"), "long n=1'000'000;char c='\\'';");
  EXPECT_NE(normalise_source("a b"), normalise_source("ab"));
}

// Two schedules that cut 8 rows into one task and 100 rows differently.
class KernelIdentity : public testing::Test {
 protected:
  KernelIdentity() {
    a_.text = "void k() { /* rows */ }";
    a_.plan.phases = {{"k", {{0, 16}}, 2}};
    a_.limits.var_count = 1;
    a_.limits.var[0] = {1, 16, 1};
    b_ = a_;
    b_.text = "void k() {}";
    b_.plan.phases[0].factors[0].divisor = 64;
    b_.plan.workspace_bytes = 64;
    b_.limits.var[0].hi = 64;
  }
  bool same(const std::vector<ProblemAxes>& problems) const {
    const int vars[] = {0};
    return kernel_identity(a_, vars, problems) == kernel_identity(b_, vars, problems);
  }
  KernelSource a_, b_;
};

TEST_F(KernelIdentity, IsOfSourceAndTasksAtTheProblems) {
  EXPECT_TRUE(same({{8}}));
  EXPECT_TRUE(same({{8}, {16}}));
  EXPECT_FALSE(same({{8}, {100}}));  // 7 tasks and 2
  EXPECT_FALSE(same({{8}, {32}}));   // one refuses it
  EXPECT_FALSE(same({}));
  b_.plan.phases[0].parallel_min_tasks = 1;
  EXPECT_FALSE(same({{8}}));
  b_.plan.phases[0].parallel_min_tasks = 2;
  b_.flags = {"-fno-trapping-math"};
  EXPECT_FALSE(same({{8}}));
}

TEST_F(KernelIdentity, WhatNobodyGeneratedIsComparedAsItStands) {
  b_ = a_;
  EXPECT_TRUE(same({}));
  b_.plan.workspace_bytes = 1;
  EXPECT_FALSE(same({}));
}

TEST(WarmStart, DistanceIsInLogShape) {
  dispatch::OpRegistry ops;
  ASSERT_TRUE(ops.add(std::make_shared<testing_ops::ToyOp>()).ok());
  const auto json = [&](int64_t n, double has_b) {
    return definition_to_json(**dispatch::Definition::make(ops.find("toy_affine_relu")->schema(),
                                                           dispatch::kF32, {{"N", n}}, {{"has_b", has_b}}));
  };
  const auto seen = [](int64_t m) { return std::vector<SeenProblem>{{{m}, 1, false}}; };
  EXPECT_EQ(problem_distance(json(64, 1), seen(8), json(64, 1), seen(8)), 0);
  const double twice = problem_distance(json(64, 1), seen(8), json(64, 1), seen(16));
  EXPECT_NEAR(twice, problem_distance(json(64, 1), seen(8), json(32, 1), seen(8)), 1e-12);
  EXPECT_GT(problem_distance(json(64, 1), seen(8), json(64, 1), seen(64)), twice);
  EXPECT_GE(problem_distance(json(64, 1), seen(8), json(64, 0), seen(8)), 1);
  EXPECT_TRUE(std::isinf(problem_distance(json(64, 1), seen(8), "{}", seen(8))));
}

TEST(SessionJson, RequestsAndEventsRoundTrip) {
  SessionRequest r;
  r.session_id = "id \"quoted\"";
  r.definition_json = "{\"a\":1}";
  r.problems = {{{1, 2}, 0.25, true}, {{3, 4}, 0.75, false}};
  r.op_libraries = {"/a.so", "/b.json"};
  r.python_program = "/opt/python";
  r.seed = ~uint64_t{0};
  r.resume = true;
  const auto back = request_from_json(request_to_json(r));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(request_to_json(*back), request_to_json(r));
  EXPECT_EQ(back->seed, r.seed);
  EXPECT_EQ(back->python_program, "/opt/python");
  SessionEvent e;
  e.kind = Kind::kKernel;
  e.record_file = "x.kc";
  e.rejected[3] = 7;
  e.best_speedup = 1.25;
  e.reason = "wall time";
  e.warning = "disk full";
  e.model_trouble = "no key";
  e.spent = "3 s on the device";
  const auto event = event_from_json(event_to_json(e));
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(event_to_json(*event), event_to_json(e));
  EXPECT_EQ(last_words(*event), "wall time (disk full) (model: no key); 3 s on the device");
  for (const char* bad : {"", "[]", "{}", "{\"kind\":\"dance\"}", "\xff"})
    EXPECT_FALSE(event_from_json(bad).ok());
}

}  // namespace
}  // namespace niche::evolve
