// Sessions with a model beside the templates: programs as candidates, repairs, memory across processes and
// sessions, and a model that fails.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>

#include "evolve/definition_json.h"
#include "evolve/search/policy.h"
#include "evolve/session/session.h"
#include "tests/evolve/fake_evaluator.h"
#include "tests/evolve/temp_dir.h"
#include "tests/evolve/toy_family.h"
#include "tests/evolve/toy_op.h"

namespace niche::evolve {
namespace {

using dispatch::Result;
using Params = FakeWorld::Params;

// Answers at once, from a list; the last answer is repeated.
class FakeModel final : public proposer::ProposalSource {
 public:
  bool idle() const override { return !asked_ && !ended_; }
  bool ended() const override { return ended_; }
  dispatch::Status start(const proposer::ProposalRequest& r) override {
    requests.push_back(r);
    asked_ = true;
    return {};
  }
  dispatch::Status start_from(const proposer::Usage& spent) override {
    spent_before = spent;
    if (account) account = spent;
    return {};
  }
  std::optional<proposer::Usage> spent() const override { return account; }
  void finish(double) override {
    if (account && asked_) account->usd += 0.25;
    ended_ = true;
  }
  std::optional<Result<proposer::ProposalReply>> poll(int) override {
    if (!asked_ || silent) return std::nullopt;
    asked_ = false;
    if (!failure.ok()) {
      ended_ = failure.code() == dispatch::Code::kUnsupported;
      return Result<proposer::ProposalReply>(failure);
    }
    const std::string text = answers.empty() ? "no idea" : answers.front();
    if (answers.size() > 1) answers.pop_front();
    return Result<proposer::ProposalReply>(
        proposer::ProposalReply{requests.back().id, text, "fake-1", {10, 20, 0, 0.01, false}});
  }
  std::deque<std::string> answers;
  std::vector<proposer::ProposalRequest> requests;
  dispatch::Status failure;
  proposer::Usage spent_before;
  std::optional<proposer::Usage> account;
  bool silent = false;

