// A session's frame: creation, the loop, its ends and what it tells.
#include "evolve/session/session.h"

#include <sys/random.h>

#include <algorithm>

#include "dispatch/devices/cpu/cpu_info.h"
#include "evolve/definition_json.h"
#include "evolve/session/session_impl.h"
#include "evolve/session/session_json.h"

namespace niche::evolve {

using dispatch::Result;
using dispatch::Status;
using search::kNoNode;
using search::Outcome;

namespace {
// Of a session without a template family: the model was asked for the last time, or gave up.
constexpr const char* kNoMorePrograms = "the proposer has no more programs";
// For the cost of a question that was given up: within the wall limit, or a second beyond it.
constexpr double kAccountSeconds = 1, kAccountSecondsMax = 10;
}  // namespace

uint64_t system_entropy() {
  uint64_t v = 0;
  if (getrandom(&v, sizeof v, 0) != sizeof v) v = 0x6e69636865ULL;
  return v != 0 ? v : 1;
}

SessionEvent SessionImpl::event(SessionEvent::Kind kind, std::string reason) const {
  SessionEvent e;
  e.kind = kind;
  double best = 0;
  for (const auto& costs : node_costs_)
    if (!costs.empty() && (best == 0 || costs_.weighted(costs) < best)) best = costs_.weighted(costs);
  for (const auto& [id, p] : models_->all())
    if (p.valid() && (best == 0 || costs_.weighted(p.costs) < best)) best = costs_.weighted(p.costs);
  if (best > 0) e.best_speedup = 1 / best;
  if (plan_.any_committed()) e.committed_speedup = 1 / plan_.committed_cost();
  e.kernels = kernels_;
  e.tried = tried_;
  e.rejected = rejected_;
  e.seconds_used = now();
  e.questions = models_->questions();
  e.programs = static_cast<int>(models_->all().size());
  e.model_usd = models_->usd();
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
  if (models_go_on() || !second_look_.empty()) return {};
  if (space_.family_count() == 0) return kNoMorePrograms;
  if (exhausted_) return "space exhausted";
  if (stagnant_) return "stagnation";
  return {};
}

SessionEvent SessionImpl::run() {
  started_ns_ = parts_.clock->now_ns();
  if (parts_.profile)
    reserved_seconds_ = std::min(kProfileSecondsMax, kProfileShare * request_.wall_seconds_max);
  const auto fail = [&](const Status& s) {
    recorder_.end("done", "failed: " + s.to_string(), parts_.clock->unix_time_ns());
    const SessionEvent e = event(SessionEvent::Kind::kFailed, s.to_string());
    emit(e);
    return e;
  };
  search::PolicyOptions options{request_.seed, warm_, past_};
  auto policy = search::make_policy(request_.policy, space_, options);
  if (!policy.ok()) return fail(policy.status());
  policy_ = std::move(*policy);

  EvaluatorOptions evaluator_options = parts_.evaluator_options;
  evaluator_options.seed = system_entropy();  // what inputs hold must not follow from what is proposed
  evaluator_options.keep_going = [this] { return keep_going(); };
  EvaluatorSpec spec{op_, definition_, request_.problems, parts_.target};
  auto evaluator = parts_.make_evaluator(std::move(spec), std::move(evaluator_options));
  if (!evaluator.ok()) return fail(evaluator.status());
  evaluator_ = std::move(*evaluator);
  auto baselines = evaluator_->baselines();
  if (!baselines.ok()) return fail(baselines.status());
  baselines_ = std::move(*baselines);
  start_models();
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
  // A question that nobody will read the answer of costs money all the same: here, and in a session that is resumed.
  if (models_->finish(std::clamp(left(), kAccountSeconds, kAccountSecondsMax)))
    recorder_.question({models_->questions(), "the session ended", models_->usd(), models_->tokens()});
  const bool spent = reason == "evaluations" || reason == "space exhausted" || reason == "stagnation" ||
                     reason == kNoMorePrograms;
  while (spent && keep_going() && judge_if_due(true)) emit(event(SessionEvent::Kind::kProgress));
  reserved_seconds_ = 0;
  if (reason != "stopped") profile_best();
  if (!recorder_.status().ok() && warning_.empty()) warning_ = recorder_.status().to_string();
  // A budget that was spent may be renewed: such a session can be resumed.
  const bool may_go_on = reason == "stopped" || reason == "wall time" || reason == "evaluations";
  recorder_.end(may_go_on ? "stopped" : "done", reason, parts_.clock->unix_time_ns());
  SessionEvent done = event(SessionEvent::Kind::kDone, reason);
  done.warning = warning_;
  done.model_trouble = models_->trouble();
  done.spent = evaluator_->spent();
  emit(done);
  return done;
}

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
  if (!t.device.empty()) return t.device;
  return std::string("cpu.") + (t.avx512 ? "avx512" : t.avx2 ? "avx2" : "base");
}

}  // namespace niche::evolve
