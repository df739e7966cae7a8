// What Control tells people: explain, status, metrics, health; and force.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/control.h"
#include "runtime/device_plane.h"
#include "runtime/group.h"
#include "runtime/handle_state.h"
#include "runtime/http_server.h"
#include "runtime/metrics_text.h"
#include "runtime/runtime.h"

namespace niche::core {

using dispatch::FallbackReason;
using dispatch::RolloutState;
using dispatch::Rung;
using dispatch::Status;
using Json = nlohmann::ordered_json;

namespace {

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g %%", share * 100);
  return text;
}

std::string fallback_text(const dispatch::Kernel& k) {
  return "fallback:" + std::string(k.op->fallback_name(k.fallback_form));
}

std::vector<std::string> held_names(const kernels_cache::StartupReport& report) {
  std::vector<std::string> names;
  for (const kernels_cache::KernelRef& ref : report.held) names.push_back(ref.kernel);
  return names;
}

}  // namespace

dispatch::Result<Explanation> Control::explain(
    const HandleState& handle, const std::vector<std::pair<std::string, int64_t>>& axes) const {
  const auto& schema = handle.definition()->schema();
  dispatch::Problem problem;
  problem.definition = handle.definition();
  handle.plan().start(problem.axes.data());
  for (const auto& [name, extent] : axes) {
    const int i = schema.axis_index(name);
    if (i < 0 || schema.axes[static_cast<size_t>(i)].kind != dispatch::AxisKind::kVar)
      return dispatch::invalid(problem.definition->name() + " has no variable axis '" + name + "'");
    problem.axes[static_cast<size_t>(i)] = extent;
  }
  for (int i : problem.definition->var_axes())
    if (problem.axes[static_cast<size_t>(i)] < 0)
      return dispatch::invalid(problem.definition->name() + ": axis '" +
                               schema.axes[static_cast<size_t>(i)].name + "' is missing");
  NICHE_RETURN_IF_ERROR(handle.op().derive_axes(*problem.definition,
                                                std::span<int64_t>(problem.axes.data(), schema.axes.size())));
  dispatch::WideProblem wide{handle.site().prefix(), dispatch::LayoutClass::plain(6), {}};
  handle.plan().var_axes(problem.axes.data(), wide.axes);

  Explanation e;
  e.definition = problem.definition->name();
  e.problem = problem.to_string();
  e.evolution = evolution_off_.empty() ? "on" : "off: " + evolution_off_;
  e.rollout = "none";
  e.kernel = fallback_text(handle.site().fallback());
  e.rung = rung_name(Rung::kFallback);

  std::lock_guard<std::mutex> lock(mutex_);
  e.cache = host().cache ? core_->config().cache_dir + " (" + std::to_string(host().cache->entries().size()) +
                               " kernels)" + (host().problem.empty() ? "" : "; " + host().problem)
                         : "unusable: " + host().problem;
  const auto at = definitions_.find(handle.site().definition());
  const DefinitionState* d = at == definitions_.end() ? nullptr : at->second.get();
  if (core_->config().disable) {
    e.why = "niche is disabled (config or NICHE_DISABLE); every call goes to the library";
  } else if (host().probation_mode) {
    e.why = host().startup.explanation;
  } else if (d != nullptr) {
    const auto exact = core_->dispatcher().publisher().find(wide);
    const auto region = exact ? nullptr : core_->dispatcher().publisher().find_region(wide);
    const auto& route = exact ? exact : region;
    const bool is_forced =
        forced_ == "fallback" ||
        (!forced_.empty() && std::any_of(d->residents.begin(), d->residents.end(), [&](const auto& r) {
          return r.second->ref.kernel == forced_ && r.second->kernel->guard.holds_var(wide.axes);
        }));
    if (is_forced) {
      e.rung = rung_name(Rung::kForced);
      e.kernel = forced_;
      e.why = "forced (config, NICHE_FORCE or Runtime::force), wherever its Guard holds";
    } else if (!route) {
      e.why = "no kernel's Guard holds here, and this shape was not seen yet";
    } else {
      const bool evolved = route->incumbent() && route->state() != RolloutState::kQuarantined;
      e.kernel = evolved ? route->incumbent()->name : fallback_text(*route->fallback());
      e.rung = rung_name(!evolved ? Rung::kFallback : exact ? Rung::kExact : Rung::kRegion);
      e.why = !evolved ? "the library is the best that is known here"
              : exact  ? "the best verified kernel of this problem"
                       : "an unseen shape inside a verified kernel's Guard";
      e.rollout = rollout_state_name(route->state());
      if (route->state() == RolloutState::kCanary)
        e.rollout += " " + percent(route->word().share()) + " on " + route->challenger()->name;
    }
    if (d->grouped && !is_forced) {
      e.rollout = group_ ? "group version " + std::to_string(group_version_) : "group: not joined";
      if (!group_)
        e.why = "its kernels are chosen by the group, which this rank has not joined: Runtime::join_group()";
      else if (!route)
        e.why = "the group has chosen no kernel for this problem";
      else
        e.why = route->incumbent() ? "the group has chosen this kernel"
                                   : "the group has gone back to the library";
    }
    for (const auto& [id, k] : d->residents) {
      ExplainedKernel x;
      x.name = k->ref.kernel;
      x.kernel_ns = k->kernel_ns;
      x.fallback_ns = k->fallback_ns;
      const bool challenger = d->board.challenges(id),
                 serving = d->grouped ? d->group_serving.count(id) != 0 : d->board.serves(id);
      x.state = challenger ? (d->rollout ? d->rollout->describe() : "challenger")
                : serving  ? "incumbent"
                           : "waiting for its rollout";
      const FallbackReason refuses = k->kernel->refuses({}, wide.layout, wide.axes);
      if (refuses != FallbackReason::kNone)
        x.reason = std::string("cannot serve this problem: ") + fallback_reason_name(refuses);
      if (serving && !k->proven) x.reason += (x.reason.empty() ? "" : "; ") + std::string("on probation");
      e.kernels.push_back(std::move(x));
    }
    for (const Gone& g : d->gone) e.kernels.push_back({g.kernel, g.state, g.reason, 0, 0});
    if (host().cache) {
      for (const kernels_cache::Standing& s : host().cache->standings().list())
        if (s.definition == e.definition && s.state >= kernels_cache::StandingState::kHeld)
          e.kernels.push_back({s.kernel, standing_name(s.state), s.reason, 0, 0});
    }
    const int64_t now = core_->clock().now_ns();
    // One a device on which it is hot.
    for (uint32_t device = 0; device < shelves_.size(); ++device) {
      const auto on = definitions_.find(place_of(d->known.id, device));
      if (on == definitions_.end()) continue;
      const DefinitionState& there = *on->second;
      const bool runs = sessions_.count(there.place()) != 0;
      if (device != 0 && !runs && there.tuned_on.why.empty()) continue;  // it never had one
      e.session += e.session.empty() ? "" : "; ";
      if (device != 0) e.session += device_name(static_cast<int>(device)) + ": ";
      e.session += runs ? "running, " + std::to_string(there.tried) + " tried, " +
                              std::to_string(there.session_kernels) + " kernels" +
                              (pause_reason_.empty() ? "" : "; paused: " + pause_reason_)
                        : planner_.describe(there.place(), now);
      if (!there.tuned_on.why.empty()) e.session += ", on " + there.tuned_on.why;
    }
  } else {
    e.why = "no call of this Definition was seen yet";
  }
  if (e.session.empty()) e.session = "none";
  return e;
}

