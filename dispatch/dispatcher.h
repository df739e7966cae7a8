// Dispatcher: the data plane as runtime/ sees it: from a call's raw axes to something runnable. Never fails,
// never waits.
//
// Setting up, once an Op and Definition:
//
//   auto d = Dispatcher::make({.clock = &clock}).value();                    // one a Runtime
//   uint32_t def = d->define(op_spec, definition).value();                   // idempotent
//   CallSite site = d->call_site(def, {.tenant = 0, .threads = executor.threads});
//
// A call (hot path):
//   int64_t var[kMaxVarAxes] = {batch, length};            // Definition::var_axes() order, rest 0
//   {
//     Dispatcher::Call call(*d);                           // epoch: spans the kernel's run
//     const LayoutClass layout = LayoutClass::plain_at(ored_pointers);
//     const Decision dec = call.decide(site, layout, var);
//     CallFrame frame{&definition, &args, native};         // args.packed: see Kernel::pack_slot
//     call.lend_workspace(frame);
//     const uint64_t t0 = dec.time ? cycles() : 0;
//     dec.kernel->launch(*dec.kernel, frame, executor);
//     if (dec.time) call.record_time(dec, call.pack(site, layout, var), var, cycles() - t0);
//     if (dec.shadow) ...                                  // also run dec.shadow off the answer's path
//   }
//   // a binding without packed constants: dec = call.fall_back(site, dec, FallbackReason::kNotPacked);
//   // a foreign tensor: Decision dec = call.fall_back(site, FallbackReason::kRequiresGrad);
//
// The control plane (any thread):
//   auto kernel = load_cpu_kernel({...}, module).value();  // devices/cpu/cpu_kernel.h
//   d->reserve_workspace(kernel->plan.workspace_bytes);    // before publication
//   auto route = d->make_route({definition, d->fallback(def, form), nullptr, kernel,
//                               RolloutState::kCanary, 0.01}).value();
//   d->publisher().put(problem, route);
//   d->publisher().put_region({site.prefix(), kernel->guard, route});
//   d->publisher().commit();
//   route->roll_back();                                    // acts on the next call
//   d->drain([](const EventRecord& e) { ... });
//   d->counts(*route), d->totals(), d->publisher().poll();
//
// Roles, progress, reclamation: thread_state.h, epoch.h, publisher.h. A Dispatcher is shared (shared_ptr) by
// all who hold call sites; shut_down() sends every later call to its fallback. Cost: docs/dispatch.md has figures.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "dispatch/base/clock.h"
#include "dispatch/base/status.h"
#include "dispatch/call_site.h"
#include "dispatch/captured_graph.h"
#include "dispatch/constraints.h"
#include "dispatch/counters.h"
#include "dispatch/problem_key.h"
#include "dispatch/publisher.h"
#include "dispatch/request_scope.h"
#include "dispatch/route.h"
#include "dispatch/table.h"
#include "dispatch/thread_state.h"

namespace niche::dispatch {

struct Decision {
  const Kernel* kernel = nullptr;  // never null; valid until the Call ends
  const Kernel* shadow = nullptr;  // also run this one, off the answer's path, and compare; null: do not
  const Route* route = nullptr;    // null: the table has nothing here
  Rung rung = Rung::kFallback;
  FallbackReason reason = FallbackReason::kNone;
  bool time = false;  // time this call
};

struct DispatcherOptions {
  const Clock* clock = nullptr;  // required; outlives the Dispatcher
  uint32_t routes_max = 1u << 16;
  uint32_t threads_max = 1024;
  uint32_t definitions_max = 1u << 16;
  uint32_t graphs_max = 4096;
  PublisherLimits publisher{};
  SamplingRates sampling{};
  bool asymmetric_fence = true;  // false: the exchange even where membarrier works (tests, benchmarks)
};

class Dispatcher {
 public:
  // kInvalid names the option.
  static Result<std::shared_ptr<Dispatcher>> make(const DispatcherOptions& options);
  // Requires: no Call or RequestScope of it is open.
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  // ---- Definitions ----

