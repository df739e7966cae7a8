// SessionImpl: the inside of a session (session.h): what it holds, and its steps in the order in which they
// run.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "evolve/search/policy.h"
#include "evolve/search/stagnation.h"
#include "evolve/session/advice.h"
#include "evolve/session/candidate_source.h"
#include "evolve/session/judge_plan.h"
#include "evolve/session/model_search.h"
#include "evolve/session/objective.h"
#include "evolve/session/problem_costs.h"
#include "evolve/session/session.h"

namespace niche::evolve {

// What a judgement and a screen are expected to take before one was made.
inline constexpr double kJudgeSecondsGuess = 3, kScreenSecondsGuess = 1;
// Of a session's wall time, kept for its profile: a share, and no more than it mostly takes (profiler.h).
inline constexpr double kProfileShare = 0.25, kProfileSecondsMax = 40;
// An evaluation that adds a profiler's counters to a node's digest, and changes no result.
inline constexpr const char* kProfileKind = "profile";
uint64_t system_entropy();  // never 0

class SessionImpl final : public Session {
 public:
  SessionImpl(SessionRequest request, SessionParts parts, std::shared_ptr<const dispatch::OpSpec> op,
              std::shared_ptr<const dispatch::Definition> definition)
      : request_(std::move(request)),
        parts_(std::move(parts)),
        op_(std::move(op)),
        definition_(std::move(definition)),
        space_(parts_.families->for_op(definition_->schema().op), *definition_, parts_.target,
               problem_axes(*op_, *definition_, request_.problems)),
        costs_(request_.problems),
        plan_(costs_.weights(), kJudgeSecondsGuess),
        objective_(costs_.weights()),
        recorder_(nullptr, ""),
        models_(std::make_unique<ModelSearch>(parts_.model, request_.seed, request_.session_id)) {}

  dispatch::Status prepare();
  SessionEvent run() override;
  const std::string& id() const override { return request_.session_id; }
  const search::Tree& tree() const override { return tree_; }

 private:
  // ---- time and ends
  double now() const { return static_cast<double>(parts_.clock->now_ns() - started_ns_) * 1e-9; }
  double left() const { return request_.wall_seconds_max - reserved_seconds_ - now(); }
  bool stopped() const { return parts_.stop && parts_.stop(); }
  bool keep_going() const { return left() > 0 && !stopped(); }
  // Why the session is over; empty: it is not.
  std::string end_reason() const;

  // ---- setting up
  dispatch::Status take_up(const store::SessionRow& row);
  dispatch::Status begin();
  void remember_nearest(const std::vector<store::PastBest>& past);
  dispatch::Status something_to_try() const;
  dispatch::Status replay();
  void apply_history(size_t& result, int end);

