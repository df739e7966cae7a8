#include "runtime/control.h"

#include <algorithm>

#include "dispatch/devices/cpu/cpu_info.h"
#include "runtime/group.h"
#include "runtime/handle_state.h"
#include "runtime/http_server.h"
#include "runtime/runtime.h"
#include "runtime/threads.h"

namespace niche::core {

using dispatch::LogLevel;
using dispatch::Status;

namespace {

int64_t seconds(double s) { return static_cast<int64_t>(s * 1e9); }

PlannerOptions planner_options(const RuntimeConfig& c) {
  PlannerOptions o;
  o.sessions_max = c.sessions_max;
  o.hot_share_min = c.hot_share_min;
  o.hot_seconds_min = c.hot_seconds_min;
  o.session_gap_seconds = c.session_gap_seconds;
  o.cpu_share = c.session_cpu_share;
  o.memory_share_max = c.memory_share_max;
  return o;
}

telemetry::TelemetryOptions telemetry_options() {
  telemetry::TelemetryOptions o;
  if (const int64_t l3 = dispatch::CpuInfo::detect().l3_bytes; l3 > 0)
    o.reuse.llc_bytes = static_cast<double>(l3);
  return o;
}

LatencyWatch::Options latency_options(const RuntimeConfig& c) {
  LatencyWatch::Options o;
  o.slack = c.p99_slack;
  return o;
}

}  // namespace

Control::DefinitionState::DefinitionState(RuntimeCore& core, RuntimeCore::Known k, int on)
    : known(std::move(k)),
      device(on),
      board(core.dispatcher(), known.id, static_cast<uint32_t>(core.executor().threads),
            static_cast<uint32_t>(on)),
      grouped(core.chosen_by_group(known.definition->schema().op)) {}

Control::Control(std::shared_ptr<RuntimeCore> core)
    : core_(std::move(core)),
      fork_generation_(dispatch::ThreadRegistry::fork_generation()),
      loader_(*core_),
      telemetry_(telemetry_options()),
      planner_(planner_options(core_->config())),
      latency_(latency_options(core_->config())),
      purse_(core_->config().proposer_usd_max) {}

dispatch::Result<std::unique_ptr<Control>> Control::start(std::shared_ptr<RuntimeCore> core) {
  std::unique_ptr<Control> c(new Control(std::move(core)));
  const RuntimeConfig& config = c->core_->config();
  c->started_ns_ = c->last_shadow_refill_ns_ = c->core_->clock().now_ns();
  if (config.disable) {
    c->evolution_off_ = "disabled";
    c->shelves_.resize(1);
    c->shelves_[0].problem = "disabled";
  } else {
    c->open_caches();
    c->find_worker();
    if (!config.force.empty()) c->forced_ = config.force;
  }
  if (!config.http_address.empty()) {
    auto http = HttpServer::start(config.http_address, [raw = c.get()](std::string_view path) {
      HttpReply reply;
      if (path == "/metrics") {
        reply = {200, "text/plain; version=0.0.4", raw->metrics()};
      } else if (path == "/status") {
        reply = {200, "application/json", raw->status()};
      } else if (path == "/health") {
        const Health health = raw->health();
        reply = {health.ok ? 200 : 503, "text/plain", health.ok ? "ok\n" : health.reason + "\n"};
      }
      return reply;
    });
    if (!http.ok()) return http.status();
    c->http_ = *std::move(http);
  }
  if (!config.disable) {
    c->control_thread_ = std::thread([raw = c.get()] { raw->run_control(); });
    c->background_thread_ = std::thread([raw = c.get()] { raw->run_background(); });
  }
  return c;
}

bool Control::forked() const { return fork_generation_ != dispatch::ThreadRegistry::fork_generation(); }

Control::~Control() {
  http_.reset();
  {
    std::lock_guard<std::mutex> lock(stop_mutex_);
    stop_ = true;
  }
  stop_wake_.notify_all();
  {
    std::lock_guard<std::mutex> lock(background_mutex_);
    background_stop_ = true;
  }
  background_wake_.notify_all();
  if (control_thread_.joinable()) control_thread_.join();
  if (background_thread_.joinable()) background_thread_.join();
  sessions_.clear();
  core_->dispatcher().shut_down();
  flush_served();
  remember_all_problems();
  for (Shelf& s : shelves_)
    if (s.can_mark) (void)s.cache->probation().end_run();
}

void Control::run_control() {
  name_thread("niche-control");
  if (core_->config().thread_start) core_->config().thread_start();
  const auto tick_length = std::chrono::nanoseconds(seconds(core_->config().tick_seconds));
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(stop_mutex_);
      if (stop_wake_.wait_for(lock, tick_length, [this] { return stop_; })) return;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    tick(core_->clock().now_ns());
  }
}