  // The number of a Definition (equal names: the same number) and its fallback kernels, one a form. kInvalid:
  // the Definition is of another schema than the OpSpec. kBusy: definitions_max.
  Result<uint32_t> define(std::shared_ptr<const OpSpec> op, std::shared_ptr<const Definition> definition);
  // Null: no such number, or a form that does not apply.
  std::shared_ptr<const Kernel> fallback(uint32_t definition, int form) const;
  std::shared_ptr<const Definition> definition(uint32_t definition) const;  // null: no such number

  struct SiteOptions {
    uint32_t tenant = 0, device = 0, threads = 1;
    ConstraintSet constraints{};
    int fallback_form = 0;  // who answers where the table has nothing
  };
  // Requires: `definition` came from define().
  CallSite call_site(uint32_t definition, const SiteOptions& options);

  // ---- Control plane ----

  Result<std::shared_ptr<Route>> make_route(Route::Spec spec);
  Publisher& publisher() { return *publisher_; }
  // Device graphs that servers capture. Poll it with publisher().
  GraphRegistry& graphs() { return graphs_; }
  // Every attached thread, and those to come, get at least so much. Before the kernel's route is published.
  Status reserve_workspace(int64_t bytes);
  void set_sampling(const SamplingRates& rates);  // acts on some later call of each thread
  SamplingRates sampling() const;
  // Everything to the fallback from the next call of each thread on. Idempotent.
  void shut_down() { (void)publisher_->set_mode(SnapshotMode::kShutdown); }

  // Hands every record that waits to `f` and returns their number; at most kEvents a thread and kind. One
  // caller at a time.
  size_t drain(const std::function<void(const EventRecord&)>& f);
  CounterTotals totals() const;
  // The calling thread's own part of totals().by_rung: what a server reports of one request is the difference
  // of two.
  RouteCounts thread_counts();
  // Calls of one Route since it was made.
  RouteCounts counts(const Route& route) const;
  // Requests open now on all threads.
  uint64_t requests_in_flight() const;

  // ---- Hot path ----

  // One call: RAII; holds the table version that it decides by, and the kernels in it.
  class Call {
   public:
    explicit Call(Dispatcher& d);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // `var_axes`: kMaxVarAxes values, unused ones 0.
    Decision decide(const CallSite& site, LayoutClass layout, const int64_t* var_axes);
    // The key of that call, for records; adds what the open RequestScope demands (capturable under capture).
    ProblemKey pack(const CallSite& site, LayoutClass layout, const int64_t* var_axes) const {
      return key_of(thread_, site, {snapshot_, layout, var_axes});
    }

    // The fallback instead of what decide() said, counted under `reason` and not under the decision's rung.
    Decision fall_back(const CallSite& site, const Decision& instead_of, FallbackReason reason) {
      return detached() ? instead_of : take_back(thread_, site, instead_of, reason);
    }
    // The site's fallback without asking the table (foreign tensors), counted.
    Decision fall_back(const CallSite& site, FallbackReason reason) {
      return detached() ? decide_detached(site) : fall_back(thread_, site, reason);
    }

    // This thread's workspace, for frame.workspace. Held by one kernel at a time: calls do not nest inside
    // evolved kernels.
    void lend_workspace(CallFrame& frame) const;
    // Leaves a timing record for the aggregator; a full ring drops and counts.
    void record_time(const Decision& decision, const ProblemKey& key, const int64_t* var_axes,
                     uint64_t ticks) {
      if (!detached()) record_time(thread_, decision, key, var_axes, ticks);
    }

    // The record that such a call leaves, its ticks open: for times that are known later (devices).
    EventRecord record_of(const Decision& decision, const ProblemKey& key, const int64_t* var_axes) const;

    uint64_t table_version() const {
      return detached()                                    ? 0
             : snapshot_->mode == SnapshotMode::kCapturing ? thread_->captured->version
                                                           : snapshot_->version;
    }