  // ---- the loop
  void run_batch();
  // ---- programs of a model (session_programs.cc)
  void start_models();
  // What a skill says of a committed kernel: a program's own words, and what was measured.
  std::string win_text(int node, const Verdict& verdict) const;
  void step_models(std::vector<store::EvaluationRow>& rows);
  void take_programs(const std::vector<int>& ids, std::vector<store::EvaluationRow>& rows);
  void look_again(std::vector<store::EvaluationRow>& rows);
  void reuse_known_programs(std::vector<store::EvaluationRow>& rows);
  dispatch::Status restore_programs();
  std::vector<TemplateMaterial> template_material() const;
  bool models_go_on() const { return models_->may_go_on() || !known_programs_.empty(); }
  bool note_source(int node, const RenderedPoint& rendered);
  void apply_twins(std::vector<store::EvaluationRow>& rows);
  // Screens nodes and applies what was found; those about which nothing was found are left for another time.
  void screen(const std::vector<int>& nodes, std::vector<store::EvaluationRow>& rows);
  void apply(const store::EvaluationRow& row, const Verdict* verdict);
  void set_costs(const store::EvaluationRow& row, const Verdict* verdict);
  void note_progress();
  void credit_advice(int node);
  void apply_screen(int node, const Verdict& verdict, std::vector<store::EvaluationRow>& rows);
  void judge(int node);
  bool judge_if_due(bool last_chance);
  // What a profiler says of the best candidate, where the caller wants it. A trouble is told, and ends nothing.
  void profile_best();
  // The record's file name; empty where there is no sink.
  dispatch::Result<std::string> commit(int node, const RenderedPoint& rendered, const Judgement& judgement,
                                       const EarlierJudgement* earlier);
  void count_rejection(const Verdict& verdict) {
    if (verdict.failed_gate != Gate::kNone) ++rejected_[static_cast<size_t>(verdict.failed_gate)];
  }
  SessionEvent event(SessionEvent::Kind kind, std::string reason = {}) const;
  void emit(const SessionEvent& e) const {
    if (parts_.on_event) parts_.on_event(e);
  }
  // Of any node, a template point's or a program's.
  std::string label(int node) const {
    if (is_program(node)) return std::string(kProgramFamily) + ' ' + models_->at(node).name;
    const search::FamilyPoint& at = tree_.node(node).candidate;
    return space_.family_name(at.family) + ' ' + space_.at(at.family).describe(at.point);
  }
  KernelSource source_of(int node, const std::string& suffix) const;
  RenderedPoint rendered(int node) const {
    return hashed(source_of(node, std::string(kFixedSuffix)), *definition_, space_.problems());
  }
  std::vector<double>& costs_at(int node) {
    return is_program(node) ? models_->at(node).costs : node_costs_[static_cast<size_t>(node)];
  }
  bool settled(int node) const {
    return is_program(node) ? models_->at(node).settled
                            : tree_.node(node).outcome != search::Outcome::kInFlight;
  }

  SessionRequest request_;
  SessionParts parts_;
  std::shared_ptr<const dispatch::OpSpec> op_;
  std::shared_ptr<const dispatch::Definition> definition_;
  search::TemplateSpace space_;
  ProblemCosts costs_;
  JudgePlan plan_;
  Objective objective_;
  Recorder recorder_;
  std::vector<search::FamilyPoint> warm_;
  std::vector<search::PastResult> past_;  // of the session on the nearest problem
  std::vector<AdvisedPoint> advised_;     // those of warm_ that a skill of another operator suggested
  SessionHistory history_;

  search::Tree tree_;
  std::vector<std::vector<double>> node_costs_;  // by node, a cost a problem; empty: not valid
  int best_verified_ = search::kNoNode;
  double best_verified_cost_ = 0;
  std::map<int, Digest> digests_;  // by node, of candidates for a GPU that were timed
  std::unique_ptr<search::Policy> policy_;
  search::Stagnation stagnation_;
  std::unique_ptr<Evaluator> evaluator_;
  std::vector<ProblemBaseline> baselines_;
  std::map<std::string, int> by_source_;  // of points both keys, of programs the exact one -> node
  std::vector<int> unknown_;              // screened without a result, or in flight when a process died
  std::set<int> asked_twice_;
  std::vector<int> second_look_;            // programs that one screen found too slow to judge
  std::vector<std::pair<int, int>> twins_;  // node, and the one of the same source, waiting for its result
  int64_t started_ns_ = 0;
  int batch_ = 0, tried_ = 0, kernels_ = 0;
  double reserved_seconds_ = 0;  // of the wall time, until what they are for has its turn
  double screen_seconds_ = kScreenSecondsGuess;
  bool exhausted_ = false, stagnant_ = false, replaying_ = false;
  std::array<int, kGateCount> rejected_{};
  std::unique_ptr<ModelSearch> models_;
  std::vector<std::pair<std::string, std::string>> known_programs_;  // of earlier sessions: name, text
  std::string warning_;  // the first trouble that did not end the session
};

}  // namespace niche::evolve
