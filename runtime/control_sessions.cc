// Control's sessions: when to start one, what became of it.
#include <algorithm>
#include <utility>

#include "evolve/definition_json.h"
#include "runtime/control.h"
#include "runtime/device_plane.h"

namespace niche::core {

using dispatch::LogLevel;
using evolve::SessionEvent;

namespace {

constexpr int64_t kPlanPeriodNs = 100'000'000;

Planner::Outcome outcome_of(const SessionEvent& last, int kernels) {
  if (kernels > 0) return Planner::Outcome::kGained;
  if (last.kind == SessionEvent::Kind::kDone) return Planner::Outcome::kNothing;
  const auto starts = [&](const char* code) { return last.reason.rfind(code, 0) == 0; };
  if (starts("busy")) return Planner::Outcome::kBusy;
  if (starts("unsupported") || starts("not_found") || starts("invalid")) return Planner::Outcome::kRefused;
  return Planner::Outcome::kBroken;
}

}  // namespace

void Control::find_worker() {
  const RuntimeConfig& config = core_->config();
  if (!config.evolve) {
    evolution_off_ = "switched off (evolve = false)";
  } else if (!host().cache) {
    evolution_off_ = "no cache: " + host().problem;
  } else if (config.cache_read_only) {
    evolution_off_ = "the cache is read-only";
  } else {
    auto program = evolve::find_worker_program(config.worker_program);
    if (program.ok())
      worker_program_ = *program;
    else
      evolution_off_ = program.status().message();
  }
  // One session at a time asks for a device; the gate is this process's, since its requests are.
  for (size_t device = 1; device < shelves_.size(); ++device)
    permits_.push_back(
        std::make_unique<TuningGate>(config.devices->make_permits(core_->clock(), [core = core_.get()] {
          const uint64_t opened = core->dispatcher().totals().requests_opened;
          return evolve::Traffic{opened, opened - std::min(opened, core->dispatcher().requests_in_flight())};
        })));
  if (!evolution_off_.empty()) core_->log(LogLevel::kInfo, "runtime", "evolution is off: " + evolution_off_);
}

void Control::run_sessions(int64_t now_ns) {
  for (auto at = sessions_.begin(); at != sessions_.end();) {
    SessionRunner& runner = *at->second;
    const bool ended = runner.ended();  // before its events are taken: none may follow
    for (const SessionEvent& e : runner.take_events()) on_session_event(runner, e, now_ns);
    at = ended ? sessions_.erase(at) : std::next(at);
  }
  int running = 0;
  for (const auto& [id, s] : sessions_) running += !s->paused();
  sessions_running_.store(running, std::memory_order_relaxed);  // relaxed: a figure for people
}

void Control::on_session_event(SessionRunner& runner, const SessionEvent& e, int64_t now_ns) {
  const auto at = std::find_if(sessions_.begin(), sessions_.end(),
                               [&](const auto& s) { return s.second.get() == &runner; });
  DefinitionState& d = *definitions_.at(at->first);
  const std::string& name = d.known.definition->name();
  d.tried = e.tried;
  for (size_t g = 0; g < d.rejected.size(); ++g)
    d.rejected[g] = d.rejected_earlier[g] + static_cast<uint64_t>(e.rejected[g]);
  d.best_seen = e.best_speedup;
  purse_.cost(d.place(), e.model_usd);
  switch (e.kind) {
    case SessionEvent::Kind::kProgress:
      return;
    case SessionEvent::Kind::kKernel: {
      ++counters_.kernels_committed;
      ++d.session_kernels;
      d.gain_committed = e.committed_speedup;
      event("kernel verified", name, e.kernel_name + " (" + e.record_file + ")", LogLevel::kInfo);
      (void)shelf(d).cache->refresh();
      const auto id = kernels_cache::KernelId::from_file_name(e.record_file);
      if (!id) return;
      if (auto k = load_kernel(d, *id)) d.waiting.push_back(k);
      return;
    }
    case SessionEvent::Kind::kDone:
    case SessionEvent::Kind::kFailed: {
      const bool failed = e.kind == SessionEvent::Kind::kFailed;
      if (failed) ++counters_.sessions_failed;
      ended_sessions_cpu_ += running_sessions_cpu_;
      running_sessions_cpu_ = 0;
      purse_.settle(d.place());
      Planner::Outcome outcome = outcome_of(e, d.session_kernels);
      if (outcome == Planner::Outcome::kNothing && d.yielding) outcome = Planner::Outcome::kYielded;
      planner_.session_ended(d.place(), outcome, now_ns);
      d.refusal = outcome == Planner::Outcome::kRefused ? e.reason : "";
      // It is over once a model answers with a program again.
      if (!e.model_trouble.empty() || e.programs > 0) proposer_trouble_ = e.model_trouble;
      // What is left to gain, for the ranking: little once a session found its best, nothing where it found
      // none.
      if (outcome == Planner::Outcome::kGained)
        telemetry_.set_saving(d.place(), 1 - 1 / std::max(1.0, d.gain_committed), 0.02);
      else if (outcome == Planner::Outcome::kNothing)
        telemetry_.set_saving(d.place(), 0.05, 0.01);
      event(failed ? "session failed" : "session ended", name,
            evolve::last_words(e) + "; " + std::to_string(e.tried) + " tried, " +
                std::to_string(d.session_kernels) + " kernels",
            failed ? LogLevel::kWarning : LogLevel::kInfo);
      return;
    }
  }
}

void Control::plan(int64_t now_ns) {
  if (now_ns - last_plan_ns_ < kPlanPeriodNs) return;
  ranking_ = telemetry_.ranking(kRankingMax);
  const uint64_t requests = core_->dispatcher().totals().requests_opened;
  requests_per_s_ =
      static_cast<double>(requests - requests_seen_) * 1e9 / static_cast<double>(now_ns - last_plan_ns_);
  requests_seen_ = requests;
  last_plan_ns_ = now_ns;
  // A device that was ever called serves: replays of graphs that it captured then are not seen here.
  std::vector<bool> serves(shelves_.size());
  for (const auto& [id, d] : definitions_)
    if (d->board.problems() != 0) serves[static_cast<size_t>(d->device)] = true;
  for (size_t i = 0; i < permits_.size(); ++i) permits_[i]->set_serves(serves[i + 1]);
  if (!evolution_off_.empty() || host().probation_mode) return;
  std::vector<int> trees;
  bool running = false;
  for (const auto& [id, s] : sessions_) {
    if (s->pid() != 0) trees.push_back(s->pid());
    running = running || !s->paused();
  }
  last_pressure_ = pressure_.sample(trees);
  // A tree's figure falls when its process is gone: what was seen last counts.
  running_sessions_cpu_ =
      trees.empty() ? 0 : std::max(running_sessions_cpu_, last_pressure_.children_cpu_seconds);
  Conditions c;
  c.now_ns = now_ns;
  c.running = static_cast<int>(sessions_.size());
  c.session_cpu_seconds = ended_sessions_cpu_ + running_sessions_cpu_;
  c.memory_share = last_pressure_.memory_share;
  c.throttled = last_pressure_.throttled;
  c.p99_suffers = latency_.advance(running, now_ns);
  c.p99_known = latency_.ready(now_ns);
  c.paused_by_owner = owner_pause_.load();
  const std::string reason = planner_.pause_reason(c);
  if (reason != pause_reason_) {
    pause_reason_ = reason;
    if (!sessions_.empty())
      event(reason.empty() ? "sessions resumed" : "sessions paused", "", reason, LogLevel::kInfo);
  }
  for (const auto& [id, s] : sessions_) s->set_paused(!reason.empty());
  if (!reason.empty()) return;
  std::vector<telemetry::HotDefinition> possible;
  for (const telemetry::HotDefinition& hot : ranking_) {
    const auto at = definitions_.find(hot.definition);
    if (at != definitions_.end() && !nothing_proposes(*at->second)) possible.push_back(hot);
  }
  for (const auto& [id, s] : sessions_) {
    DefinitionState& d = *definitions_.at(id);
    if (planner_.should_yield({id, d.session_kernels, d.tried, d.best_seen}, possible, now_ns)) {
      d.yielding = true;
      s->stop();
    }
  }
  if (const telemetry::HotDefinition* hot = planner_.next(possible, c, &plan_idle_))
    start_session(*hot, now_ns);
}

bool Control::has_family(const DefinitionState& d) const {
  const auto& ask = core_->config().has_family;
  if (d.device != 0 || !ask) return true;
  if (!d.family) d.family = ask(*d.known.definition);
  return *d.family;
}

bool Control::nothing_proposes(const DefinitionState& d) const {
  return (core_->config().proposer.empty() || !purse_.why_empty().empty()) && !has_family(d);
}

// One session at a time holds what is left of the money; another that starts meanwhile searches templates alone.
evolve::ModelRequest Control::model_request(const DefinitionState& d) {
  const RuntimeConfig& config = core_->config();
  evolve::ModelRequest m;
  if (config.proposer.empty() || !purse_.why_empty().empty()) return m;
  m.proposer = config.proposer;
  m.key_file = config.proposer_key_file;
  m.price = config.proposer_price;
  m.usd_max = purse_.take(d.place());
  m.tokens_max = config.proposer_tokens_max;
  m.questions_max = config.proposer_questions_max;
  m.answer_seconds_max = config.proposer_answer_seconds;
  return m;
}

std::string Control::session_text(const DefinitionState& d, int64_t now_ns) const {
  if (sessions_.count(d.place()) != 0)
    return "running, " + std::to_string(d.tried) + " tried, " + std::to_string(d.session_kernels) +
           " kernels" + (pause_reason_.empty() ? "" : "; paused: " + pause_reason_);
  std::string text = planner_.describe(d.place(), now_ns);
  if (nothing_proposes(d))
    return core_->config().proposer.empty()
               ? "none: no family and no proposer: no template family of '" +
                     d.known.definition->schema().op +
                     "' has points for this Definition on this CPU, and the config names no 'proposer'"
               : "none: no template family has points for this Definition, and the proposer waits: " +
                     purse_.why_empty();
  if (!d.refusal.empty()) text += ": " + d.refusal;
  return text;
}

void Control::start_session(const telemetry::HotDefinition& hot, int64_t now_ns) {
  const auto at = definitions_.find(hot.definition);
  if (at == definitions_.end()) return;
  DefinitionState& d = *at->second;
  const RuntimeConfig& config = core_->config();
  evolve::SessionRequest request;
  request.session_id = "";
  request.definition_json = evolve::definition_to_json(*d.known.definition);
  request.problems = seen_problems(hot, static_cast<int>(d.known.definition->var_axes().size()));
  request.cache_dir = config.cache_dir;
  request.store_path = config.cache_dir + "/trajectories.sqlite";
  request.op_libraries = config.op_libraries;
  request.python_program = config.python_program;
  request.wall_seconds_max = config.session_seconds_max;
  request.evaluations_max = config.session_evaluations_max;
  request.target_speedup = config.session_target_speedup;
  request.threads = core_->executor().threads;
  request.cache_bytes_max = config.cache_bytes_max;
  request.model = model_request(d);
  // Nothing but waiting, where templates have nothing to try: an answer must fit.
  if (!request.model.proposer.empty() && !has_family(d))
    request.wall_seconds_max += config.proposer_answer_seconds;
  evolve::WorkerOptions worker;
  worker.program = worker_program_;
  worker.args = config.worker_args;
  worker.nice = config.session_nice;
  if (d.device != 0) {
    if (!shelf(d).cache || shelf(d).probation_mode) return;
    d.tuned_on = place_for_session(d);
    request.device = device_name(d.tuned_on.device);
    worker.permits = permits_[static_cast<size_t>(d.tuned_on.device - 1)].get();
    // A driver maps far more than it touches; planner and cgroup bound what is touched.
    worker.memory_bytes_max = 0;
  }
  d.session_kernels = 0;
  d.yielding = false;
  d.tried_earlier += std::exchange(d.tried, 0);
  d.rejected_earlier = d.rejected;
  d.best_seen = 0;
  d.session_since_ns = now_ns;
  planner_.session_started(d.place());
  ++counters_.sessions;
  event("session started", d.known.definition->name(),
        std::to_string(request.problems.size()) + " problems, " +
            std::to_string(static_cast<int>(hot.savable_ns_per_s / 1e6)) + " ms/s savable" +
            (d.device != 0 ? "; on " + d.tuned_on.why : ""),
        LogLevel::kInfo);
  sessions_[d.place()] = std::make_unique<SessionRunner>(std::move(worker), std::move(request));
}

// Devices of one class share an environment, and so the directory from which the serving device loads what is found.
TuningChoice Control::place_for_session(const DefinitionState& d) const {
  const auto& devices = core_->config().devices;
  std::vector<DeviceLoad> loads(shelves_.size());
  const auto& home = shelves_[static_cast<size_t>(d.device)].cache;
  for (size_t i = 1; i < shelves_.size(); ++i) {
    const Shelf& s = shelves_[i];
    loads[i].usable = s.cache && !s.probation_mode &&
                      s.cache->environment_text() == home->environment_text() &&
                      devices->health(static_cast<int>(i) - 1).ok();
    loads[i].busy = busy_.share(static_cast<int>(i));
  }
  for (const auto& [id, s] : sessions_)
    if (const DefinitionState& other = *definitions_.at(id); other.device != 0)
      ++loads[static_cast<size_t>(other.tuned_on.device)].sessions;
  return choose_tuning_device(d.device, core_->config().tuning_device, loads);
}

}  // namespace niche::core