   private:
    // What the slower paths get of a Call: made on the way there, and packed there once more, which costs less
    // than keeping the key alive. What has its address taken stays on the stack from the beginning, and a
    // seventh argument costs every call a frame pointer.
    struct Asked {
      const Snapshot* table;
      LayoutClass layout;
      const int64_t* var_axes;
    };
    struct Sampled {
      const Kernel* shadow;
      bool time;
    };
    static ProblemKey key_of(const ThreadState* t, const CallSite& site, const Asked& asked) {
      const uint64_t demands = asked.table->mode == SnapshotMode::kCapturing ? t->demands : 0;
      return pack_key(site.packed_prefix().with(demands), site.prefix(), asked.layout, asked.var_axes);
    }
    static Decision decide_repeated(ThreadState* t, const CallSite& site, const Asked& asked);
    Decision decide_hit(ThreadState* t, const CallSite& site, LayoutClass layout, const int64_t* var_axes,
                        const TableSlot* slot) const;
    static Decision decide_due(ThreadState* t, const TableSlot* slot);
    static Decision decide_slowly(ThreadState* t, const CallSite& site, const Asked& asked,
                                  const TableSlot* slot);
    static Decision decide_miss(ThreadState* t, const CallSite& site, const Asked& asked);
    static Decision decide_found(ThreadState* t, const CallSite& site, const Snapshot* table,
                                 const ProblemKey& key, const int64_t* var_axes, const TableSlot* slot);
    static Decision decide_unknown(ThreadState* t, const CallSite& site, const Snapshot* table,
                                   const ProblemKey& key, const int64_t* var_axes);
    static Decision decide_detached(const CallSite& site);
    static Decision decide_captured(ThreadState* t, const CallSite& site, const ProblemKey& key,
                                    const int64_t* var_axes);
    static uint32_t workspace_units(const ThreadState* t);
    static void captured_workspace(const CapturedGraph* graph, CallFrame* frame);
    static void choose(ThreadState* t, const Route& route, const ProblemKey& key, const int64_t* var_axes,
                       bool region, Decision* decision);
    static void serve_region(ThreadState* t, const std::vector<NicheIndex::Region>& regions,
                             const ProblemKey& key, const int64_t* var_axes, Decision* decision);
    static void forced(ThreadState* t, const CallSite& site, const Kernel& kernel, const ProblemKey& key,
                       const int64_t* var_axes, Decision* decision);
    static void count(ThreadState* t, Decision* decision);
    static Sampled sample(ThreadState* t, uint32_t place, const Route* route, const Kernel* kernel);
    static Decision fall_back(ThreadState* t, const CallSite& site, FallbackReason reason);
    static Decision take_back(ThreadState* t, const CallSite& site, const Decision& was,
                              FallbackReason reason);
    static void record_time(ThreadState* t, const Decision& decision, const ProblemKey& key,
                            const int64_t* var_axes, uint64_t ticks);
    bool detached() const { return snapshot_->mode == SnapshotMode::kDetached; }

    ThreadState* thread_;  // never null
    uint64_t entered_;
    const Snapshot* snapshot_;
  };

 private:
  friend class RequestScope;
  explicit Dispatcher(const DispatcherOptions& options);
  // Never null.
  NICHE_HOT_INLINE ThreadState* thread() const {
    if (thread_fast_path.dispatcher == number_) [[likely]]
      return thread_fast_path.state;
    return registry_->attach().state;
  }