 private:
  bool asked_ = false, ended_ = false;
};

// The fake evaluator reads a candidate's parameters from its label; "free" is what no template has.
std::string program(const std::string& name, int salt = 0) {
  return "<NAME>" + name +
         "</NAME><DESCRIPTION>because</DESCRIPTION><CODE>\n// niche: phase entry tasks=M\n"
         "extern \"C\" void entry(const NicheKernelArgs* a, long begin, long end) noexcept { (void)" +
         std::to_string(salt) + "; }\n</CODE>";
}

class ListSink final : public KernelSink {
 public:
  Result<std::string> commit(const kernels_cache::KernelRecord& r) override {
    records.push_back(r);
    return "file" + std::to_string(records.size()) + ".kc";
  }
  std::vector<kernels_cache::KernelRecord> records;
};

class SessionModels : public testing::Test {
 protected:
  SessionModels() {
    EXPECT_TRUE(ops_.add(std::make_shared<testing_ops::ToyOp>()).ok());
    families_.add(std::make_shared<testing_ops::ToyFamily>());
    definition_ =
        *dispatch::Definition::make(ops_.find("toy_affine_relu")->schema(), dispatch::kF32, {{"N", 64}});
    library_ = std::move(*kb::Library::open());
    skills_ = std::move(*kb::SkillBook::open(dir_.path() + "/skills.sqlite"));
    request_.session_id = "s1";
    request_.definition_json = definition_to_json(*definition_);
    request_.problems = {{{16}, 1, false}};
    request_.seed = 5;
    request_.wall_seconds_max = 1000;
    world_.cost = [](const Params& p, const SeenProblem&) {
      if (p.contains("free")) return p.at("free") / 100.0;
      return 0.5 + 0.1 * std::abs(std::log2(p.at("rows") / 4.0)) +
             0.1 * std::abs(std::log2(p.at("unroll") / 16.0)) + 0.05 * p.at("back");
    };
  }
  void open_store() { store_ = std::move(*store::Store::open(dir_.path() + "/store.sqlite")); }
  Result<std::unique_ptr<Session>> make() {
    SessionParts p;
    p.ops = &ops_;
    p.families = &families_;
    p.target.avx2 = true;
    p.target.device = device_;
    p.make_evaluator = [this](EvaluatorSpec spec,
                              EvaluatorOptions options) -> Result<std::unique_ptr<Evaluator>> {
      return std::unique_ptr<Evaluator>(
          std::make_unique<FakeEvaluator>(world_, std::move(spec), std::move(options)));
    };
    p.sink = &sink_;
    p.store = store_.get();
    p.clock = &world_.clock;
    p.model.source = &model_;
    p.model.library = library_.get();
    p.model.skills = skills_.get();
    p.model.options.questions_max = questions_max_;
    p.model.options.context_bytes_max = context_bytes_max_;
    return Session::create(request_, std::move(p));
  }
  SessionEvent run() {
    auto s = make();
    EXPECT_TRUE(s.ok()) << s.status().to_string();
    return s.ok() ? (*s)->run() : SessionEvent{};
  }
  TempDir dir_;
  dispatch::OpRegistry ops_;
  FamilyRegistry families_;
  std::shared_ptr<const dispatch::Definition> definition_;
  std::unique_ptr<kb::Library> library_;
  std::unique_ptr<kb::SkillBook> skills_;
  std::unique_ptr<store::Store> store_;
  SessionRequest request_;
  FakeWorld world_;
  FakeModel model_;
  ListSink sink_;
  std::string device_;  // CpuTarget::device
  int questions_max_ = 3;
  int64_t context_bytes_max_ = 0;
};

// An operator of a user's own has no template family.
class NoFamily : public SessionModels {
 protected:
  NoFamily() {
    families_ = FamilyRegistry();
    // What comes out of a store again has another name, and is as fast as it was.
    world_.cost = [](const Params& p, const SeenProblem&) {
      return p.contains("free") ? p.at("free") / 100.0 : 0.3;
    };
  }
};

// One bottleneck, one method: of the parent, and of the best so far where a program is written anew.
TEST_F(SessionModels, AQuestionSaysWhatLimitsTheParentAndTheMethodForIt) {
  device_ = "cuda.sm_90a";
  world_.digest = [](const Params& p) {
    Digest d;
    d.kernel_us = 20, d.dram = 0.5, d.l2 = 0.2, d.flops_per_byte = 1, d.ridge = 200, d.roof = 0.5;
    d.registers = 255, d.threads = 256, d.blocks = 4096, d.blocks_per_sm = 1, d.occupancy = 0.125;
    d.limiter = "registers", d.waves = 31, d.multiprocessors = 132;
    d.spill_bytes = p.contains("free") ? 0 : 64;  // the templates spill, the program does not
    return d;
  };
  model_.answers = {program("free=30", 1), program("free=30", 2), program("free=30", 3)};
  questions_max_ = 8;
  ASSERT_EQ(run().kind, SessionEvent::Kind::kDone);
  ASSERT_GE(model_.requests.size(), 2u);
  const auto has = [](const proposer::ProposalRequest& r, const char* what) {
    return r.prompt.find(what) != std::string::npos;
  };
  // A draft is told of the best template's trouble, in its words and with its numbers.
  EXPECT_TRUE(has(model_.requests[0], "# What the best so far, template toy.rows"))
      << model_.requests[0].prompt;
  EXPECT_TRUE(has(model_.requests[0], "One bottleneck: spills: 64 bytes")) << model_.requests[0].prompt;
  EXPECT_TRUE(has(model_.requests[0], "One method, \"When registers spill on a GPU\""));
  EXPECT_FALSE(has(model_.requests[0], "Likely bottleneck")) << "two bottlenecks were named";
  bool of_program = false;
  for (const auto& r : model_.requests)
    if (has(r, "# What the program 'free=30' is limited by")) {
      of_program = true;
      EXPECT_TRUE(has(r, "One bottleneck: occupancy: only 12 % of the warps fit, limited by registers"))
          << r.prompt;
      EXPECT_TRUE(has(r, "One method, \"When too few warps fit on a multiprocessor\""));
    }
  EXPECT_TRUE(of_program);
}

TEST_F(SessionModels, WithoutADigestAQuestionIsAsItWas) {
  model_.answers = {program("free=60", 1)};
  questions_max_ = 1;
  ASSERT_EQ(run().kind, SessionEvent::Kind::kDone);
  ASSERT_EQ(model_.requests.size(), 1u);
  EXPECT_EQ(model_.requests[0].prompt.find("One bottleneck"), std::string::npos);
  EXPECT_NE(model_.requests[0].prompt.find("Likely bottleneck"), std::string::npos);
}

TEST_F(NoFamily, ProgramsAloneAreASession) {
  for (const std::string& policy : search::policy_names()) {
    model_.answers = {program("free=60", 1), program("free=30", 2)};
    questions_max_ = 2;
    request_.policy = policy;
    request_.session_id = "s-" + policy;
    sink_.records.clear();
    const SessionEvent e = run();
    EXPECT_EQ(e.kind, SessionEvent::Kind::kDone) << policy << ": " << e.reason;
    EXPECT_EQ(e.reason, "the proposer has no more programs");
    ASSERT_FALSE(sink_.records.empty()) << policy;
    EXPECT_GT(e.committed_speedup, 3) << policy;
    EXPECT_EQ(sink_.records.back().provenance.family, "model fake-1");
  }
}

TEST_F(NoFamily, WithoutAProposerItIsRefusedByName) {
  const auto refuse = [&](ModelParts model) {
    SessionParts p;
    p.ops = &ops_;
    p.families = &families_;
    p.target.avx2 = true;
    p.model = std::move(model);
    const auto made = Session::create(request_, std::move(p));
    EXPECT_EQ(made.status().code(), dispatch::Code::kUnsupported);
    return made.status().message();
  };
  const std::string none = refuse({});
  EXPECT_NE(none.find("no template family of 'toy_affine_relu'"), std::string::npos) << none;
  EXPECT_NE(none.find("no proposer is named"), std::string::npos) << none;
  ModelParts broken;
  broken.trouble = "no such program";
  const std::string failed = refuse(broken);
  EXPECT_NE(failed.find("its proposer did not start: no such program"), std::string::npos) << failed;
}

TEST_F(NoFamily, WhatAModelWroteBeforeIsTriedAgainWithoutOne) {
  open_store();
  model_.answers = {program("free=30")};
  questions_max_ = 1;
  run();
  ASSERT_EQ(sink_.records.size(), 1u);
  questions_max_ = 0;
  request_.session_id = "s2";
  const SessionEvent e = run();
  EXPECT_EQ(e.kind, SessionEvent::Kind::kDone) << e.reason;
  EXPECT_EQ(e.questions, 0);
  EXPECT_EQ(sink_.records.size(), 2u);
}

TEST_F(SessionModels, ProgramsAreScreenedJudgedAndCommitted) {
  model_.answers = {program("free=30")};
  questions_max_ = 1;
  const SessionEvent e = run();
  EXPECT_EQ(e.kind, SessionEvent::Kind::kDone) << e.reason;
  EXPECT_GT(e.committed_speedup, 3.3);
  EXPECT_EQ(e.programs, 1);
  EXPECT_NEAR(e.model_usd, 0.01, 1e-9);
  const auto mine = std::find_if(sink_.records.begin(), sink_.records.end(),
                                 [](const auto& r) { return r.provenance.family == "model fake-1"; });
  ASSERT_NE(mine, sink_.records.end());
  EXPECT_EQ(mine->provenance.parameters, "free=30");
  EXPECT_EQ(mine->plan.phases[0].symbol, "entry_k");
  EXPECT_NE(mine->source.find("entry_k(const"), std::string::npos);
  EXPECT_NE(mine->name.find("toy_affine_relu.f32.model."), std::string::npos);
}

TEST_F(SessionModels, TellsTheModelTheOperatorTheRulesAndWhatWasTried) {
  model_.answers = {program("free=80"), program("free=70", 1), program("free=60", 2)};
  run();
  ASSERT_EQ(model_.requests.size(), 3U);
  const auto& r = model_.requests;
  EXPECT_EQ(r[0].task, "draft");
  EXPECT_EQ(r[1].task, "improve");
  EXPECT_EQ(r[0].stable, r[2].stable);  // what a service caches
  for (const char* text : {"p[0] = x: in, f32 [M,N]", "n[1] = N: constant 64", "AVX2", "noexcept", "<CODE>"})
    EXPECT_NE(r[0].stable.find(text), std::string::npos) << text;
  // The second question starts from the best template point.
  EXPECT_NE(r[1].parent.find("extern \"C\" void toy("), std::string::npos) << r[1].parent;
  EXPECT_EQ(r[1].parent.find("struct NicheKernelArgs {"), std::string::npos);
  EXPECT_NE(r[1].prompt.find("# The program 'toy.rows rows="), std::string::npos) << r[1].prompt;
  // Without memory nothing of the past is shown, whatever there is.
  EXPECT_EQ(r[0].prompt.find("# Attempts"), std::string::npos);
  EXPECT_NE(r[0].prompt.find("column order"), std::string::npos);
}

TEST_F(SessionModels, AQuestionFitsASmallContext) {
  context_bytes_max_ = 6000;
  model_.answers = {program("free=80"), program("free=70", 1), program("free=60", 2)};
  run();
  ASSERT_EQ(model_.requests.size(), 3U);
  for (const auto& r : model_.requests) {
    EXPECT_LE(r.stable.size() + r.prompt.size(), 6000U) << r.stable << r.prompt;
    EXPECT_LE(r.tokens_max, 1500);
    // What no answer can do without is there, and so are the rules that fit.
    for (const char* text : {"p[0] = x: in, f32 [M,N]", "AVX2", "<CODE>", "# Rules\n\n#"})
      EXPECT_NE(r.stable.find(text), std::string::npos) << text;
    EXPECT_NE(r.prompt.find("# Now"), std::string::npos);
  }
  EXPECT_NE(model_.requests[1].prompt.find("# The program 'toy.rows rows="), std::string::npos);
}

TEST_F(SessionModels, AContextTooSmallForTheOperatorHoldsItAllTheSame) {
  context_bytes_max_ = 100;
  model_.answers = {program("free=80")};
  run();
  ASSERT_FALSE(model_.requests.empty());
  EXPECT_NE(model_.requests[0].stable.find("p[0] = x: in, f32 [M,N]"), std::string::npos);
  EXPECT_EQ(model_.requests[0].prompt.find("# Notes"), std::string::npos);
}

TEST_F(SessionModels, RepairsALineageAtMostFiveTimes) {
  for (int i = 0; i < 9; ++i) model_.answers.push_back(program("free=0", i));
  questions_max_ = 8;
  run();
  ASSERT_EQ(model_.requests.size(), 8U);
  EXPECT_EQ(model_.requests[0].task, "draft");
  for (int i = 1; i <= 5; ++i) EXPECT_EQ(model_.requests[static_cast<size_t>(i)].task, "repair") << i;
  EXPECT_NE(model_.requests[6].task, "repair");
  EXPECT_NE(model_.requests[1].prompt.find("fails by design"), std::string::npos);
  EXPECT_EQ(model_.requests[7].task, "repair");  // of the new lineage
}

TEST_F(SessionModels, GoesOnWithTemplatesWhenTheModelFails) {
  model_.failure = dispatch::unsupported("the service answered 401");
  const SessionEvent e = run();
  EXPECT_EQ(e.kind, SessionEvent::Kind::kDone);
  EXPECT_GE(e.kernels, 1);
  EXPECT_EQ(model_.requests.size(), 1U);
  EXPECT_NE(e.model_trouble.find("401"), std::string::npos) << last_words(e);
}

TEST_F(SessionModels, AnAnswerWithoutAProgramIsNoEvaluationAndIsToldToTheModel) {
  model_.answers = {"I would rather not.", program("free=40")};
  questions_max_ = 2;
  const SessionEvent e = run();
  EXPECT_EQ(e.programs, 1);
  ASSERT_EQ(model_.requests.size(), 2U);
  EXPECT_NE(model_.requests[1].prompt.find("no program"), std::string::npos) << model_.requests[1].prompt;
}

TEST_F(SessionModels, AModelThatNeverHelpsIsGivenUp) {
  model_.answers = {"no"};
  questions_max_ = 1000;
  const SessionEvent e = run();
  EXPECT_EQ(e.kind, SessionEvent::Kind::kDone);
  EXPECT_EQ(model_.requests.size(), static_cast<size_t>(ModelSearch::kFailedQuestionsMax));
}

TEST_F(SessionModels, TheSameProgramTwiceIsEvaluatedOnce) {
  model_.answers = {program("free=60"), program("free=60 again=1")};
  questions_max_ = 2;
  const SessionEvent e = run();
  EXPECT_EQ(e.programs, 2);
  EXPECT_EQ(std::count_if(world_.screened.begin(), world_.screened.end(),
                          [](const std::string& id) { return id.starts_with("model"); }),
            1);
}

TEST_F(SessionModels, ATakenUpSessionKeepsItsPrograms) {
  open_store();
  model_.answers = {program("free=60"), program("free=55", 1), program("free=0", 2)};
  world_.crash_after_screens = 6;
  questions_max_ = 2;
  auto s = make();
  ASSERT_TRUE(s.ok());
  EXPECT_THROW((*s)->run(), std::runtime_error);
  s->reset();
  const size_t asked = model_.requests.size();
  EXPECT_EQ(asked, 2U);
  world_.crash_after_screens = -1;
  world_.screened.clear();
  request_.session_id = "s2";
  request_.resume = true;
  const SessionEvent e = run();
  EXPECT_EQ(e.kind, SessionEvent::Kind::kDone) << e.reason;
  EXPECT_EQ(e.programs, 2);
  EXPECT_EQ(model_.requests.size(), asked);  // both questions were asked and answered before
  for (const std::string& id : world_.screened) EXPECT_FALSE(id.starts_with("model")) << id;
}

// The only program of an operator without templates, on a machine so loaded that the first judgement finds neither way.
TEST_F(SessionModels, AJudgementThatFoundNeitherWayIsMadeAgain) {
  families_ = FamilyRegistry();
  questions_max_ = 1;
  model_.answers = {program("free=50")};
  int judgements = 0;
  world_.judge_status = [&](const Params&) {
    return ++judgements == 1 ? VerdictStatus::kAmbiguous : VerdictStatus::kFaster;
  };
  open_store();
  const SessionEvent done = run();
  EXPECT_EQ(world_.judged.size(), 2U) << done.reason;
  EXPECT_EQ(done.kernels, 1);
  EXPECT_EQ(sink_.records.size(), 1U);
}

TEST_F(SessionModels, AJudgementIsMadeThreeTimesAtMost) {
  families_ = FamilyRegistry();
  questions_max_ = 1;
  model_.answers = {program("free=50")};
  world_.judge_status = [](const Params&) { return VerdictStatus::kAmbiguous; };
  const SessionEvent done = run();
  EXPECT_EQ(world_.judged.size(), 3U);
  EXPECT_EQ(done.kernels, 0);
}

// One screen is a few pairs at one moment.
TEST_F(SessionModels, AProgramIsScreenedTwiceBeforeItIsTooSlowToJudge) {
  families_ = FamilyRegistry();
  questions_max_ = 1;
  model_.answers = {program("free=50")};
  world_.cost = [this](const Params&, const SeenProblem&) { return world_.screened.size() <= 1 ? 1.2 : 0.5; };
  open_store();
  const SessionEvent done = run();
  EXPECT_EQ(world_.screened.size(), 2U);
  EXPECT_EQ(done.kernels, 1) << done.reason;
  EXPECT_NEAR(done.best_speedup, 2, 1e-9);
}

TEST_F(SessionModels, ASecondScreenThatIsNoBetterChangesNothing) {
  families_ = FamilyRegistry();
  questions_max_ = 1;
  model_.answers = {program("free=50")};
  world_.cost = [this](const Params&, const SeenProblem&) { return world_.screened.size() <= 1 ? 1.2 : 1.5; };
  const SessionEvent done = run();
  EXPECT_EQ(world_.screened.size(), 2U);
  EXPECT_EQ(done.tried, 2);
  EXPECT_EQ(done.kernels, 0);
  EXPECT_NEAR(done.best_speedup, 1 / 1.2, 1e-9);
}

TEST_F(SessionModels, ATakenUpSessionRemembersWhatItSpentAndHowOftenTheModelFailed) {
  open_store();
  model_.answers = {program("free=60"), "no idea"};
  questions_max_ = 3;
  request_.evaluations_max = 30;
  const SessionEvent before = run();
  EXPECT_EQ(before.questions, 3);
  EXPECT_NEAR(before.model_usd, 0.03, 1e-9);
  ASSERT_EQ(store_->session("s1")->state, "stopped") << before.reason;
  const auto rows = store_->questions("s1");
  ASSERT_TRUE(rows.ok());
  ASSERT_EQ(rows->size(), 3U);
  EXPECT_EQ((*rows)[0].outcome, "programs");
  EXPECT_NE((*rows)[2].outcome, "programs");

  request_.resume = true;
  request_.evaluations_max = 600;  // more than there are kernels
  questions_max_ = 1000;
  model_.requests.clear();
  const SessionEvent after = run();
  // Two failures in a row had been counted.
  EXPECT_EQ(model_.requests.size(), static_cast<size_t>(ModelSearch::kFailedQuestionsMax) - 2);
  EXPECT_EQ(after.questions, 3 + ModelSearch::kFailedQuestionsMax - 2);
  EXPECT_NEAR(after.model_usd, 0.01 * after.questions, 1e-9);
  EXPECT_EQ(model_.requests.front().id, "s1-p4");
  // What was learnt of skills before is not counted again.
  EXPECT_NEAR(model_.spent_before.usd, 0.03, 1e-9);
}

TEST_F(SessionModels, WhatAQuestionWithoutAnAnswerCostIsCountedAndRemembered) {
  open_store();
  model_.account.emplace();
  model_.silent = true;
  request_.evaluations_max = 9;
  const SessionEvent before = run();
  EXPECT_EQ(before.questions, 1);
  EXPECT_NEAR(before.model_usd, 0.25, 1e-9);
  const auto rows = *store_->questions("s1");
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_NEAR(rows[0].usd, 0.25, 1e-9);

  model_ = FakeModel();
  model_.account.emplace();
  model_.silent = true;
  request_.resume = true;
  request_.evaluations_max = 18;
  const SessionEvent after = run();
  EXPECT_EQ(model_.requests.front().id, "s1-p2");
  EXPECT_NEAR(after.model_usd, 0.5, 1e-9);  // what was spent before counts, and once
}

TEST_F(SessionModels, ALessonSaysWhenItWasLearnt) {
  model_.answers = {program("free=0"), program("free=60", 1)};
  questions_max_ = 2;
  run();
  const auto all = *skills_->all("toy_affine_relu");
  const auto lesson = std::find_if(all.begin(), all.end(), [](const auto& s) { return s.kind == "lesson"; });
  ASSERT_NE(lesson, all.end());
  EXPECT_GT(lesson->unix_ns, 0);
}

TEST_F(SessionModels, AKnownProgramIsVerifiedAgainNotInventedAgain) {
  open_store();
  model_.answers = {program("free=30")};
  questions_max_ = 1;
  run();
  request_.session_id = "s2";
  questions_max_ = 0;
  world_.screened.clear();
  world_.cost = [base = world_.cost](const Params& p, const SeenProblem& s) {
    return p.empty() ? 0.3 : base(p, s);  // "known from s1" has no parameters
  };
  const SessionEvent e = run();
  EXPECT_GT(e.committed_speedup, 3.3);
  ASSERT_FALSE(world_.screened.empty());
  EXPECT_EQ(world_.screened.front(), "model known from s1");
}

TEST_F(SessionModels, SkillsGetEvidenceAndWinsAreWrittenBack) {
  kb::Skill hint;
  hint.kind = "win", hint.op = "toy_affine_relu", hint.dtype = "f32", hint.arch = "cpu.avx2",
  hint.title = "be free";
  hint.text = "freely", hint.session = "s0";
  const int64_t id = *skills_->add(hint);
  model_.answers = {program("free=30"), program("free=29", 1)};
  questions_max_ = 2;
  run();
  EXPECT_NE(model_.requests[0].prompt.find("> be free"), std::string::npos);
  const auto all = *skills_->all("toy_affine_relu");
  const auto mine = std::find_if(all.begin(), all.end(), [&](const auto& s) { return s.id == id; });
  EXPECT_GE(mine->shown, 1);
  EXPECT_GE(mine->helped, 1);  // the first program was better than the library form
  EXPECT_TRUE(
      std::any_of(all.begin(), all.end(), [](const auto& s) { return s.title.starts_with("model free="); }));
}

}  // namespace
}  // namespace niche::evolve
