// Control's rollouts: shadow, canary, incumbent, out.
#include <algorithm>

#include "runtime/control.h"

namespace niche::core {

using dispatch::LogLevel;
using rollout::Stage;

namespace {

rollout::Policy rollout_policy(const RuntimeConfig& c) {
  rollout::Policy p;
  p.canary_ns_min = static_cast<int64_t>(c.canary_seconds_min * 1e9);
  return p;
}

// Sessions commit better and better kernels; only the best few of those that wait are worth a rollout.
constexpr size_t kWaitingMax = 8;

}  // namespace

// What the rollout counts: requests where the server opens scopes (an arm is drawn once a request), else
// calls.
double Control::exposures_per_s(uint32_t definition) const {
  for (const auto& hot : ranking_) {
    if (hot.definition != definition) continue;
    return requests_per_s_ > 0 ? std::min(requests_per_s_, hot.calls_per_s) : hot.calls_per_s;
  }
  return 0;
}

void Control::drive_rollouts(int64_t now_ns) {
  for (auto& [id, d] : definitions_) {
    if (d->grouped) continue;
    if (!d->rollout) {
      start_next_rollout(*d, now_ns);
      continue;
    }
    const std::shared_ptr<const ResidentKernel> k = d->board.challenger();
    const rollout::Decision decision = d->rollout->step(exposures_per_s(id), now_ns);
    switch (decision.stage) {
      case Stage::kShadow:
      case Stage::kCanary:
        if (decision.stage == Stage::kCanary && !d->in_canary) {
          d->in_canary = true;
          event("canary", d->known.definition->name(), k->ref.kernel, LogLevel::kInfo);
        }
        d->board.set_rollout(route_state(decision.stage), decision.share);
        break;
      case Stage::kIncumbent:
        promote(*d, now_ns);
        break;
      case Stage::kRolledBack:
        if (decision.quarantine)
          roll_back(*d, k->id(), d->rollout->describe(), now_ns);
        else
          give_up(*d, decision.cause, now_ns);
        break;
    }
  }
}

void Control::start_next_rollout(DefinitionState& d, int64_t now_ns) {
  if (d.waiting.empty() || !d.due(now_ns)) return;
  // The most promising first: the others may be beaten by it before their turn.
  std::stable_sort(d.waiting.begin(), d.waiting.end(), [](const auto& a, const auto& b) {
    return a->fallback_ns * b->kernel_ns > b->fallback_ns * a->kernel_ns;
  });
  while (d.waiting.size() > kWaitingMax) {
    retire(d, *d.waiting.back(), "passed over", "better kernels of the same session wait for their rollout");
    d.waiting.pop_back();
  }
  for (auto at = d.waiting.begin(); at != d.waiting.end() && !d.rollout;) {
    const std::shared_ptr<const ResidentKernel> k = *at;
    const rollout::FlapGuard::Answer answer = d.flap.may_challenge(k->id(), now_ns);
    if ((!answer.allowed && answer.not_before_ns != 0) || (!k->proven && !may_mark(shelf(d)))) {
      ++at;
      continue;
    }
    at = d.waiting.erase(at);
    if (!answer.allowed) {
      retire(d, *k, "given up", answer.reason);
    } else if (!promises_more(d, *k)) {
      retire(d, *k, "superseded", "what serves is at least as fast wherever it was measured");
    } else if (!put_on_probation(shelf(d), *k)) {
      retire(d, *k, "held", "no durable probation mark can be written: " + shelf(d).problem);
    } else {
      begin_rollout(d, k, now_ns);
      event("shadow", d.known.definition->name(), k->ref.kernel, LogLevel::kInfo);
    }
  }
}

// Is there a measured point where the kernel beats what serves there now?
bool Control::promises_more(const DefinitionState& d, const ResidentKernel& k) const {
  constexpr double kWorthARollout = 1.02;
  if (k.timing.empty()) return true;
  const int axes = static_cast<int>(d.known.definition->var_axes().size());
  return std::any_of(k.timing.begin(), k.timing.end(), [&](const evolve::PointTiming& t) {
    double best = 1;
    for (const auto& s : d.board.serving())
      if (s->kernel->guard.holds_var(t.var_axes.data()))
        best = std::max(best, s->gain(t.var_axes.data(), axes));
    return t.speedup > best * kWorthARollout;
  });
}

// Not proven within the bounds: out, without a mark against it; the flap guard says when it may try again.
void Control::give_up(DefinitionState& d, rollout::Cause cause, int64_t now_ns) {
  const std::shared_ptr<const ResidentKernel> k = d.board.challenger();
  const std::string why = d.rollout->describe();
  d.rollout.reset();
  (void)d.board.withdraw(k->id());
  d.flap.rolled_back(k->id(), cause, now_ns);
  if (shelf(d).cache && !k->proven) (void)shelf(d).cache->probation().clear(k->ref.id);
  event("not proven", d.known.definition->name(), k->ref.kernel + ": " + why, LogLevel::kInfo);
  d.waiting.push_back(k);
}

void Control::begin_rollout(DefinitionState& d, const std::shared_ptr<const ResidentKernel>& k,
                            int64_t now_ns) {
  const RuntimeCore::Known known = d.known;
  const auto work = [known](const int64_t* var_axes) {
    dispatch::Problem p;
    if (!make_problem(known, var_axes, &p)) return 0.0;
    const dispatch::Cost c = known.op->cost(p);
    return c.bytes + c.flops / 8;
  };
  rollout::Policy policy = rollout_policy(core_->config());
  // Nothing is compared on a device yet: the canary begins on what the judge verified.
  if (d.device != 0) policy.shadow_wait_ns = 0;
  d.rollout = std::make_unique<RolloutDriver>(k->id(), policy, work, now_ns);
  d.in_canary = false;
  d.board.set_challenger(k);
  d.dirty = true;
}

void Control::promote(DefinitionState& d, int64_t now_ns) {
  const std::shared_ptr<const ResidentKernel> k = d.board.challenger();
  const std::string how = d.rollout->describe();
  d.watches[k->id()] = IncumbentWatch(d.rollout->control_median());
  d.rollout.reset();
  d.flap.promoted(k->id(), now_ns);
  d.board.set_challenger(nullptr);
  d.board.add_serving(k);
  d.dirty = true;
  d.serving_since_ns.try_emplace(k->id(), now_ns);
  ++counters_.swaps;
  event("incumbent", d.known.definition->name(), k->ref.kernel + " after " + how, LogLevel::kInfo);
  // A kernel that another one beats wherever it could serve is out of the table, not out of the cache.
  const int axes = static_cast<int>(d.known.definition->var_axes().size());
  std::vector<std::shared_ptr<const ResidentKernel>> beaten;
  for (const auto& old : d.board.serving()) {
    if (old->id() == k->id() || !guard_inside(old->kernel->guard, k->kernel->guard)) continue;
    const bool everywhere =
        !old->timing.empty() && std::all_of(old->timing.begin(), old->timing.end(), [&](const auto& t) {
          return k->gain(t.var_axes.data(), axes) >= t.speedup;
        });
    if (everywhere) beaten.push_back(old);
  }
  flush_served();
  for (const auto& old : beaten) {
    d.board.remove(old->id());
    if (shelf(d).cache && !old->proven) (void)shelf(d).cache->probation().clear(old->ref.id);
    retire(d, *old, "superseded", "beaten by " + k->ref.kernel);
  }
}

void Control::roll_back(DefinitionState& d, uint64_t kernel, const std::string& reason, int64_t now_ns) {
  const auto at = d.residents.find(kernel);
  if (at == d.residents.end()) return;
  const std::shared_ptr<const ResidentKernel> k = at->second;
  if (d.group_serving.count(kernel) != 0) {
    withdraw_from_group(d, *k, reason);  // and out of the books once the group has gone back
    return;
  }
  if (d.board.challenges(kernel)) d.rollout.reset();
  (void)d.board.withdraw(kernel);  // acts on the next call, before anything durable is written
  d.dirty = true;
  ++counters_.rollbacks;
  event("rolled back", d.known.definition->name(), k->ref.kernel + ": " + reason, LogLevel::kError);
  quarantine(d, *k, reason);
  d.flap.rolled_back(kernel, rollout::Cause::kWithdrawn, now_ns);
  std::erase(d.waiting, k);
  d.watches.erase(kernel);
  retire(d, *k, "quarantined", reason);
}

// An incumbent that became slower than what it replaced: a second canary, half and half, decides.
void Control::watch_incumbent(DefinitionState& d, const dispatch::EventRecord& e, double ns, int64_t now_ns) {
  const auto at = d.residents.find(e.kernel_id);
  if (at == d.residents.end() || d.rollout) return;
  dispatch::Problem p;
  if (!make_problem(d.known, e.axes, &p)) return;
  const dispatch::Cost c = d.known.op->cost(p);
  const double work = c.bytes + c.flops / 8;
  if (!(work > 0)) return;
  const std::shared_ptr<const ResidentKernel> k = at->second;
  auto watch = d.watches.find(k->id());
  if (watch == d.watches.end()) {
    // Warm start: no live control arm yet; the Verdict's figure for the library stands in. On a device that is the
    // time behind a full queue, and live calls may wait for their launch: only what is far from it is suspect.
    const auto* point = k->nearest(e.axes, static_cast<int>(d.known.definition->var_axes().size()));
    dispatch::Problem at_point;
    if (point == nullptr || !make_problem(d.known, point->var_axes.data(), &at_point)) return;
    const dispatch::Cost pc = d.known.op->cost(at_point);
    constexpr double kLaunchNs = 10'000;
    const double library_ns = d.device == 0 ? point->fallback_ns : 2 * point->fallback_ns + kLaunchNs;
    watch = d.watches.emplace(k->id(), IncumbentWatch(library_ns / (pc.bytes + pc.flops / 8))).first;
  }
  if (!watch->second.add(ns / work)) return;
  if (d.grouped) return withdraw_from_group(d, *k, "slower here than the library was");
  event("suspect", d.known.definition->name(),
        k->ref.kernel + " is slower than what it replaced; a canary decides", LogLevel::kWarning);
  d.board.remove(k->id());
  begin_rollout(d, k, now_ns);
  d.rollout->start_in_canary(now_ns);
}

}  // namespace niche::core
