#include "evolve/session/session.h"

#include <sys/random.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "dispatch/devices/cpu/cpu_info.h"
#include "evolve/definition_json.h"
#include "evolve/search/policy.h"
#include "evolve/search/stagnation.h"
#include "evolve/session/judge_plan.h"
#include "evolve/session/problem_costs.h"
#include "evolve/session/session_json.h"
#include "evolve/session/warm_start.h"
#include "kernels_cache/sha256.h"

namespace niche::evolve {
namespace {

using dispatch::Definition;
using dispatch::Result;
using dispatch::Status;
using search::kNoNode;
using search::Outcome;

constexpr double kJudgeSecondsGuess = 3;
constexpr double kScreenSecondsGuess = 1;

uint64_t entropy() {
  uint64_t v = 0;
  if (getrandom(&v, sizeof v, 0) != sizeof v) v = 0x6e69636865ULL;
  return v != 0 ? v : 1;
}

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

class SessionImpl final : public Session {
 public:
  SessionImpl(SessionRequest request, SessionParts parts, std::shared_ptr<const dispatch::OpSpec> op,
              std::shared_ptr<const Definition> definition)
      : request_(std::move(request)),
        parts_(std::move(parts)),
        op_(std::move(op)),
        definition_(std::move(definition)),
        space_(parts_.families->for_op(definition_->schema().op), *definition_, parts_.target),
        costs_(request_.problems),
        plan_(costs_.weights(), kJudgeSecondsGuess),
        recorder_(nullptr, "") {}

  Status prepare();
  SessionEvent run() override;
  const std::string& id() const override { return request_.session_id; }
  const search::Tree& tree() const override { return tree_; }

 private:
  // ---- time and ends
  double now() const { return static_cast<double>(parts_.clock->now_ns() - started_ns_) * 1e-9; }
  double left() const { return request_.wall_seconds_max - now(); }
  bool stopped() const { return parts_.stop && parts_.stop(); }
  bool keep_going() const { return left() > 0 && !stopped(); }
  // Why the session is over; empty: it is not.
  std::string end_reason() const;

  // ---- setting up
  Status take_up(const store::SessionRow& row);
  Status begin();
  Status replay();

  // ---- the loop
  void run_batch();
  bool note_source(int node, const std::string& dedup_key);
  void apply_twins(std::vector<store::EvaluationRow>& rows);
  // Screens nodes and applies what was found; those about which nothing was found are left for another time.
  void screen(const std::vector<int>& nodes, std::vector<store::EvaluationRow>& rows);
  void apply(const store::EvaluationRow& row, const Verdict* verdict);
  void apply_screen(int node, const Verdict& verdict, std::vector<store::EvaluationRow>& rows);
  void judge(int node);
  bool judge_if_due(bool last_chance);
  // The record's file name; empty where there is no sink.
  Result<std::string> commit(int node, const RenderedPoint& rendered, const Judgement& judgement);
  void count_rejection(const Verdict& verdict) {
    if (verdict.failed_gate != Gate::kNone) ++rejected_[static_cast<size_t>(verdict.failed_gate)];
  }
  SessionEvent event(SessionEvent::Kind kind, std::string reason = {}) const;
  void emit(const SessionEvent& e) const {
    if (parts_.on_event) parts_.on_event(e);
  }
  std::string label(int node) const {
    const search::FamilyPoint& at = tree_.node(node).candidate;
    return space_.family_name(at.family) + ' ' + space_.at(at.family).describe(at.point);
  }

  SessionRequest request_;
  SessionParts parts_;
  std::shared_ptr<const dispatch::OpSpec> op_;
  std::shared_ptr<const Definition> definition_;
  search::TemplateSpace space_;
  ProblemCosts costs_;
  JudgePlan plan_;
  Recorder recorder_;
  std::vector<search::FamilyPoint> warm_;
  SessionHistory history_;