  EpochDomain domain_;  // first: its line is the one that calls read
  const uint64_t number_;
  DispatcherOptions options_;
  std::shared_ptr<ThreadRegistry> registry_;
  std::shared_ptr<RouteIndexPool> routes_;
  std::unique_ptr<Publisher> publisher_;
  GraphRegistry graphs_;
  struct Cold;
  std::unique_ptr<Cold> cold_;
};

// ---- inline: the hot path ----

NICHE_HOT_INLINE Dispatcher::Call::Call(Dispatcher& d) : thread_(d.thread()) {
  entered_ = d.domain_.enter(thread_->epoch);
  // In a RequestScope its version; a detached thread is in one for ever.
  if (EpochDomain::nested(entered_) && thread_->pinned != nullptr)
    snapshot_ = thread_->pinned;
  else
    snapshot_ = d.domain_.current();
}

NICHE_HOT_INLINE Dispatcher::Call::~Call() { EpochDomain::leave(thread_->epoch, entered_); }

// Each slower way returns from here by itself: what would live across a call costs every call a saved register.
NICHE_HOT_INLINE Decision Dispatcher::Call::decide(const CallSite& site, LayoutClass layout,
                                                   const int64_t* var_axes) {
  ThreadState* const t = thread_;
  ThreadState::SiteEntry& last = t->site(site.cache_entry());
  // A version is never reused, so an equal one means: this very Snapshot, which the epoch protects. The tables of
  // captured and detached threads have one that nothing is armed for.
  if (last.version == snapshot_->version) {
    // One by one: the axes were stored a moment ago, and a vector load over two stores would wait for both.
    if (last.tag == (site.tag() | layout.bits() << 24) && last.axes[0] == var_axes[0] &&
        last.axes[1] == var_axes[1] &&
        (site.two_axes() ||
         (last.axes[2] == var_axes[2] && last.axes[3] == var_axes[3] && last.axes[4] == var_axes[4])))
      return decide_hit(t, site, layout, var_axes, last.slot);
    last.version = 0;
  }
  const TableSlot* const slot =
      snapshot_->find(pack_key(site.packed_prefix(), site.prefix(), layout, var_axes));
  if (slot == nullptr) [[unlikely]]
    return decide_miss(t, site, {snapshot_, layout, var_axes});
  if (slot == last.slot) [[unlikely]]
    return decide_repeated(t, site, {snapshot_, layout, var_axes});
  last.slot = slot;
  return decide_hit(t, site, layout, var_axes, slot);
}

// In line twice a call: on the way of a site that repeats, and after the table.
NICHE_HOT_INLINE Decision Dispatcher::Call::decide_hit(ThreadState* t, const CallSite& site,
                                                       LayoutClass layout, const int64_t* var_axes,
                                                       const TableSlot* slot) const {
  // relaxed: what the word guards was published with the table; a rollback is seen by the next call.
  if (slot->state->load(std::memory_order_relaxed) != kIncumbentWord) [[unlikely]]
    return decide_slowly(t, site, {snapshot_, layout, var_axes}, slot);
  if (t->hits.add(slot->route_index)) [[unlikely]]
    return decide_due(t, slot);
  return {slot->kernel, nullptr, slot->route, Rung::kExact, FallbackReason::kNone, false};
}

inline void Dispatcher::Call::lend_workspace(CallFrame& frame) const {
  if (thread_->request.capture != CaptureState::kNone) [[unlikely]]
    return captured_workspace(thread_->request.graph, &frame);
  const auto loan = thread_->workspace.lend();
  frame.workspace_bytes = int64_t{64} * loan.units;
  frame.workspace = loan.block;
}

inline RequestScope::RequestScope(Dispatcher& d, const RequestInfo& info) : thread_(d.thread()) {
  entered_ = d.domain_.enter(thread_->epoch);
  slow_ = EpochDomain::nested(entered_) || info.capture != CaptureState::kNone;
  if (slow_) [[unlikely]] {
    open_slowly(thread_, d.domain_.current(), info.id, info.tenant, info.capture, info.graph);
    return;
  }
  thread_->pinned = d.domain_.current();
  thread_->request.id = info.id;
  thread_->request.tenant = info.tenant;
  if (ThreadState::place_of(thread_->requests_opened.add()) <
      thread_->request_below.load(std::memory_order_relaxed)) [[unlikely]]  // relaxed: a rate
    start_clock(thread_);
}

inline RequestScope::~RequestScope() {
  if (slow_) [[unlikely]] {
    close_slowly(thread_);
  } else {
    thread_->requests_closed.add();
    if (thread_->request_start_ticks != 0) [[unlikely]]
      record_time(thread_);
    thread_->request.id = 0;
    thread_->request.tenant = 0;
    thread_->pinned = nullptr;
  }
  EpochDomain::leave(thread_->epoch, entered_);
}

}  // namespace niche::dispatch
