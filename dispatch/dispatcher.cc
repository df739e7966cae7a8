#include "dispatch/dispatcher.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "dispatch/devices/cpu/cycle_clock.h"
#include "dispatch/route_index_pool.h"

namespace niche::dispatch {
namespace {

uint64_t next_dispatcher_number() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

struct Dispatcher::Cold {
  struct Defined {
    std::shared_ptr<const Definition> definition;
    std::shared_ptr<const OpSpec> op;
    std::vector<std::shared_ptr<const Kernel>> fallbacks;  // by form; null where a form does not apply
  };
  mutable std::mutex mutex;
  std::vector<Defined> definitions{{}};  // number 0 is nobody's
  std::unordered_map<std::string, uint32_t> by_name;
  std::unordered_map<uint32_t, RouteCounts>
      baselines;  // by Route index: what earlier Routes had counted there
  std::atomic<uint64_t> sites{0};

  SamplingRates rates;
  // Calls of threads without a state: rare, so shared.
  std::atomic<uint64_t> detached[kFallbackReasonCount] = {};
};

Result<std::shared_ptr<Dispatcher>> Dispatcher::make(const DispatcherOptions& o) {
  if (o.clock == nullptr) return invalid("dispatcher: no clock");
  if (o.routes_max < 2 || o.routes_max > kRoutesMax)
    return invalid("dispatcher: routes_max " + std::to_string(o.routes_max) + " outside [2, " +
                   std::to_string(kRoutesMax) + "]");
  if (o.threads_max < 1) return invalid("dispatcher: threads_max 0");
  if (o.definitions_max < 1 || o.definitions_max > ProblemKey::kDefinitionMax)
    return invalid("dispatcher: definitions_max " + std::to_string(o.definitions_max) + " outside [1, 2^24)");
  return std::shared_ptr<Dispatcher>(new Dispatcher(o));
}

Dispatcher::Dispatcher(const DispatcherOptions& o)
    : domain_(Publisher::first_snapshot(), o.asymmetric_fence && RealPlatform::asymmetric_available()),
      number_(next_dispatcher_number()),
      options_(o),
      registry_(std::make_shared<ThreadRegistry>(number_, &domain_, o.threads_max)),
      routes_(std::make_shared<RouteIndexPool>(o.routes_max,
                                               [r = registry_](uint32_t n) { return r->ensure_chunks(n); })),
      graphs_(o.graphs_max),
      cold_(std::make_unique<Cold>()) {
  (void)registry_->ensure_chunks(1);  // for kNoRoute
  publisher_ = std::make_unique<Publisher>(
      &domain_, o.clock, o.publisher, [this](uint32_t d) { return definition(d); },
      [r = registry_.get()] { return r->workspace_units(); });
  set_sampling(o.sampling);
}

Dispatcher::~Dispatcher() {
  if (registry_->forked()) {
    // A thread that does not exist here may have held any of these locks: the child leaves them alone.
    (void)publisher_.release();
    return;
  }
  registry_->close();
  routes_->close();
}

Result<uint32_t> Dispatcher::define(std::shared_ptr<const OpSpec> op,
                                    std::shared_ptr<const Definition> definition) {
  if (op == nullptr || definition == nullptr) return invalid("define: no operator or no definition");
  if (op->schema()->op != definition->schema().op)
    return invalid("define: " + definition->name() + " is not a definition of operator " + op->schema()->op);
  std::lock_guard lock(cold_->mutex);
  const auto it = cold_->by_name.find(definition->name());
  if (it != cold_->by_name.end()) return it->second;
  if (cold_->definitions.size() > options_.definitions_max)
    return busy("define: definitions_max " + std::to_string(options_.definitions_max) + " reached");
  Cold::Defined d{definition, op, {}};
  for (int form = 0; form < op->fallback_count(); ++form)
    d.fallbacks.push_back(form == 0 || op->fallback_applies(form, *definition)
                              ? make_fallback_kernel(op, definition, form)
                              : nullptr);
  const auto number = static_cast<uint32_t>(cold_->definitions.size());
  cold_->definitions.push_back(std::move(d));
  cold_->by_name.emplace(definition->name(), number);
  return number;
}

std::shared_ptr<const Kernel> Dispatcher::fallback(uint32_t definition, int form) const {
  std::lock_guard lock(cold_->mutex);
  if (definition >= cold_->definitions.size()) return nullptr;
  const auto& f = cold_->definitions[definition].fallbacks;
  return form >= 0 && static_cast<size_t>(form) < f.size() ? f[static_cast<size_t>(form)] : nullptr;
}

std::shared_ptr<const Definition> Dispatcher::definition(uint32_t definition) const {
  std::lock_guard lock(cold_->mutex);
  return definition < cold_->definitions.size() ? cold_->definitions[definition].definition : nullptr;
}

CallSite Dispatcher::call_site(uint32_t definition, const SiteOptions& o) {
  CallSite s;
  s.prefix_ = {definition, o.tenant, o.device, o.threads, o.constraints};
  s.packed_ = PackedPrefix(s.prefix_);
  s.dispatcher_ = this;
  s.fallback_ = fallback(definition, o.fallback_form);
  if (s.fallback_ == nullptr) s.fallback_ = fallback(definition, 0);
  const uint64_t number = cold_->sites.fetch_add(1, std::memory_order_relaxed);
  s.cache_entry_ = static_cast<uint32_t>(number % ThreadState::kSites * sizeof(ThreadState::SiteEntry));
  const auto d = this->definition(definition);
  s.two_axes_ = d != nullptr && d->var_axes().size() <= 2;
  s.tag_ = number + 1 < 1u << 24 ? number + 1 : 0;
  return s;
}

Result<std::shared_ptr<Route>> Dispatcher::make_route(Route::Spec spec) {
  auto route = Route::make(routes_, std::move(spec));
  if (!route) return route;
  const RouteCounts zero = counts(**route);  // what stands there is its predecessors'
  std::lock_guard lock(cold_->mutex);
  RouteCounts& base = cold_->baselines[(*route)->index()];
  for (int i = 0; i < kRungCount; ++i) base.by_rung[i] += zero.by_rung[i];
  return route;
}

Status Dispatcher::reserve_workspace(int64_t bytes) {
  if (bytes < 0 || bytes > int64_t{64} * UINT32_MAX)
    return invalid("workspace: " + std::to_string(bytes) + " bytes");
  std::vector<std::shared_ptr<void>> old;
  const Status s = registry_->ensure_workspace(bytes, &old);
  for (auto& block : old) publisher_->retire(std::move(block), 0);
  return s;
}

void Dispatcher::set_sampling(const SamplingRates& r) {
  {
    std::lock_guard lock(cold_->mutex);
    cold_->rates = r;
  }
  registry_->set_sampling(r);
}

SamplingRates Dispatcher::sampling() const {
  std::lock_guard lock(cold_->mutex);
  return cold_->rates;
}

size_t Dispatcher::drain(const std::function<void(const EventRecord&)>& f) {
  std::vector<EventRecord> batch;  // handed on outside the registry's lock
  registry_->for_each([&](ThreadState& t) {
    EventRecord e;
    for (uint32_t i = 0; i < ThreadState::kEvents && t.misses.pop(e); ++i) batch.push_back(e);
    for (uint32_t i = 0; i < ThreadState::kEvents && t.timings.pop(e); ++i) batch.push_back(e);
  });
  for (const EventRecord& e : batch) f(e);
  return batch.size();
}

RouteCounts Dispatcher::thread_counts() {
  RouteCounts counts;
  const ThreadState* t = thread();
  if (t == detached_thread()) return counts;
  t->add_totals(counts.by_rung);
  return counts;
}

CounterTotals Dispatcher::totals() const {
  CounterTotals sum;
  registry_->for_each([&](ThreadState& t) {
    t.add_totals(sum.by_rung);
    for (int i = 0; i < kFallbackReasonCount; ++i) sum.by_reason[i] += t.by_reason[i].get();
    sum.events_dropped += t.misses.dropped() + t.timings.dropped();
    sum.requests_opened += t.requests_opened.get();
    sum.requests_closed += t.requests_closed.get();
  });
  for (int i = 0; i < kFallbackReasonCount; ++i) {
    const uint64_t n = cold_->detached[i].load(std::memory_order_relaxed);
    sum.by_reason[i] += n;
    sum.by_rung[static_cast<int>(Rung::kFallback)] += n;
  }
  sum.threads_attached = registry_->attached();
  return sum;
}

RouteCounts Dispatcher::counts(const Route& route) const {
  RouteCounts sum;
  const uint32_t i = route.index();
  registry_->for_each([&](ThreadState& t) { t.add_counts(i, sum.by_rung); });
  std::lock_guard lock(cold_->mutex);
  const auto base = cold_->baselines.find(i);
  if (base != cold_->baselines.end())
    for (int r = 0; r < kRungCount; ++r) sum.by_rung[r] -= base->second.by_rung[r];
  return sum;
}

uint64_t Dispatcher::requests_in_flight() const {
  uint64_t opened = 0, closed = 0;
  registry_->for_each([&](ThreadState& t) {
    closed += t.requests_closed.get();
    opened += t.requests_opened.get();
  });
  return opened > closed ? opened - closed : 0;
}

// ---- the slower paths of a call ----

// Of a thread without a state: rare, so counted where all such threads count.
Decision Dispatcher::Call::decide_detached(const CallSite& site) {
  Dispatcher* const d = site.dispatcher();
  FallbackReason why = d->registry_->attach().why;
  // Since this call began, the thread could be attached: what kept it out was the limit.
  if (why == FallbackReason::kNone) why = FallbackReason::kThreadLimit;
  d->cold_->detached[static_cast<int>(why)].fetch_add(1, std::memory_order_relaxed);
  return {&site.fallback(), nullptr, nullptr, Rung::kFallback, why, false};
}

Decision Dispatcher::Call::fall_back(ThreadState* t, const CallSite& site, FallbackReason reason) {
  Decision d{&site.fallback(), nullptr, nullptr, Rung::kFallback, reason, false};
  count(t, &d);
  return d;
}

Decision Dispatcher::Call::take_back(ThreadState* t, const CallSite& site, const Decision& was,
                                     FallbackReason reason) {
  if (was.rung == Rung::kFallback) return was;
  const uint32_t index = was.route != nullptr ? was.route->index() : kNoRoute;
  t->count(index, was.rung).add(static_cast<uint64_t>(-1));
  t->by_rung[static_cast<int>(was.rung)].add(static_cast<uint64_t>(-1));
  t->count(index, Rung::kFallback).add();
  t->by_rung[static_cast<int>(Rung::kFallback)].add();
  t->by_reason[static_cast<int>(reason)].add();
  const Kernel* k = was.route != nullptr ? was.route->fallback().get() : &site.fallback();
  return {k, nullptr, was.route, Rung::kFallback, reason, was.time};
}

namespace {

void write_record(const ThreadState* t, const Decision& d, const ProblemKey& key, const int64_t* axes,
                  EventRecord* e) {
  e->key = key;
  std::copy(axes, axes + kMaxVarAxes, e->axes);
  e->kernel_id = d.kernel->id;
  e->request_id = t->request.id;
  e->route = d.route != nullptr ? d.route->index() : kNoRoute;
  e->kind = EventRecord::Kind::kTiming;
  e->rung = d.rung;
  e->reason = d.reason;
}

}  // namespace

void Dispatcher::Call::record_time(ThreadState* t, const Decision& d, const ProblemKey& key,
                                   const int64_t* axes, uint64_t ticks) {
  EventRecord* e = t->timings.begin_push();
  if (e == nullptr) return;
  write_record(t, d, key, axes, e);
  e->ticks = ticks;
  t->timings.commit();
}

EventRecord Dispatcher::Call::record_of(const Decision& d, const ProblemKey& key, const int64_t* axes) const {
  EventRecord e;
  write_record(thread_, d, key, axes, &e);
  return e;
}

// `place` is below sample_below: which of the two is it?
Dispatcher::Call::Sampled Dispatcher::Call::sample(ThreadState* t, uint32_t place, const Route* route,
                                                   const Kernel* kernel) {
  // Nothing is timed or shadowed under capture.
  if (t->request.capture != CaptureState::kNone) return {nullptr, false};
  const bool shadow =
      place < t->shadow_below.load(std::memory_order_relaxed) && route != nullptr && !kernel->is_fallback();
  return {shadow ? route->fallback().get() : nullptr, place < t->time_below.load(std::memory_order_relaxed)};
}

// Who answers on this route, by its state. Counts nothing: a region may still be refused. Writes the parts of
// one Decision in place: passed around by value it is written by words and read by vectors, each time a stall
// on store forwarding.
void Dispatcher::Call::choose(ThreadState* t, const Route& route, const ProblemKey& key, const int64_t* axes,
                              bool region, Decision* d) {
  const Route::Arms& arms = route.arms();
  const bool captured = t->request.capture != CaptureState::kNone;
  const uint32_t workspace = workspace_units(t);
  d->kernel = arms.fallback;
  d->route = &route;
  d->rung = Rung::kFallback;
  d->reason = FallbackReason::kNoKernel;
  // Exact entries were checked when they were published.
  const auto usable = [&](const Kernel* k) {
    if (k == nullptr) return false;
    FallbackReason r = region ? k->refuses(key.constraints(), key.layout(), axes) : FallbackReason::kNone;
    // A device's workspace is the device's: whoever launches has it or not. Under capture it must be known now.
    const bool here = k->kind != KernelKind::kCuda || captured;
    if (r == FallbackReason::kNone && here && k->workspace_units > workspace)
      r = FallbackReason::kNoWorkspace;
    if (r == FallbackReason::kNone) return true;
    d->reason = r;
    return false;
  };
  const auto every_nth = [&](uint32_t every) {
    return every != 0 && !captured && (t->next_random() >> 32) % every == 0;
  };
  // relaxed: see decide().
  const RolloutWord word = RolloutWord::from_bits(arms.state->load(std::memory_order_relaxed));
  const RolloutState state = word.state();
  Rung rung = region ? Rung::kRegion : Rung::kExact;
  switch (state) {
    case RolloutState::kFallbackOnly:
      return;
    case RolloutState::kQuarantined:
      d->reason = FallbackReason::kRolledBack;
      return;
    case RolloutState::kCanary: {
      if (captured) break;  // a graph would replay its arm for ever
      const uint64_t hash = t->request.id != 0 ? mix64(t->request.id ^ arms.salt) : t->next_random();
      const RolloutWord::Arm arm = word.arm(hash);
      if (arm == RolloutWord::Arm::kChallenger && usable(arms.challenger)) {
        d->kernel = arms.challenger;
        d->rung = Rung::kCanary;
        d->reason = FallbackReason::kNone;
        return;
      }
      if (arm == RolloutWord::Arm::kControl) {
        rung = Rung::kControl;
        d->rung = Rung::kControl;  // without an incumbent the library is the control
      }
      break;
    }
    case RolloutState::kRolledBack:
      if (arms.incumbent == nullptr) d->reason = FallbackReason::kRolledBack;
      break;
    default:
      break;
  }
  if (usable(arms.incumbent)) {
    d->kernel = arms.incumbent;
    d->reason = FallbackReason::kNone;
    d->rung = rung;
    if (region && every_nth(t->region_shadow_every.load(std::memory_order_relaxed)))
      d->shadow = arms.fallback;
  }
  if (state == RolloutState::kShadow &&
      every_nth(t->challenger_shadow_every.load(std::memory_order_relaxed))) {
    const FallbackReason keep = d->reason;
    if (usable(arms.challenger)) d->shadow = arms.challenger;
    d->reason = keep;
  }
}

void Dispatcher::Call::count(ThreadState* t, Decision* d) {
  const uint32_t index = d->route != nullptr ? d->route->index() : kNoRoute;
  const uint32_t place = ThreadState::place_of(t->count(index, d->rung).add());
  t->by_rung[static_cast<int>(d->rung)].add();
  if (d->rung == Rung::kFallback) t->by_reason[static_cast<int>(d->reason)].add();
  if (place < t->sample_below.load(std::memory_order_relaxed)) [[unlikely]] {  // relaxed: a rate
    const Sampled s = sample(t, place, d->route, d->kernel);
    d->time = s.time;
    if (d->shadow == nullptr) d->shadow = s.shadow;
  }
}

// The second call in a row with one answer: arms the site's entry, which names the slot already.
Decision Dispatcher::Call::decide_repeated(ThreadState* t, const CallSite& site, const Asked& asked) {
  ThreadState::SiteEntry& last = t->site(site.cache_entry());
  if (site.tag() != 0) {
    last.tag = site.tag() | asked.layout.bits() << 24;
    std::copy_n(asked.var_axes, kMaxVarAxes, last.axes);
    last.version = asked.table->version;
  }
  return decide_slowly(t, site, asked, last.slot);
}

// A hit at which the log is full, or which is looked at.
Decision Dispatcher::Call::decide_due(ThreadState* t, const TableSlot* slot) {
  Decision d{slot->kernel, nullptr, slot->route, Rung::kExact, FallbackReason::kNone, false};
  // relaxed: rates.
  const uint32_t every = t->sample_every.load(std::memory_order_relaxed);
  const bool sampled = t->hits.settle(
      every, [t](uint32_t route) -> std::atomic<uint64_t>& { return t->count(route, Rung::kExact).word(); },
      [t] { return t->next_random() >> 32; });
  if (!sampled || t->request.capture != CaptureState::kNone)
    return d;  // nothing is timed or shadowed under capture
  // Of these hits, one in every/rate, the rarer sort among the commoner.
  const uint64_t draw = t->next_random() >> 32;
  const auto chosen = [&](const std::atomic<uint32_t>& rate) {
    const uint64_t n = rate.load(std::memory_order_relaxed);
    return n != 0 && draw * n < uint64_t{every} << 32;
  };
  d.time = chosen(t->time_every);
  if (chosen(t->shadow_every) && !slot->kernel->is_fallback()) d.shadow = slot->route->fallback().get();
  return d;
}

Decision Dispatcher::Call::decide_slowly(ThreadState* t, const CallSite& site, const Asked& asked,
                                         const TableSlot* slot) {
  return decide_found(t, site, asked.table, key_of(t, site, asked), asked.var_axes, slot);
}

// On a slot that was found.
Decision Dispatcher::Call::decide_found(ThreadState* t, const CallSite& site, const Snapshot* table,
                                        const ProblemKey& key, const int64_t* axes, const TableSlot* slot) {
  if (key.wide()) [[unlikely]] {
    WideProblem p{site.prefix(), key.layout(), {axes[0], axes[1], axes[2], axes[3], axes[4]}};
    p.prefix.constraints = key.constraints();
    if (!(slot->wide->problem == p))  // another problem with the same hash
      return decide_unknown(t, site, table, key, axes);
  }
  Decision d;
  choose(t, *slot->route, key, axes, false, &d);
  count(t, &d);
  return d;
}

uint32_t Dispatcher::Call::workspace_units(const ThreadState* t) {
  if (t->request.capture == CaptureState::kNone) [[likely]]
    return t->workspace.promised();
  // A thread's workspace belongs to its next call. What hold() cannot allocate goes to the library.
  return t->request.graph != nullptr && t->request.graph->has_allocator() ? UINT32_MAX : 0;
}

void Dispatcher::Call::captured_workspace(const CapturedGraph* graph, CallFrame* frame) {
  const CapturedGraph::Workspace w = graph != nullptr ? graph->workspace() : CapturedGraph::Workspace{};
  frame->workspace = w.block;
  frame->workspace_bytes = w.bytes;
}

// As any other call (the demand for a capturable kernel is in the key already), but what it gets is held.
Decision Dispatcher::Call::decide_captured(ThreadState* t, const CallSite& site, const ProblemKey& key,
                                           const int64_t* axes) {
  const TableSlot* slot = t->captured->find(key);
  Decision d = slot != nullptr ? decide_found(t, site, t->captured, key, axes, slot)
                               : decide_unknown(t, site, t->captured, key, axes);
  WideProblem problem{site.prefix(), key.layout(), {axes[0], axes[1], axes[2], axes[3], axes[4]}};
  problem.prefix.constraints = key.constraints();
  CapturedGraph& graph =
      t->request.graph != nullptr ? *t->request.graph : site.dispatcher()->graphs_.unowned();
  // Both are shared: the table that this thread has pinned holds them.
  auto route = d.route != nullptr ? d.route->shared_from_this() : nullptr;
  const FallbackReason why = graph.hold(problem, key, route, d.kernel->weak_from_this().lock());
  return why == FallbackReason::kNone ? d : take_back(t, site, d, why);
}

void Dispatcher::Call::serve_region(ThreadState* t, const std::vector<NicheIndex::Region>& regions,
                                    const ProblemKey& key, const int64_t* axes, Decision* d) {
  for (const NicheIndex::Region& r : regions) {
    if (r.context != key.context() || !r.contains(axes)) continue;
    choose(t, *r.route, key, axes, true, d);
    // Refused for what this call is: another region may have a kernel that can.
    const bool refused = d->rung == Rung::kFallback && d->reason != FallbackReason::kNoKernel &&
                         d->reason != FallbackReason::kRolledBack;
    if (!refused) return;
  }
}

Decision Dispatcher::Call::decide_miss(ThreadState* t, const CallSite& site, const Asked& asked) {
  return decide_unknown(t, site, asked.table, key_of(t, site, asked), asked.var_axes);
}

// What the table has no slot for.
Decision Dispatcher::Call::decide_unknown(ThreadState* t, const CallSite& site, const Snapshot* snapshot,
                                          const ProblemKey& key, const int64_t* axes) {
  Decision d;
  d.kernel = &site.fallback();
  d.reason = FallbackReason::kMiss;
  if (snapshot->mode != SnapshotMode::kServing) [[unlikely]] {
    if (snapshot->mode == SnapshotMode::kDetached) return decide_detached(site);
    if (snapshot->mode == SnapshotMode::kCapturing) return decide_captured(t, site, key, axes);
    static constexpr FallbackReason kModeReasons[] = {FallbackReason::kMiss, FallbackReason::kDisabled,
                                                      FallbackReason::kShutdown, FallbackReason::kProbation};
    d.reason = kModeReasons[static_cast<int>(snapshot->mode)];
    count(t, &d);
    return d;
  }
  if (snapshot->forced != nullptr && site.definition() < snapshot->forced->size()) [[unlikely]] {
    if (const Kernel* k = (*snapshot->forced)[site.definition()]) {
      forced(t, site, *k, key, axes, &d);
      count(t, &d);
      return d;
    }
  }
  const auto* regions = key.wide() ? nullptr : snapshot->niches->of(site.definition());
  if (regions != nullptr) serve_region(t, *regions, key, axes, &d);
  if (EventRecord* e = t->misses.begin_push()) {
    e->key = key;
    for (int i = 0; i < kMaxVarAxes; ++i) e->axes[i] = axes[i];
    e->kernel_id = d.kernel->id;
    e->ticks = 0;
    e->request_id = t->request.id;
    e->route = d.route != nullptr ? d.route->index() : kNoRoute;
    e->kind = EventRecord::Kind::kMiss;
    e->rung = d.rung;
    e->reason = d.reason;
    t->misses.commit();
  }
  count(t, &d);
  return d;
}

void Dispatcher::Call::forced(ThreadState* t, const CallSite& site, const Kernel& k, const ProblemKey& key,
                              const int64_t* axes, Decision* d) {
  FallbackReason r = k.refuses(key.constraints(), key.layout(), axes);
  if (r == FallbackReason::kNone && k.workspace_units > workspace_units(t)) r = FallbackReason::kNoWorkspace;
  if (r != FallbackReason::kNone) {
    d->kernel = &site.fallback();
    d->reason = r;
  } else {
    d->kernel = &k;
    d->rung = k.is_fallback() ? Rung::kFallback : Rung::kForced;
    d->reason = k.is_fallback() ? FallbackReason::kForced : FallbackReason::kNone;
  }
}

// ---- RequestScope ----

void RequestScope::open_slowly(ThreadState* t, const Snapshot* newest, uint64_t id, uint32_t tenant,
                               CaptureState capture, CapturedGraph* graph) {
  if (t == detached_thread()) return;
  const Snapshot* outer = t->captured != nullptr ? t->captured : t->pinned;
  t->outer_scopes.push_back({t->request, outer});
  if (outer == nullptr) {
    // The first scope of its request, in a Call or not.
    if (ThreadState::place_of(t->requests_opened.add()) <
        t->request_below.load(std::memory_order_relaxed))  // relaxed: a rate
      start_clock(t);
  }
  t->request = {id, tenant, capture, graph};
  pin(t, outer != nullptr ? outer : newest, capture);
}

void RequestScope::close_slowly(ThreadState* t) {
  if (t == detached_thread()) return;
  const ThreadState::OuterScope outer = t->outer_scopes.back();
  t->outer_scopes.pop_back();
  if (outer.table == nullptr) {
    t->requests_closed.add();
    if (t->request_start_ticks != 0) record_time(t);
  }
  t->request = outer.request;
  pin(t, outer.table, outer.request.capture);
}

void RequestScope::pin(ThreadState* t, const Snapshot* table, CaptureState capture) {
  const bool captured = table != nullptr && capture != CaptureState::kNone;
  t->pinned = captured ? capturing_snapshot() : table;
  t->captured = captured ? table : nullptr;
  t->demands = demands_of(capture);
}

void RequestScope::start_clock(ThreadState* t) { t->request_start_ticks = cycles(); }

void RequestScope::record_time(ThreadState* t) {
  if (EventRecord* e = t->timings.begin_push()) {
    *e = EventRecord{};
    e->kind = EventRecord::Kind::kRequest;
    e->request_id = t->request.id;
    e->ticks = cycles() - t->request_start_ticks;
    t->timings.commit();
  }
  t->request_start_ticks = 0;
}

uint64_t RequestScope::table_version() const {
  if (thread_ == detached_thread()) return 0;
  return (thread_->captured != nullptr ? thread_->captured : thread_->pinned)->version;
}

}  // namespace niche::dispatch