Status Control::force(std::string_view kernel) {
  std::lock_guard<std::mutex> lock(mutex_);
  return force_locked(kernel);
}

Status Control::force_locked(std::string_view kernel) {
  dispatch::Publisher& publisher = core_->dispatcher().publisher();
  bool found = kernel.empty() || kernel == "fallback";
  for (auto& [id, d] : definitions_) {
    if (d->device != 0) continue;  // a force holds for calls on every device: one device's kernel cannot
    std::shared_ptr<const dispatch::Kernel> chosen;
    if (kernel == "fallback") chosen = core_->dispatcher().fallback(id, 0);
    for (const auto& [kernel_id, k] : d->residents) {
      if (k->ref.kernel != kernel) continue;
      if (!put_on_probation(shelf(*d), *k))
        return dispatch::unsupported("kernel '" + std::string(kernel) +
                                     "' cannot be put on probation: " + host().problem);
      chosen = k->kernel;
    }
    found = found || chosen != nullptr;
    NICHE_RETURN_IF_ERROR(publisher.force(id, chosen));
  }
  if (!found) return dispatch::not_found("no resident kernel is named '" + std::string(kernel) + "'");
  forced_ = kernel;
  return {};
}

// A kernel that was named before it was there (a session found it, another process committed it) is forced when it
// arrives.
void Control::force_what_arrived(int64_t now_ns) {
  constexpr int64_t kAgainNs = 5'000'000'000;
  if (force_due_ns_ == 0 || now_ns < force_due_ns_) return;
  const Status s = forced_.empty() ? Status() : force_locked(forced_);
  force_due_ns_ = s.ok() ? 0 : now_ns + kAgainNs;
  if (!forced_.empty())
    event(s.ok() ? "forced" : "force without effect", "", s.ok() ? forced_ : s.message(),
          dispatch::LogLevel::kInfo);
}

