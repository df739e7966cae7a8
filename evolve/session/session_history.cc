// A session's beginning: fresh, with a warm start from the store, or taken up where a process died.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "evolve/session/candidate_source.h"
#include "evolve/session/session_impl.h"
#include "evolve/session/session_json.h"
#include "evolve/session/warm_start.h"

namespace niche::evolve {

using dispatch::Definition;
using dispatch::Status;
using search::Outcome;

// Programs of earlier sessions that are tried first.
constexpr size_t kKnownProgramsMax = 4;
constexpr size_t kPastResultsMax = 400;  // the model grows slower with each

namespace {

// A point in the store, by the name of its family, and back; nothing where this space has no such point.
nlohmann::json to_store(const search::SearchSpace& space, const search::FamilyPoint& at) {
  return {{"family", space.family_name(at.family)},
          {"point", nlohmann::json::parse(point_to_json(space, at))}};
}
std::optional<search::FamilyPoint> stored_point(const search::SearchSpace& space, const nlohmann::json& j) {
  if (!j.is_object() || !j.contains("family") || !j.contains("point")) return std::nullopt;
  return point_from_json(space, j["family"].get<std::string>(), j["point"].dump());
}

}  // namespace

Status SessionImpl::prepare() {
  exhausted_ = space_.family_count() == 0;  // nothing is drawn from templates; a model may write programs
  if (parts_.store != nullptr && request_.resume) {
    auto row = parts_.store->unfinished(definition_->name());
    if (row.ok()) return take_up(*row);
    if (row.status().code() != dispatch::Code::kNotFound) return row.status();
    if (auto named = parts_.store->session(request_.session_id); named.ok())
      return dispatch::busy("session " + named->id + " has ended (" + named->reason +
                            "): nothing of it is left to resume; start a new session");
  }
  return begin();
}

// A resumed session keeps its seed, policy, batch, problems and warm start: those rule what is proposed.
Status SessionImpl::take_up(const store::SessionRow& row) {
  const auto stored = nlohmann::json::parse(row.request_json, nullptr, false);
  if (!stored.is_object() || !stored.contains("request") || !stored.contains("warm"))
    return dispatch::corrupt("store: session " + row.id + " has no readable request");
  auto old = request_from_json(stored["request"].dump());
  if (!old.ok()) return old.status();
  request_.session_id = row.id;
  request_.seed = old->seed;
  request_.policy = old->policy;
  request_.batch = old->batch;
  request_.problems = old->problems;
  costs_ = ProblemCosts(request_.problems);
  plan_ = JudgePlan(costs_.weights(), kJudgeSecondsGuess);
  objective_ = Objective(costs_.weights());
  space_.set_problems(problem_axes(*op_, *definition_, request_.problems));
  for (const auto& w : stored["warm"])
    if (const auto at = stored_point(space_, w)) warm_.push_back(*at);
  if (stored.contains("past"))
    for (const auto& w : stored["past"])
      if (const auto at = stored_point(space_, w); at && w.contains("cost"))
        past_.push_back({*at, w["cost"].get<double>()});
  auto nodes = parts_.store->nodes(row.id);
  if (!nodes.ok()) return nodes.status();
  auto evaluations = parts_.store->evaluations(row.id);
  if (!evaluations.ok()) return evaluations.status();
  auto questions = parts_.store->questions(row.id);
  if (!questions.ok()) return questions.status();
  history_ = {std::move(*nodes), std::move(*evaluations), std::move(*questions)};
  models_ = std::make_unique<ModelSearch>(parts_.model, request_.seed, row.id);
  recorder_ = Recorder(parts_.store, row.id);
  return parts_.store->set_session_state(row.id, "running", "", 0);
}

// An operator without a template family lives on what a model writes, or wrote before.
Status SessionImpl::something_to_try() const {
  if (space_.family_count() > 0) return {};
  if (models_go_on()) return {};
  const std::string why = "session of " + definition_->name() + ": no template family of '" +
                          definition_->schema().op + "' has a valid point on " + arch_name(parts_.target);
  return dispatch::unsupported(why + (parts_.model.trouble.empty()
                                          ? ", and no proposer is named that could write programs"
                                          : ", and its proposer did not start: " + parts_.model.trouble));
}

Status SessionImpl::begin() {
  if (request_.seed == 0) request_.seed = system_entropy();
  models_ = std::make_unique<ModelSearch>(parts_.model, request_.seed, request_.session_id);
  if (parts_.store == nullptr) return something_to_try();
  const Definition& d = *definition_;
  const std::string dtype(dispatch::dtype_name(d.dtype())), arch = arch_name(parts_.target);
  const auto past = parts_.store->past_bests(d.schema().op, dtype, arch, WarmStartOptions().per_session);
  if (past.ok())
    for (const store::PastBest& p : *past)
      if (p.family == kProgramFamily && known_programs_.size() < kKnownProgramsMax)
        if (auto text = parts_.store->blob(p.source_hash); text.ok())
          known_programs_.emplace_back("known from " + p.session, std::move(*text));
  NICHE_RETURN_IF_ERROR(something_to_try());
  if (past.ok()) warm_ = warm_start(space_, request_.definition_json, request_.problems, *past);
  const auto advice = gather_advice(d.schema().op, arch, parts_.model.library, parts_.model.skills);
  for (AdvisedPoint& a : advised_points(space_, advice)) {
    if (std::find(warm_.begin(), warm_.end(), a.point) != warm_.end()) continue;
    warm_.push_back(a.point);
    if (a.skill != 0) advised_.push_back(std::move(a));
  }
  if (past.ok()) remember_nearest(*past);
  nlohmann::json warm = nlohmann::json::array(), learnt = nlohmann::json::array();
  for (const search::PastResult& r : past_) {
    learnt.push_back(to_store(space_, r.candidate));
    learnt.back()["cost"] = r.cost;
  }
  for (const search::FamilyPoint& at : warm_) warm.push_back(to_store(space_, at));
  store::SessionRow row;
  row.id = request_.session_id;
  row.definition = d.name();
  row.definition_json = request_.definition_json;
  row.op = d.schema().op;
  row.dtype = dtype;
  row.arch = arch;
  row.problems_json = problems_to_json(request_.problems);
  row.request_json = nlohmann::json{
      {"request", nlohmann::json::parse(request_to_json(request_))},
      {"warm", warm},
      {"past", learnt}}.dump();
  row.started_unix_ns = parts_.clock->unix_time_ns();
  NICHE_RETURN_IF_ERROR(parts_.store->begin_session(row));
  recorder_ = Recorder(parts_.store, request_.session_id);
  return {};
}

// What the session on the nearest problem evaluated. A store that cannot tell costs the session its prior, no more.
void SessionImpl::remember_nearest(const std::vector<store::PastBest>& past) {
  const std::string nearest = nearest_session(request_.definition_json, request_.problems, past);
  if (nearest.empty()) return;
  const auto nodes = parts_.store->nodes(nearest);
  if (!nodes.ok()) return;
  for (const store::NodeRow& n : *nodes) {
    if (past_.size() >= kPastResultsMax) break;
    if (!(n.cost > 0) || n.outcome == "in_flight" || n.outcome == "failed") continue;
    if (const auto at = point_from_json(space_, n.family, n.point_json); at && space_.valid(*at))
      past_.push_back({*at, n.cost});
  }
}

// Results up to the first of a node that is not there yet. Programs are there from the beginning.
void SessionImpl::apply_history(size_t& result, int end) {
  for (; result < history_.evaluations.size(); ++result) {
    const store::EvaluationRow& row = history_.evaluations[result];
    if (row.node >= end && !is_program(row.node)) return;
    auto verdict = Verdict::from_json(row.verdict_json);
    apply(row, verdict.ok() ? &*verdict : nullptr);
    std::erase_if(twins_, [&](const auto& t) { return t.first == row.node; });
  }
}

// Drives the policy over what was recorded, as if it happened now. The store's nodes rule: should this
// build's policy propose something else than the recorded batch, the batch is taken as recorded.
Status SessionImpl::replay() {
  NICHE_RETURN_IF_ERROR(restore_programs());
  replaying_ = true;
  size_t next = 0, result = 0;
  while (next < history_.nodes.size()) {
    const int batch = history_.nodes[next].batch;
    // A policy gives what it is asked for, until the space is exhausted and nothing follows anyway.
    const auto count = std::count_if(history_.nodes.begin(), history_.nodes.end(),
                                     [batch](const store::NodeRow& n) { return n.batch == batch; });
    (void)policy_->propose(tree_, static_cast<int>(count));
    for (; next < history_.nodes.size() && history_.nodes[next].batch == batch; ++next) {
      const store::NodeRow& n = history_.nodes[next];
      const auto at = point_from_json(space_, n.family, n.point_json);
      if (!at || tree_.add({n.parent, n.second_parent, batch, n.made_by, *at}) != n.id)
        return dispatch::unsupported("session " + request_.session_id + ": node " + std::to_string(n.id) +
                                     " (" + n.family + ' ' + n.point_json +
                                     ") is not of this version's space; start a new session");
      note_source(n.id, render_point(space_, *definition_, parts_.target, *at));
    }
    batch_ = std::max(batch_, batch + 1);
    // Results up to the first of the next batch; a judgement of an older node stands where it was made.
    const auto end = static_cast<int>(next);
    apply_history(result, end);
  }
  // Programs may have come before the first batch, or after the last.
  apply_history(result, kFirstProgram);
  replaying_ = false;
  const auto left_open = [this](int id) {
    return !settled(id) &&
           std::none_of(twins_.begin(), twins_.end(), [id](const auto& t) { return t.first == id; });
  };
  for (int id = 0; id < tree_.size(); ++id)
    if (left_open(id)) unknown_.push_back(id);
  for (const auto& [id, p] : models_->all())
    if (left_open(id)) unknown_.push_back(id);
  return {};
}

}  // namespace niche::evolve