void Control::tick(int64_t now_ns) {
  drain(now_ns);
  take_findings(now_ns);
  drive_rollouts(now_ns);
  drive_group(now_ns);
  run_sessions(now_ns);
  plan(now_ns);
  if (now_ns - last_refresh_ns_ > seconds(2)) {
    last_refresh_ns_ = now_ns;
    for (Shelf& s : shelves_) look_after_cache_place(s);
    find_new_records();
  }
  force_what_arrived(now_ns);
  if (now_ns - last_bindings_ns_ > seconds(1)) {
    last_bindings_ns_ = now_ns;
    check_bindings();
  }
  if (now_ns - last_flush_ns_ > seconds(5)) {
    last_flush_ns_ = now_ns;
    look_after_probation(now_ns);
    flush_served();
  }
  remember_problems(now_ns);
  publish_dirty();
  core_->dispatcher().publisher().poll();
  core_->dispatcher().graphs().poll(core_->dispatcher().publisher());
  core_->shadow().refill(now_ns - last_shadow_refill_ns_);
  last_shadow_refill_ns_ = now_ns;
  background_wake_.notify_one();
}

void Control::run_background() {
  name_thread("niche-shadow");
  yield_to_everybody();
  if (core_->config().thread_start) core_->config().thread_start();
  ShadowChecker checker(*core_, [this](uint64_t id) { return resolve(id); });
  constexpr double kFormSeconds = 0.03;
  for (;;) {
    ShadowArena::Slot* slot = core_->shadow().next();
    if (slot == nullptr) {
      FormJob job;
      {
        std::unique_lock<std::mutex> lock(background_mutex_);
        if (background_stop_) return;
        if (form_jobs_.empty()) {
          background_wake_.wait(lock);  // each tick wakes it: a job of the arena announces itself to nobody
          continue;
        }
        job = std::move(form_jobs_.front());
        form_jobs_.pop_front();
      }
      const auto times = best_form(*job.op, job.problem, kFormSeconds);
      std::lock_guard<std::mutex> lock(background_mutex_);
      if (times.ok()) form_findings_.push_back({job.definition, job.form_class, times->best});
      continue;
    }
    checker.check(slot->job, [this](const ShadowFinding& f) {
      std::lock_guard<std::mutex> lock(background_mutex_);
      findings_.push_back(f);
    });
    core_->shadow().release(slot);
    std::lock_guard<std::mutex> lock(background_mutex_);
    if (background_stop_) return;
  }
}

Control::DefinitionState& Control::state_of(const RuntimeCore::Known& known, int device) {
  auto& state = definitions_[place_of(known.id, static_cast<uint32_t>(device))];
  if (!state) {
    state = std::make_unique<DefinitionState>(*core_, known, device);
    std::lock_guard<std::mutex> lock(resolve_mutex_);
    for (int form = 0; form < known.op->fallback_count(); ++form)
      if (auto k = core_->dispatcher().fallback(known.id, form)) by_id_[k->id] = k;
  }
  return *state;
}

void Control::on_handle(HandleState& handle) {
  if (core_->config().disable) return;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto known = core_->find(handle.site().definition());
  const bool fresh = definitions_.find(known->id) == definitions_.end();
  DefinitionState& d = state_of(*known, 0);
  if (fresh) warm_start(d);
  // Operators of plain code have no calls on devices.
  for (int device = 1; fresh && device < static_cast<int>(shelves_.size()) && known->op->runs_on_device();
       ++device)
    warm_start(state_of(*known, device));
  for (const auto& [id, k] : d.residents) {
    const Status s = handle.bindings().pack(k->kernel);
    if (!s.ok()) event("packing refused", known->definition->name(), s.message(), LogLevel::kWarning);
  }
  if (fresh && !forced_.empty())
    if (const Status s = force_locked(forced_); !s.ok())
      event("force without effect", known->definition->name(), s.message(), LogLevel::kInfo);
}

void Control::pause_evolution(bool paused) { owner_pause_.store(paused); }

void Control::event(std::string kind, const std::string& definition, std::string text, LogLevel level) {
  core_->log(level, "runtime", kind + ": " + definition + ": " + text);
  if (events_.size() == kEventsMax) events_.pop_front();
  events_.push_back({core_->clock().unix_time_ns(), std::move(kind), definition, std::move(text)});
}

void Control::note_gone(DefinitionState& d, Gone gone) {
  if (d.gone.size() == kGoneMax) d.gone.pop_front();
  d.gone.push_back(std::move(gone));
}

void Control::retire(DefinitionState& d, const ResidentKernel& k, std::string state, std::string reason) {
  note_gone(d, {k.ref.kernel, std::move(state), std::move(reason)});
  for (const auto& handle : core_->handles(d.known.id)) handle->bindings().drop(*k.kernel);
  d.residents.erase(k.id());
}

int Control::http_port() const { return http_ ? http_->port() : 0; }

std::shared_ptr<const dispatch::Kernel> Control::resolve(uint64_t kernel_id) const {
  std::lock_guard<std::mutex> lock(resolve_mutex_);
  const auto at = by_id_.find(kernel_id);
  return at == by_id_.end() ? nullptr : at->second.lock();
}

}  // namespace niche::core
