// A session's steps: a batch is proposed, screened and applied; a candidate is judged and committed.
#include <algorithm>
#include <cstdlib>

#include "evolve/session/candidate_source.h"
#include "evolve/session/kernel_record.h"
#include "evolve/session/session_impl.h"
#include "kernels_cache/sha256.h"

namespace niche::evolve {

using dispatch::Result;
using dispatch::Status;
using search::kNoNode;
using search::Outcome;

namespace {

constexpr int kSmallBatches = 2;  // of 2 and 4 candidates

const char* outcome_name(VerdictStatus s) {
  switch (s) {
    case VerdictStatus::kFaster:
      return "faster";
    case VerdictStatus::kNotFaster:
      return "not_faster";
    case VerdictStatus::kAmbiguous:
      return "ambiguous";
    case VerdictStatus::kRejected:
      return "failed";
  }
  return "failed";
}

}  // namespace

void SessionImpl::run_batch() {
  std::vector<store::EvaluationRow> rows;
  look_again(rows);
  step_models(rows);
  if (!unknown_.empty()) {
    const std::vector<int> again = std::exchange(unknown_, {});
    screen(again, rows);
    apply_twins(rows);
    recorder_.evaluations(rows);
    return;
  }
  // The first batches are small: a hot operator waits for its first kernel, and the compiler takes most of
  // that.
  const int size = batch_ < kSmallBatches ? std::min(request_.batch, 2 << batch_) : request_.batch;
  const int count = std::min(size, request_.evaluations_max - tried_);
  const auto proposals = count > 0 && !exhausted_ && !stagnant_ ? policy_->propose(tree_, count)
                                                                : std::vector<search::Proposal>{};
  if (proposals.empty()) {
    exhausted_ = exhausted_ || (count > 0 && !stagnant_);
    apply_twins(rows);
    recorder_.evaluations(rows);
    return;
  }
  const int first = tree_.size();
  std::vector<RenderedPoint> rendered;
  std::vector<int> fresh;
  for (const search::Proposal& p : proposals) {
    const int node = tree_.add({p.parent, p.second_parent, batch_, p.made_by, p.candidate});
    rendered.push_back(render_point(space_, *definition_, parts_.target, p.candidate));
    if (note_source(node, rendered.back())) fresh.push_back(node);
  }
  ++batch_;
  recorder_.nodes(tree_, space_, first, rendered);
  screen(fresh, rows);
  apply_twins(rows);
  recorder_.evaluations(rows);
}

// True: a source not seen before. Else the node waits for its twin's result.
bool SessionImpl::note_source(int node, const RenderedPoint& rendered) {
  const auto [it, fresh] =
      by_source_.emplace(is_program(node) ? rendered.exact_key : rendered.dedup_key, node);
  if (!is_program(node)) by_source_.emplace(rendered.exact_key, it->second);
  if (!fresh) twins_.emplace_back(node, it->second);
  return fresh;
}

void SessionImpl::screen(const std::vector<int>& nodes, std::vector<store::EvaluationRow>& rows) {
  if (nodes.empty()) return;
  std::vector<Candidate> candidates;
  for (int node : nodes) {
    const std::string suffix = std::string(kFixedSuffix) + std::to_string(candidates.size());
    candidates.push_back({label(node), source_of(node, suffix)});
  }
  const double before = now();
  const std::vector<Verdict> verdicts = evaluator_->screen(candidates);
  screen_seconds_ = now() - before;
  for (size_t i = 0; i < nodes.size(); ++i) {
    // Not rejected, and not timed: the time was up before its turn. Asked once more, then given up.
    const bool unknown = i >= verdicts.size() ||
                         (verdicts[i].status == VerdictStatus::kAmbiguous && verdicts[i].timing.empty());
    if (unknown && (!keep_going() || asked_twice_.insert(nodes[i]).second))
      unknown_.push_back(nodes[i]);
    else
      apply_screen(nodes[i], i < verdicts.size() ? verdicts[i] : Verdict{}, rows);
  }
}

// Nodes whose source is that of another node share its result, once it has one.
void SessionImpl::apply_twins(std::vector<store::EvaluationRow>& rows) {
  std::vector<std::pair<int, int>> waiting;
  for (const auto& [node, original] : twins_) {
    if (!settled(original)) {
      waiting.emplace_back(node, original);
      continue;
    }
    store::EvaluationRow row;
    row.node = node;
    row.kind = "duplicate";
    const auto& shared = costs_at(original);
    row.outcome = shared.empty() ? "failed" : "screened";
    row.gate = gate_name(Gate::kDuplicate);
    row.reason = "the same source as node " + std::to_string(original);
    row.cost = shared.empty() ? 0 : costs_.weighted(shared);
    row.verdict_json = "{}";
    apply(row, nullptr);
    rows.push_back(std::move(row));
  }
  twins_ = std::move(waiting);
}

void SessionImpl::apply_screen(int node, const Verdict& verdict, std::vector<store::EvaluationRow>& rows) {
  const auto costs = costs_.of(verdict);
  const bool valid = verdict.status != VerdictStatus::kRejected && costs.has_value();
  store::EvaluationRow row;
  row.node = node;
  row.kind = "screen";
  row.outcome = valid ? "screened" : "failed";
  row.gate = gate_name(verdict.failed_gate);
  row.reason = verdict.reason;
  row.cost = valid ? costs_.weighted(*costs) : 0;
  row.verdict_json = verdict.to_json();
  apply(row, &verdict);
  if (!is_program(node)) credit_advice(node);
  rows.push_back(std::move(row));
}

// A skill has helped when the point that it suggested is the best so far.
void SessionImpl::credit_advice(int node) {
  const auto from = std::find_if(advised_.begin(), advised_.end(),
                                 [&](const auto& a) { return a.point == tree_.node(node).candidate; });
  if (from == advised_.end() || parts_.model.skills == nullptr) return;
  const Status s = parts_.model.skills->shown({from->skill}, tree_.best() == node);
  if (!s.ok() && warning_.empty()) warning_ = "skills: " + s.to_string();
  advised_.erase(from);
}

// One result reaches tree, policy, stagnation and plan: live and on replay alike.
void SessionImpl::apply(const store::EvaluationRow& row, const Verdict* verdict) {
  const bool first = !settled(row.node);
  if (verdict != nullptr && verdict->digest) digests_[row.node] = *verdict->digest;
  if (row.kind == kProfileKind) return;
  set_costs(row, verdict);
  if (row.kind == "judge") {
    const double seconds = verdict != nullptr ? verdict->evaluate_ms * 1e-3 : 0;
    const bool faster = row.outcome == "faster" && verdict != nullptr;
    const auto timed = verdict != nullptr ? costs_.of(*verdict) : std::nullopt;
    if (row.outcome == outcome_name(VerdictStatus::kAmbiguous) && timed)
      plan_.undecided(row.node, *timed, seconds);
    else
      plan_.judged(row.node, faster ? costs_.proven(*verdict) : std::vector<double>{}, seconds);
    kernels_ += faster;
    if (faster && (best_verified_ == kNoNode || row.cost < best_verified_cost_))
      best_verified_ = row.node, best_verified_cost_ = row.cost;
    if (verdict != nullptr) count_rejection(*verdict);
    return;
  }
  if (row.kind == "screen") {
    ++tried_;
    if (verdict != nullptr) count_rejection(*verdict);
    if (const auto& costs = costs_at(row.node); !costs.empty()) plan_.screened(row.node, costs);
  } else {
    ++rejected_[static_cast<size_t>(Gate::kDuplicate)];
  }
  if (!first) return;
  if (is_program(row.node)) {
    models_->observed(
        row.node, [this](const auto& costs) { return objective_.of(costs); },
        replaying_ ? std::nullopt : std::optional(parts_.clock->unix_time_ns()));
    return;
  }
  policy_->observed(tree_, row.node);
  note_progress();
}

void SessionImpl::set_costs(const store::EvaluationRow& row, const Verdict* verdict) {
  node_costs_.resize(static_cast<size_t>(tree_.size()));
  auto& costs = costs_at(row.node);
  if (row.cost <= 0) {
    costs.clear();
  } else if (auto stated = verdict != nullptr ? costs_.of(*verdict) : std::nullopt) {
    costs = std::move(*stated);
  } else if (row.kind == "duplicate") {
    const auto twin =
        std::find_if(twins_.begin(), twins_.end(), [&](auto& t) { return t.first == row.node; });
    if (twin != twins_.end()) costs = costs_at(twin->second);
    // Of a program that was taken up: its twin stands in the reason.
    if (twin == twins_.end() && is_program(row.node))
      if (const int original = std::atoi(row.reason.c_str() + row.reason.rfind(' ') + 1);
          original >= 0 && original < tree_.size())
        costs = costs_at(original);
  }
  if (is_program(row.node)) {
    Program& p = models_->at(row.node);
    p.settled = true;
    p.gate = row.gate;
    p.reason = row.reason;
    return;
  }
  if (costs.empty())
    tree_.set_outcome(row.node, Outcome::kFailed);
  else
    tree_.set_outcome(row.node, Outcome::kValid, objective_.of(costs));
}

// After each first result: is it time for another objective, a restart, or the end?
void SessionImpl::note_progress() {
  const double best = tree_.best() == kNoNode ? 0 : tree_.node(tree_.best()).cost;
  const auto advice = stagnation_.observe(best);
  if (advice == search::Stagnation::Advice::kGoOn) return;
  const int before = objective_.focus();
  if (advice == search::Stagnation::Advice::kRestart && (objective_.advance() || before >= 0)) {
    for (size_t id = 0; id < node_costs_.size(); ++id)
      if (!node_costs_[id].empty())
        tree_.set_outcome(static_cast<int>(id), Outcome::kValid, objective_.of(node_costs_[id]));
    stagnation_ = search::Stagnation();
    return;
  }
  if (advice == search::Stagnation::Advice::kRestart)
    policy_->restart(tree_);
  else
    stagnant_ = true;
}

bool SessionImpl::judge_if_due(bool last_chance) {
  const int node = plan_.next(now(), last_chance);
  // A judgement that the clock would cut short is time lost to the search.
  if (node == kNoNode || left() < 0.6 * plan_.judge_seconds()) return false;
  judge(node);
  return true;
}

void SessionImpl::judge(int node) {
  const RenderedPoint rendered = this->rendered(node);
  const std::optional<EarlierJudgement> earlier =
      parts_.sink == nullptr
          ? std::nullopt
          : parts_.sink->earlier(definition_->name(), rendered.source.kernel_name, rendered.text_hash);
  Judgement j = evaluator_->judge({label(node), rendered.source, earlier});
  Verdict& v = j.verdict;
  // An interrupted judgement proved nothing against the candidate; only a win stands.
  if (!keep_going() && !v.faster()) {
    plan_.judged(node, {}, 0);
    return;
  }
  std::string file;
  if (v.faster()) {
    auto committed = commit(node, rendered, j, earlier ? &*earlier : nullptr);
    if (!committed.ok()) {
      warning_ = "commit of " + label(node) + ": " + committed.status().to_string();
      plan_.judged(node, {}, v.evaluate_ms * 1e-3);
      emit(event(SessionEvent::Kind::kProgress, warning_));
      return;
    }
    file = std::move(*committed);
  }
  const auto costs = costs_.of(v);
  // Neither right nor wrong and not even timed: the machine cannot be measured, whatever the candidate.
  if (v.status == VerdictStatus::kAmbiguous && !costs && warning_.empty()) warning_ = v.reason;
  store::EvaluationRow row;
  row.node = node;
  row.kind = "judge";
  row.outcome = outcome_name(v.status);
  row.gate = gate_name(v.failed_gate);
  row.reason = v.reason;
  const bool failed = v.status == VerdictStatus::kRejected;
  const auto& screened = costs_at(node);
  row.cost = failed ? 0 : costs_.weighted(costs ? *costs : screened);
  row.verdict_json = v.to_json();
  if (!j.artefact.empty()) row.artefact_hash = kernels_cache::to_hex(kernels_cache::sha256(j.artefact));
  apply(row, &v);
  if (v.faster()) {
    models_->learn_win(label(node), win_text(node, v), 1 / costs_.weighted(costs_.proven(v)),
                       parts_.clock->unix_time_ns());
    SessionEvent e = event(SessionEvent::Kind::kKernel);
    e.record_file = file;
    e.kernel_name = rendered.source.kernel_name;
    emit(e);
  }
  recorder_.source(rendered.source.text);
  recorder_.evaluations({row});
}

void SessionImpl::profile_best() {
  const int node = best_verified_ != kNoNode ? best_verified_ : tree_.best();
  if (!parts_.profile || node == kNoNode) return;
  const RenderedPoint rendered = this->rendered(node);
  auto digest = evaluator_->profile({label(node), rendered.source});
  if (!digest.ok()) {
    if (warning_.empty()) warning_ = "no profile of " + label(node) + ": " + digest.status().to_string();
    return;
  }
  // What it takes is what the judge measured of it; a profiler's passes have other clocks and caches.
  const auto [known, fresh] = digests_.emplace(node, *digest);
  if (!fresh) known->second.counters = digest->counters;
  Verdict v;
  v.digest = known->second;
  store::EvaluationRow row;
  row.node = node;
  row.kind = kProfileKind;
  row.gate = gate_name(Gate::kNone);
  row.verdict_json = v.to_json();
  recorder_.evaluations({row});
}

Result<std::string> SessionImpl::commit(int node, const RenderedPoint& rendered, const Judgement& judgement,
                                        const EarlierJudgement* earlier) {
  std::string family, parameters;
  if (is_program(node)) {
    const Program& p = models_->at(node);
    family = kProgramFamily + (p.model.empty() ? "" : ' ' + p.model);
    parameters = p.name;
  } else {
    const search::FamilyPoint& at = tree_.node(node).candidate;
    family = space_.family_name(at.family);
    parameters = space_.at(at.family).describe(at.point);
  }
  if (parts_.sink == nullptr) return std::string();
  return parts_.sink->commit(
      kernel_record({*definition_, request_.definition_json, rendered, judgement, baselines_, costs_, family,
                     parameters, request_.session_id, parts_.clock->unix_time_ns(), earlier}));
}

}  // namespace niche::evolve