Health Control::health() const {
  std::lock_guard<std::mutex> lock(mutex_);
  Health h;
  if (group_) {
    if (const std::string fault = group_->status().fault; !fault.empty()) {
      h.ok = false;
      h.reason = "restart me: not what the group serves: " + fault;
      return h;
    }
  }
  // Degraded, and well: it serves the library.
  if (host().probation_mode)
    h.reason = host().startup.explanation;
  else if (!core_->config().cache_dir.empty() && !core_->config().disable)
    h.reason = host().problem;
  const auto& devices = core_->config().devices;
  for (int i = 0; devices != nullptr && i < devices->count(); ++i) {
    const Status s = devices->health(i);
    if (s.ok()) continue;
    h.ok = false;
    h.reason = "restart me: " + s.message();
  }
  return h;
}

std::string Control::status() const {
  const dispatch::CounterTotals totals = core_->dispatcher().totals();
  std::lock_guard<std::mutex> lock(mutex_);
  Json j;
  j["evolution"] = evolution_off_.empty() ? "on" : "off: " + evolution_off_;
  j["worker_program"] = worker_program_;
  j["cache"] = {{"dir", core_->config().cache_dir},
                {"problem", host().problem},
                {"entries", host().cache ? static_cast<int64_t>(host().cache->entries().size()) : 0},
                {"environment", host().cache ? host().cache->environment_text() : ""}};
  j["startup"] = {{"unclean_ends", host().startup.unclean_ends},
                  {"held", held_names(host().startup)},
                  {"fallbacks_only", host().probation_mode},
                  {"explanation", host().startup.explanation}};
  j["forced"] = forced_;
  uint64_t evolved = 0;
  for (Rung r : {Rung::kExact, Rung::kRegion, Rung::kCanary}) evolved += totals.by_rung[static_cast<int>(r)];
  j["calls"] = {{"total", totals.calls()}, {"evolved", evolved}};
  for (int r = 0; r < dispatch::kRungCount; ++r)
    j["calls"]["by_rung"][rung_name(static_cast<Rung>(r))] = totals.by_rung[r];
  for (int r = 1; r < dispatch::kFallbackReasonCount; ++r)
    if (totals.by_reason[r] != 0)
      j["calls"]["by_reason"][fallback_reason_name(static_cast<FallbackReason>(r))] = totals.by_reason[r];
  const ShadowCounters shadow = core_->shadow().counters();
  j["shadow"] = {{"taken", shadow.taken},
                 {"matched", counters_.shadow_matched},
                 {"mismatched", counters_.shadow_mismatched},
                 {"skipped", counters_.shadow_skipped + shadow.skipped_busy + shadow.skipped_full +
                                 shadow.skipped_budget}};
  j["sessions"] = {{"started", counters_.sessions},
                   {"failed", counters_.sessions_failed},
                   {"running", sessions_.size()},
                   {"paused", pause_reason_},
                   {"idle", plan_idle_},
                   {"kernels_committed", counters_.kernels_committed},
                   {"cpu_seconds", ended_sessions_cpu_ + running_sessions_cpu_}};
  j["swaps"] = counters_.swaps;
  j["rollbacks"] = counters_.rollbacks;
  j["quarantines"] = counters_.quarantines;
  if (const RuntimeConfig& c = core_->config(); c.group_ranks != 0) {
    const GroupStatus g = group_ ? group_->status() : GroupStatus{};
    j["group"] = {{"board", c.group_board},       {"rank", c.group_rank},
                  {"ranks", c.group_ranks},       {"joined", group_ != nullptr},
                  {"version", g.version},         {"switches", g.switches},
                  {"dropped", g.dropped},         {"waits", g.waits},
                  {"last_drop", g.last_drop},     {"fault", g.fault},
                  {"problems", g.serving.size()}, {"withdrawing", group_withdrawals_.size()}};
  }
  j["latency"] = {{"quiet_p99_us", latency_.quiet_p99_ns() / 1e3},
                  {"slow_share_while_tuning", latency_.slow_share()},
                  {"pauses", latency_.pauses()},
                  {"requests_opened", totals.requests_opened}};
  if (totals.requests_opened == 0)
    j["warnings"].push_back(
        "no RequestScope was opened: rollout assigns each call, and p99 cannot hold sessions back");
  j["definitions"] = Json::array();
  const int64_t now = core_->clock().now_ns();
  for (const auto& [id, d] : definitions_) {
    Json x;
    x["name"] = d->known.definition->name();
    x["op"] = d->known.definition->schema().op;
    if (d->device != 0) x["device"] = device_name(d->device);
    for (const auto& hot : ranking_) {
      if (hot.definition != id) continue;
      x["share"] = hot.share;
      x["calls_per_s"] = hot.calls_per_s;
      x["savable_ms_per_s"] = hot.savable_ns_per_s / 1e6;
      x["unseen_share"] = hot.unseen_share;
    }
    x["problems"] = d->board.problems();
    x["session"] = sessions_.count(id) != 0 ? "running" : planner_.describe(id, now);
    if (!d->tuned_on.why.empty()) x["tuned_on"] = d->tuned_on.why;
    x["tried"] = d->tried_earlier + d->tried;
    for (int g = 0; g < evolve::kGateCount; ++g)
      if (d->rejected[static_cast<size_t>(g)] != 0)
        x["rejected"][evolve::gate_name(static_cast<evolve::Gate>(g))] = d->rejected[static_cast<size_t>(g)];
    x["best_seen"] = d->best_seen;
    x["kernels"] = Json::array();
    for (const auto& [kernel_id, k] : d->residents) {
      const bool challenger = d->board.challenges(kernel_id),
                 serving = d->grouped ? d->group_serving.count(kernel_id) != 0 : d->board.serves(kernel_id);
      Json kj{{"name", k->ref.kernel},
              {"state", challenger ? (d->rollout ? d->rollout->describe() : "challenger")
                        : serving  ? "incumbent"
                                   : "waiting"},
              {"calls", calls_of(*d, kernel_id)},
              {"fallback", k->fallback_name},
              {"fallback_ns", k->fallback_ns},
              {"kernel_ns", k->kernel_ns},
              {"proven", k->proven}};
      for (const auto& t : k->timing)
        kj["points"].push_back({{"axes", t.var_axes},
                                {"fallback", t.fallback},
                                {"fallback_ns", t.fallback_ns},
                                {"kernel_ns", t.kernel_ns},
                                {"speedup", t.speedup},
                                {"ci_low", t.ci_low},
                                {"ci_high", t.ci_high},
                                {"pairs", t.pairs}});
      x["kernels"].push_back(std::move(kj));
    }
    for (const Gone& g : d->gone)
      x["gone"].push_back({{"name", g.kernel}, {"state", g.state}, {"reason", g.reason}});
    j["definitions"].push_back(std::move(x));
  }
  j["events"] = Json::array();
  for (const Event& e : events_)
    j["events"].push_back(
        {{"unix_ns", e.unix_ns}, {"kind", e.kind}, {"definition", e.definition}, {"text", e.text}});
  return j.dump(1);
}

