// What Control tells about everything: status, metrics, health.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/control.h"
#include "runtime/device_plane.h"
#include "runtime/group.h"
#include "runtime/metrics_text.h"
#include "runtime/runtime.h"

namespace niche::core {

using dispatch::FallbackReason;
using dispatch::Rung;
using dispatch::Status;
using Json = nlohmann::ordered_json;

namespace {

std::vector<std::string> held_names(const kernels_cache::StartupReport& report) {
  std::vector<std::string> names;
  for (const kernels_cache::KernelRef& ref : report.held) names.push_back(ref.kernel);
  return names;
}

}  // namespace

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
  if (const std::string& proposer = core_->config().proposer; !proposer.empty())
    j["proposer"] = {{"asks", proposer},
                     {"usd", purse_.spent()},
                     {"usd_max", core_->config().proposer_usd_max},
                     {"trouble", proposer_trouble_}};
  j["cache"] = {{"dir", core_->config().cache_dir},
                {"problem", host().problem},
                {"usable", host().cache != nullptr},
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
  for (const auto& gate : permits_) j["latency"]["tuning_duty"].push_back(gate->duty());
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
    x["session"] = sessions_.count(id) != 0 ? "running" : session_text(*d, now);
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
  m.gauge("niche_cache_usable", "1: the cache directory is open; else see the reason")
      .value({{"reason", host().cache ? "open" : host().problem}}, host().cache ? 1 : 0);
  if (!core_->config().proposer.empty())
    m.counter("niche_proposer_dollars_total", "what sessions' models have cost").value({}, purse_.spent());
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