  search::Tree tree_;
  std::unique_ptr<search::Policy> policy_;
  search::Stagnation stagnation_;
  std::unique_ptr<Evaluator> evaluator_;
  std::vector<ProblemBaseline> baselines_;
  std::map<std::string, int> by_source_;  // dedup key -> node
  std::vector<int> unknown_;              // screened without a result, or in flight when a process died
  std::set<int> asked_twice_;
  std::vector<std::pair<int, int>> twins_;  // node, and the one of the same source, waiting for its result
  int64_t started_ns_ = 0;
  int batch_ = 0, tried_ = 0, kernels_ = 0;
  double screen_seconds_ = kScreenSecondsGuess;
  bool exhausted_ = false, stagnant_ = false;
  std::array<int, kGateCount> rejected_{};
  std::string warning_;  // the first trouble that did not end the session
};

Status SessionImpl::prepare() {
  if (space_.family_count() == 0)
    return dispatch::unsupported("session of " + definition_->name() + ": no template family of '" +
                                 definition_->schema().op + "' has a valid point on " +
                                 arch_name(parts_.target));
  if (parts_.store != nullptr && request_.resume) {
    auto row = parts_.store->unfinished(definition_->name());
    if (row.ok()) return take_up(*row);
    if (row.status().code() != dispatch::Code::kNotFound) return row.status();
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
  for (const auto& w : stored["warm"]) {
    if (!w.is_object() || !w.contains("family") || !w.contains("point")) continue;
    if (auto at = point_from_json(space_, w["family"].get<std::string>(), w["point"].dump()))
      warm_.push_back(*at);
  }
  auto nodes = parts_.store->nodes(row.id);
  if (!nodes.ok()) return nodes.status();
  auto evaluations = parts_.store->evaluations(row.id);
  if (!evaluations.ok()) return evaluations.status();
  history_ = {std::move(*nodes), std::move(*evaluations)};
  recorder_ = Recorder(parts_.store, row.id);
  return {};
}

Status SessionImpl::begin() {
  if (request_.seed == 0) request_.seed = entropy();
  if (parts_.store == nullptr) return {};
  const Definition& d = *definition_;
  const std::string dtype(dispatch::dtype_name(d.dtype())), arch = arch_name(parts_.target);
  const auto past = parts_.store->past_bests(d.schema().op, dtype, arch, WarmStartOptions().per_session);
  if (past.ok()) warm_ = warm_start(space_, request_.definition_json, request_.problems, *past);
  nlohmann::json warm = nlohmann::json::array();
  for (const search::FamilyPoint& at : warm_)
    warm.push_back({{"family", space_.family_name(at.family)},
                    {"point", nlohmann::json::parse(point_to_json(space_, at))}});
  store::SessionRow row;
  row.id = request_.session_id;
  row.definition = d.name();
  row.definition_json = request_.definition_json;
  row.op = d.schema().op;
  row.dtype = dtype;
  row.arch = arch;
  row.problems_json = problems_to_json(request_.problems);
  row.request_json =
      nlohmann::json{{"request", nlohmann::json::parse(request_to_json(request_))}, {"warm", warm}}.dump();
  row.started_unix_ns = parts_.clock->unix_time_ns();
  NICHE_RETURN_IF_ERROR(parts_.store->begin_session(row));
  recorder_ = Recorder(parts_.store, request_.session_id);
  return {};
}

// Drives the policy over what was recorded, as if it happened now. The store's nodes rule: should this
// build's policy propose something else than the recorded batch, the batch is taken as recorded.
Status SessionImpl::replay() {
  size_t next = 0, result = 0;
  while (next < history_.nodes.size()) {
    const int batch = history_.nodes[next].batch;
    const int count = std::min(request_.batch, std::max(1, request_.evaluations_max - tried_));
    (void)policy_->propose(tree_, count);
    for (; next < history_.nodes.size() && history_.nodes[next].batch == batch; ++next) {
      const store::NodeRow& n = history_.nodes[next];
      const auto at = point_from_json(space_, n.family, n.point_json);
      if (!at || tree_.add({n.parent, n.second_parent, batch, n.made_by, *at}) != n.id)
        return dispatch::unsupported("session " + request_.session_id + ": node " + std::to_string(n.id) +
                                     " (" + n.family + ' ' + n.point_json +
                                     ") is not of this version's space; start a new session");
      note_source(n.id, render_point(space_, *definition_, parts_.target, *at).dedup_key);
    }
    batch_ = batch + 1;
    // Results up to the first of the next batch; a judgement of an older node stands where it was made.
    const auto end = static_cast<int>(next);
    for (; result < history_.evaluations.size() && history_.evaluations[result].node < end; ++result) {
      const store::EvaluationRow& row = history_.evaluations[result];
      auto verdict = Verdict::from_json(row.verdict_json);
      apply(row, verdict.ok() ? &*verdict : nullptr);
      std::erase_if(twins_, [&](const auto& t) { return t.first == row.node; });
    }
  }
  for (int id = 0; id < tree_.size(); ++id) {
    const bool twin =
        std::any_of(twins_.begin(), twins_.end(), [id](const auto& t) { return t.first == id; });
    if (tree_.node(id).outcome == Outcome::kInFlight && !twin) unknown_.push_back(id);
  }
  return {};
}

SessionEvent SessionImpl::event(SessionEvent::Kind kind, std::string reason) const {
  SessionEvent e;
  e.kind = kind;
  if (tree_.best() != kNoNode) e.best_speedup = 1 / tree_.node(tree_.best()).cost;
  if (plan_.any_committed()) e.committed_speedup = 1 / plan_.committed_cost();
  e.kernels = kernels_;
  e.tried = tried_;
  e.rejected = rejected_;
  e.seconds_used = now();
  e.reason = std::move(reason);
  return e;
}

std::string SessionImpl::end_reason() const {
  if (stopped()) return "stopped";
  if (left() <= 0) return "wall time";
  if (request_.target_speedup > 0 && plan_.any_committed() &&
      1 / plan_.committed_cost() >= request_.target_speedup)
    return "target reached";
  if (tried_ >= request_.evaluations_max) return "evaluations";
  if (exhausted_) return "space exhausted";
  if (stagnant_) return "stagnation";
  return {};
}

SessionEvent SessionImpl::run() {
  started_ns_ = parts_.clock->now_ns();
  const auto fail = [&](const Status& s) {
    recorder_.end("failed: " + s.to_string(), parts_.clock->unix_time_ns());
    const SessionEvent e = event(SessionEvent::Kind::kFailed, s.to_string());
    emit(e);
    return e;
  };
  search::PolicyOptions options{request_.seed, warm_};
  auto policy = search::make_policy(request_.policy, space_, options);
  if (!policy.ok()) return fail(policy.status());
  policy_ = std::move(*policy);

  EvaluatorOptions evaluator_options = parts_.evaluator_options;
  evaluator_options.seed = entropy();  // what inputs hold must not follow from what is proposed
  evaluator_options.keep_going = [this] { return keep_going(); };
  EvaluatorSpec spec{op_, definition_, request_.problems, parts_.target};
  auto evaluator = parts_.make_evaluator(std::move(spec), std::move(evaluator_options));
  if (!evaluator.ok()) return fail(evaluator.status());
  evaluator_ = std::move(*evaluator);
  auto baselines = evaluator_->baselines();
  if (!baselines.ok()) return fail(baselines.status());
  baselines_ = std::move(*baselines);
  if (Status s = replay(); !s.ok()) return fail(s);
  if (!history_.nodes.empty()) emit(event(SessionEvent::Kind::kProgress, "resumed"));

  std::string reason;
  while ((reason = end_reason()).empty()) {
    run_batch();
    emit(event(SessionEvent::Kind::kProgress));
    // Near the end of the time, whatever may still gain is judged while a judgement fits.
    const bool last = left() < 1.3 * plan_.judge_seconds() + screen_seconds_;
    while (end_reason().empty() && judge_if_due(last)) emit(event(SessionEvent::Kind::kProgress));
  }
  const bool spent = reason == "evaluations" || reason == "space exhausted" || reason == "stagnation";
  while (spent && left() > 0.5 * plan_.judge_seconds() && !stopped() && judge_if_due(true))
    emit(event(SessionEvent::Kind::kProgress));
  if (!recorder_.status().ok()) warning_ = recorder_.status().to_string();
  recorder_.end(reason, parts_.clock->unix_time_ns());
  const SessionEvent done =
      event(SessionEvent::Kind::kDone, warning_.empty() ? reason : reason + " (" + warning_ + ")");
  emit(done);
  return done;
}

void SessionImpl::run_batch() {
  std::vector<store::EvaluationRow> rows;
  if (!unknown_.empty()) {
    const std::vector<int> again = std::exchange(unknown_, {});
    screen(again, rows);
    apply_twins(rows);
    recorder_.evaluations(rows);
    return;
  }
  const int count = std::min(request_.batch, request_.evaluations_max - tried_);
  const auto proposals = policy_->propose(tree_, count);
  if (proposals.empty()) {
    exhausted_ = true;
    return;
  }
  const int first = tree_.size();
  std::vector<RenderedPoint> rendered;
  std::vector<int> fresh;
  for (const search::Proposal& p : proposals) {
    const int node = tree_.add({p.parent, p.second_parent, batch_, p.made_by, p.candidate});
    rendered.push_back(render_point(space_, *definition_, parts_.target, p.candidate));
    if (note_source(node, rendered.back().dedup_key)) fresh.push_back(node);
  }
  ++batch_;
  recorder_.nodes(tree_, space_, first, rendered);
  screen(fresh, rows);
  apply_twins(rows);
  recorder_.evaluations(rows);
}

// True: a source not seen before. Else the node waits for its twin's result.
bool SessionImpl::note_source(int node, const std::string& dedup_key) {
  const auto [it, fresh] = by_source_.emplace(dedup_key, node);
  if (!fresh) twins_.emplace_back(node, it->second);
  return fresh;
}

void SessionImpl::screen(const std::vector<int>& nodes, std::vector<store::EvaluationRow>& rows) {
  if (nodes.empty()) return;
  std::vector<Candidate> candidates;
  for (int node : nodes) {
    const search::FamilyPoint& at = tree_.node(node).candidate;
    const std::string suffix = std::string(kFixedSuffix) + std::to_string(candidates.size());
    candidates.push_back(
        {label(node), space_.at(at.family).render(*definition_, parts_.target, at.point, suffix)});
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
    const search::Node& twin = tree_.node(original);
    if (twin.outcome == Outcome::kInFlight) {
      waiting.emplace_back(node, original);
      continue;
    }
    store::EvaluationRow row;
    row.node = node;
    row.kind = "duplicate";
    row.outcome = twin.outcome == Outcome::kValid ? "screened" : "failed";
    row.gate = gate_name(Gate::kDuplicate);
    row.reason = "the same source as node " + std::to_string(original);
    row.cost = twin.cost;
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
  rows.push_back(std::move(row));
}

// One result reaches tree, policy, stagnation and plan: live and on replay alike.
void SessionImpl::apply(const store::EvaluationRow& row, const Verdict* verdict) {
  const bool first = tree_.node(row.node).outcome == Outcome::kInFlight;
  tree_.set_outcome(row.node, row.cost > 0 ? Outcome::kValid : Outcome::kFailed, row.cost);
  if (row.kind == "judge") {
    const double seconds = verdict != nullptr ? verdict->evaluate_ms * 1e-3 : 0;
    const bool faster = row.outcome == "faster" && verdict != nullptr;
    plan_.judged(row.node, faster ? costs_.proven(*verdict) : std::vector<double>{}, seconds);
    kernels_ += faster;
    if (verdict != nullptr) count_rejection(*verdict);
    return;
  }
  if (row.kind == "screen") {
    ++tried_;
    if (verdict != nullptr) {
      count_rejection(*verdict);
      if (auto costs = costs_.of(*verdict); costs && row.cost > 0)
        plan_.screened(row.node, std::move(*costs));
    }
  }
  if (row.kind == "duplicate") ++rejected_[static_cast<size_t>(Gate::kDuplicate)];
  if (!first) return;
  policy_->observed(tree_, row.node);
  const double best = tree_.best() == kNoNode ? 0 : tree_.node(tree_.best()).cost;
  switch (stagnation_.observe(best)) {
    case search::Stagnation::Advice::kGoOn:
      break;
    case search::Stagnation::Advice::kRestart:
      policy_->restart(tree_);
      break;
    case search::Stagnation::Advice::kStop:
      stagnant_ = true;
      break;
  }
}

bool SessionImpl::judge_if_due(bool last_chance) {
  const int node = plan_.next(now(), last_chance);
  if (node == kNoNode) return false;
  judge(node);
  return true;
}

void SessionImpl::judge(int node) {
  const RenderedPoint rendered =
      render_point(space_, *definition_, parts_.target, tree_.node(node).candidate);
  Judgement j = evaluator_->judge({label(node), rendered.source});
  Verdict& v = j.verdict;
  // An interrupted judgement proved nothing against the candidate; only a win stands.
  if (!keep_going() && !v.faster()) {
    plan_.judged(node, {}, 0);
    return;
  }
  std::string file;
  if (v.faster()) {
    auto committed = commit(node, rendered, j);
    if (!committed.ok()) {
      warning_ = "commit of " + label(node) + ": " + committed.status().to_string();
      plan_.judged(node, {}, v.evaluate_ms * 1e-3);
      emit(event(SessionEvent::Kind::kProgress, warning_));
      return;
    }
    file = std::move(*committed);
  }
  const auto costs = costs_.of(v);
  store::EvaluationRow row;
  row.node = node;
  row.kind = "judge";
  row.outcome = outcome_name(v.status);
  row.gate = gate_name(v.failed_gate);
  row.reason = v.reason;
  const bool failed = v.status == VerdictStatus::kRejected;
  row.cost = failed ? 0 : costs ? costs_.weighted(*costs) : tree_.node(node).cost;
  row.verdict_json = v.to_json();
  if (!j.artefact.empty()) row.artefact_hash = kernels_cache::to_hex(kernels_cache::sha256(j.artefact));
  apply(row, &v);
  if (v.faster()) {
    SessionEvent e = event(SessionEvent::Kind::kKernel);
    e.record_file = file;
    e.kernel_name = rendered.source.kernel_name;
    emit(e);
  }
  recorder_.evaluations({row});
}

Result<std::string> SessionImpl::commit(int node, const RenderedPoint& rendered, const Judgement& judgement) {
  const search::FamilyPoint& at = tree_.node(node).candidate;
  kernels_cache::KernelRecord r;
  r.name = rendered.source.kernel_name;
  r.op = definition_->schema().op;
  r.definition = definition_->name();
  r.definition_json = request_.definition_json;
  r.guard = judgement.verdict.guard;
  r.plan = rendered.source.plan;
  r.properties = rendered.source.properties;
  r.provenance = {space_.family_name(at.family), space_.at(at.family).describe(at.point), request_.session_id,
                  judgement.compiler, rendered.text_hash};
  r.source = rendered.source.text;
  r.artefact = judgement.artefact;
  r.artefact_sha256 = kernels_cache::to_hex(kernels_cache::sha256(judgement.artefact));
  r.verdict_json = judgement.verdict.to_json();
  double heaviest = -1;
  for (size_t p = 0; p < baselines_.size(); ++p) {
    const double weight = p < costs_.weights().size() ? costs_.weights()[p] : 0;
    r.fallback_ns += weight * baselines_[p].fallback_ns;
    if (weight > heaviest) heaviest = weight, r.fallback_name = baselines_[p].fallback;
  }
  const std::vector<double> proven = costs_.proven(judgement.verdict);
  r.kernel_ns = r.fallback_ns * costs_.weighted(proven);
  r.created_unix_ns = parts_.clock->unix_time_ns();
  if (parts_.sink == nullptr) return std::string();
  return parts_.sink->commit(r);
}

}  // namespace

Result<std::unique_ptr<Session>> Session::create(const SessionRequest& request, SessionParts parts) {
  if (request.session_id.empty()) return dispatch::invalid("session request: no session id");
  // The bounds of a request are checked where JSON is read; one made in this process passes there too.
  auto checked = request_from_json(request_to_json(request));
  if (!checked.ok()) return checked.status();
  auto definition = definition_from_json(request.definition_json, *parts.ops);
  if (!definition.ok()) return definition.status();
  for (const SeenProblem& p : request.problems)
    if (p.var_axes.size() != (*definition)->var_axes().size())
      return dispatch::invalid("session of " + (*definition)->name() + ": a problem with " +
                               std::to_string(p.var_axes.size()) + " axes, the Definition leaves " +
                               std::to_string((*definition)->var_axes().size()) + " open");
  auto op = parts.ops->find_shared((*definition)->schema().op);
  auto session = std::make_unique<SessionImpl>(std::move(*checked), std::move(parts), std::move(op),
                                               std::move(*definition));
  NICHE_RETURN_IF_ERROR(session->prepare());
  return std::unique_ptr<Session>(std::move(session));
}

CpuTarget detect_target(int threads) {
  const dispatch::CpuInfo info = dispatch::CpuInfo::detect();
  CpuTarget t;
  t.avx2 = info.avx2();
  t.avx512 = info.avx512();
  t.avx512_bf16 = info.avx512_bf16();
  if (info.l1d_bytes > 0) t.l1d_bytes = info.l1d_bytes;
  if (info.l2_bytes > 0) t.l2_bytes = info.l2_bytes;
  if (info.l3_bytes > 0) t.l3_bytes = info.l3_bytes;
  t.threads = threads;
  return t;
}

std::string arch_name(const CpuTarget& t) {
  return std::string("cpu.") + (t.avx512 ? "avx512" : t.avx2 ? "avx2" : "base");
}

}  // namespace niche::evolve