std::string Control::metrics() const {
  const dispatch::CounterTotals totals = core_->dispatcher().totals();
  const dispatch::PublisherStats table = core_->dispatcher().publisher().stats();
  const ShadowCounters shadow = core_->shadow().counters();
  std::lock_guard<std::mutex> lock(mutex_);
  MetricsText m;
  m.counter("niche_calls_total", "calls by the rung of the ladder that answered");
  for (int r = 0; r < dispatch::kRungCount; ++r)
    m.value({{"rung", rung_name(static_cast<Rung>(r))}}, totals.by_rung[r]);
  m.counter("niche_fallback_calls_total", "calls that the library answered, by reason");
  for (int r = 1; r < dispatch::kFallbackReasonCount; ++r)
    m.value({{"reason", fallback_reason_name(static_cast<FallbackReason>(r))}}, totals.by_reason[r]);
  m.counter("niche_requests_total", "RequestScopes opened").value({}, totals.requests_opened);
  m.counter("niche_events_dropped_total", "records of the hot path lost to full rings")
      .value({}, totals.events_dropped);
  m.counter("niche_untracked_seconds_total", "time of calls of Definitions past telemetry's bound")
      .value({}, telemetry_.untracked_ns() / 1e9);
  m.gauge("niche_table_entries", "exact problems in the table").value({}, table.entries);
  m.gauge("niche_table_regions", "niches in the table").value({}, table.regions);
  m.gauge("niche_table_version", "published table version").value({}, table.version);
  m.gauge("niche_table_waiting_seconds", "age of the oldest change that waits for a stalled reader")
      .value({}, static_cast<double>(table.waiting_ns) / 1e9);
  m.counter("niche_publish_waits_total", "ticks in which a change waited for a stalled reader")
      .value({}, counters_.publish_waits);
  m.gauge("niche_evolution_on", "1: sessions may run; see the reason")
      .value({{"reason", evolution_off_.empty() ? "on" : evolution_off_}}, evolution_off_.empty() ? 1 : 0);
  m.gauge("niche_sessions_running", "evolution sessions").value({}, sessions_.size());
  m.gauge("niche_sessions_paused", "1: sessions stand still; see the reason")
      .value({{"reason", pause_reason_}}, pause_reason_.empty() ? 0 : 1);
  m.counter("niche_sessions_total", "evolution sessions started").value({}, counters_.sessions);
  m.counter("niche_sessions_failed_total", "sessions whose worker refused or died")
      .value({}, counters_.sessions_failed);
  m.counter("niche_session_cpu_seconds_total", "CPU time of sessions")
      .value({}, ended_sessions_cpu_ + running_sessions_cpu_);
  m.counter("niche_kernels_committed_total", "verified kernels that sessions committed")
      .value({}, counters_.kernels_committed);
  m.counter("niche_kernels_refused_total", "kernels of the cache that could not be loaded")
      .value({}, counters_.refused_kernels);
  m.counter("niche_swaps_total", "challengers that became incumbents").value({}, counters_.swaps);
  if (group_) {
    const GroupStatus g = group_->status();
    m.gauge("niche_group_version", "version that this rank's group serves").value({}, g.version);
    m.gauge("niche_group_problems", "problems that the group has chosen for").value({}, g.serving.size());
    m.counter("niche_group_switches_total", "versions that this rank has taken").value({}, g.switches);
    m.counter("niche_group_dropped_total", "proposals that this rank saw dropped").value({}, g.dropped);
    m.counter("niche_group_waits_total", "steps that waited for a decision").value({}, g.waits);
    m.gauge("niche_group_fault", "1: this rank serves another version than the others")
        .value({}, g.fault.empty() ? 0 : 1);
  }
  m.counter("niche_rollbacks_total", "kernels taken out of service").value({}, counters_.rollbacks);
  m.counter("niche_quarantines_total", "kernels quarantined").value({}, counters_.quarantines);
  m.counter("niche_shadow_total", "shadow comparisons by outcome");
  m.value({{"outcome", "matched"}}, counters_.shadow_matched)
      .value({{"outcome", "mismatched"}}, counters_.shadow_mismatched);
  m.value({{"outcome", "not_judged"}}, counters_.shadow_skipped)
      .value({{"outcome", "skipped_busy"}}, shadow.skipped_busy);
  m.value({{"outcome", "skipped_full"}}, shadow.skipped_full)
      .value({{"outcome", "skipped_budget"}}, shadow.skipped_budget)
      .value({{"outcome", "abandoned"}}, shadow.abandoned);
  m.counter("niche_bindings_stale_total", "bound constants that changed without rebind")
      .value({}, counters_.stale_bindings);
  m.gauge("niche_resident_code_bytes", "code of loaded kernels").value({}, loader_.resident_bytes());
  m.gauge("niche_packed_bytes", "packed constants").value({}, core_->packed_budget()->used());
  m.gauge("niche_fallbacks_only", "1: kernels are held back after unclean ends")
      .value({}, host().probation_mode ? 1 : 0);
  m.gauge("niche_quiet_p99_seconds", "99th percentile of requests while no session runs")
      .value({}, latency_.quiet_p99_ns() / 1e9);
  m.gauge("niche_slow_share", "share of requests above p99_slack times that while sessions run")
      .value({}, latency_.slow_share());
  m.counter("niche_latency_pauses_total", "pauses of sessions because serving p99 suffered")
      .value({}, latency_.pauses());
  if (host().cache) {
    const kernels_cache::CacheCounters c = host().cache->counters();
    m.counter("niche_cache_misses_total", "cache entries that were not used, by reason");
    for (int r = 0; r < kernels_cache::kMissReasonCount; ++r)
      m.value({{"reason", miss_reason_name(static_cast<kernels_cache::MissReason>(r))}},
              c.misses[static_cast<size_t>(r)] + host().earlier.misses[static_cast<size_t>(r)]);
    m.gauge("niche_cache_bytes", "kernels on disk").value({}, host().cache->bytes());
    m.counter("niche_cache_moves_total",
              "times the cache directory was renamed, replaced or removed under us")
        .value({}, counters_.cache_moves);
    m.gauge("niche_cache_lost", "1: no directory is open where the configuration says")
        .value({}, host().lost ? 1 : 0);
  }
  return m.text();
}

}  // namespace niche::core
