#include "runtime/telemetry/telemetry.h"

#include <algorithm>
#include <cmath>

#include "dispatch/base/hash.h"

namespace niche::telemetry {
namespace {

using dispatch::FallbackReason;
using dispatch::Rung;

// Above this much of its savable time in problems too rare to hold, a Definition's list gives room to the
// tail's sample.
constexpr double kTailMatters = 0.05;

bool is_unseen(const Sample& s) {
  if (s.rung == Rung::kRegion) return true;
  return s.rung == Rung::kFallback &&
         (s.reason == FallbackReason::kMiss || s.reason == FallbackReason::kGuard);
}

double unit_interval(uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }

}  // namespace

bool evolution_may_help(FallbackReason reason) {
  switch (reason) {
    case FallbackReason::kNone:
    case FallbackReason::kMiss:
    case FallbackReason::kNoKernel:
    case FallbackReason::kGuard:
    case FallbackReason::kConstraint:
    case FallbackReason::kNotPacked:
    case FallbackReason::kNoWorkspace:
    case FallbackReason::kRolledBack:
    case FallbackReason::kProbation:
      return true;
    default:
      return false;  // the call's own properties, or somebody's wish, keep it on the library
  }
}

size_t Telemetry::ProblemHash::operator()(const ProblemKey& k) const {
  uint64_t h = dispatch::mix64(k.definition + 0x9e3779b97f4a7c15ULL);
  for (int64_t a : k.axes) h = dispatch::mix64(h ^ static_cast<uint64_t>(a)) + 0x9e3779b97f4a7c15ULL;
  return static_cast<size_t>(h);
}

Telemetry::Telemetry(const TelemetryOptions& options)
    : options_(options),
      decay_(options.half_life_ns),
      hitters_(options.problems_max),
      reuse_(options.reuse) {}
Telemetry::~Telemetry() = default;

Telemetry::PerDefinition* Telemetry::definition(uint32_t id) {
  if (const auto it = definitions_.find(id); it != definitions_.end()) return &it->second;
  if (definitions_.size() >= options_.definitions_max) return nullptr;
  PerDefinition d;
  d.on_fallback = options_.saving_on_fallback;
  d.on_evolved = options_.saving_on_evolved;
  d.on_region = options_.saving_on_region;
  return &definitions_.emplace(id, std::move(d)).first->second;
}

double Telemetry::saving(const PerDefinition& d, const Sample& s) const {
  switch (s.rung) {
    case Rung::kFallback:
      return evolution_may_help(s.reason) ? d.on_fallback : 0;
    case Rung::kRegion:
      return d.on_region;
    case Rung::kExact:
    case Rung::kCanary:
    case Rung::kControl:
      return d.on_evolved;
    case Rung::kForced:
      return 0;
  }
  return 0;
}

void Telemetry::set_saving(uint32_t id, double on_fallback, double on_evolved) {
  PerDefinition* d = definition(id);
  if (d == nullptr) return;
  // What was counted under the old belief is counted again under the new one, so that a session's answer acts
  // at once.
  const double before = d->on_fallback, after = std::clamp(on_fallback, 0.0, 1.0);
  d->on_fallback = after;
  d->on_evolved = std::clamp(on_evolved, 0.0, 1.0);
  d->on_region = std::min(options_.saving_on_region, std::max(d->on_fallback, d->on_evolved));
  if (before > 0) d->savable *= after / before;
}

void Telemetry::add(std::span<const Sample> samples, int64_t now_ns) {
  const double factor = decay_.advance(now_ns);
  if (factor != 1) {
    hitters_.scale(factor);
    total_ns_ *= factor;
    for (auto& e : hitters_.entries())
      e.info.weight *= factor, e.info.unseen *= factor, e.info.cold *= factor;
    for (auto& [id, d] : definitions_) {
      for (double* v : {&d.ns, &d.savable, &d.calls, &d.unseen_ns, &d.fallback_ns}) *v *= factor;
      for (TailSample& t : d.tail) t.priority += std::log(factor);
    }
  }
  const double unit = decay_.stored_per_unit();

  interval_.clear();
  for (const Sample& s : samples)
    if (s.bytes > 0 && s.calls > 0) interval_.push_back({s.site, s.calls, s.bytes});
  if (!interval_.empty()) {
    std::sort(interval_.begin(), interval_.end(),
              [](const auto& a, const auto& b) { return a.site < b.site; });
    size_t kept = 0;
    for (size_t i = 1; i < interval_.size(); ++i) {
      if (interval_[i].site == interval_[kept].site) {
        interval_[kept].calls += interval_[i].calls;
        interval_[kept].bytes += interval_[i].bytes;
      } else {
        interval_[++kept] = interval_[i];
      }
    }
    interval_.resize(kept + 1);
    reuse_.observe_interval(interval_, now_ns);
  }

  for (const Sample& s : samples) {
    if (s.calls <= 0 || !(s.ns >= 0) || !std::isfinite(s.ns)) continue;
    total_ns_ += s.ns * unit;
    PerDefinition* d = definition(s.definition);
    if (d == nullptr) {
      untracked_ns_ += s.ns;
      continue;
    }
    const bool unseen = is_unseen(s), cold = reuse_.state(s.site) == CacheState::kCold;
    const double weight = s.ns * saving(*d, s) * unit;
    d->ns += s.ns * unit;
    d->calls += static_cast<double>(s.calls) * unit;
    d->savable += weight;
    if (unseen) d->unseen_ns += s.ns * unit;
    if (s.rung == Rung::kFallback) d->fallback_ns += s.ns * unit;
    if (weight <= 0) continue;
    ProblemInfo& info = hitters_.add({s.definition, s.axes}, weight);
    info.weight += weight;
    if (unseen) info.unseen += weight;
    if (cold) info.cold += weight;
    sample_tail(*d, s, weight, unseen, cold);
  }
}

// Efraimidis and Spirakis' weighted reservoir (2006) in its Gumbel form, which stays finite under forward
// decay.
void Telemetry::sample_tail(PerDefinition& d, const Sample& s, double weight, bool unseen, bool cold) {
  const double u = unit_interval(dispatch::mix64(options_.seed * 0x9e3779b97f4a7c15ULL + ++draws_));
  const double priority = std::log(weight) - std::log(-std::log(u));
  const auto lighter = [](const TailSample& a, const TailSample& b) { return a.priority > b.priority; };
  if (d.tail.size() >= kTailSamples) {
    if (priority <= d.tail.front().priority) return;
    std::pop_heap(d.tail.begin(), d.tail.end(), lighter);
    d.tail.pop_back();
  }
  d.tail.push_back({priority, s.axes, unseen, cold});
  std::push_heap(d.tail.begin(), d.tail.end(), lighter);
}

HotDefinition Telemetry::describe(
    uint32_t id, const PerDefinition& d,
    std::vector<const HeavyHitters<ProblemKey, ProblemHash, ProblemInfo>::Entry*> held) const {
  HotDefinition h;
  h.definition = id;
  h.share = total_ns_ > 0 ? d.ns / total_ns_ : 0;
  h.device_ns_per_s = decay_.rate_of(d.ns) * 1e9;
  h.savable_ns_per_s = decay_.rate_of(d.savable) * 1e9;
  h.calls_per_s = decay_.rate_of(d.calls) * 1e9;
  h.unseen_share = d.ns > 0 ? d.unseen_ns / d.ns : 0;
  h.fallback_share = d.ns > 0 ? d.fallback_ns / d.ns : 0;

  std::sort(held.begin(), held.end(), [](const auto* a, const auto* b) {
    return a->guaranteed() != b->guaranteed() ? a->guaranteed() > b->guaranteed() : a->key.axes < b->key.axes;
  });
  const size_t room = options_.problems_per_definition;
  double sure = 0;
  for (size_t i = 0; i < held.size() && i < room; ++i) sure += held[i]->guaranteed();
  // The sketch's weights were counted under earlier beliefs about the saving; shares are taken of what it
  // saw.
  double seen = 0;
  for (const auto* e : held) seen += e->guaranteed();
  seen = std::max(seen, d.savable);
  h.tail_share = seen > 0 ? std::clamp(1 - sure / seen, 0.0, 1.0) : 0;
  const bool show_tail = h.tail_share > kTailMatters && !d.tail.empty();
  const size_t hitters_max = show_tail && room > kTailSamples ? room - kTailSamples : room;
  // A held problem that stands for much less than a sample does would only take its place.
  const double least = show_tail ? seen * h.tail_share / (4 * kTailSamples) : 0;
  double shown = 0;
  for (const auto* e : held) {
    if (h.problems.size() >= hitters_max || e->guaranteed() <= least) break;
    const ProblemInfo& i = e->info;
    h.problems.push_back({e->key.axes, e->guaranteed(), i.unseen * 2 > i.weight, i.cold * 2 > i.weight});
    shown += e->guaranteed();
  }
  if (show_tail) {
    // Samples that are not among the shown stand for the rest in equal parts: they were drawn by weight.
    std::vector<HotProblem> rest;
    for (const TailSample& t : d.tail) {
      const auto same = [&](const HotProblem& p) { return p.axes == t.axes; };
      if (std::any_of(h.problems.begin(), h.problems.end(), same)) continue;
      if (auto it = std::find_if(rest.begin(), rest.end(), same); it != rest.end())
        it->weight += 1;
      else if (h.problems.size() + rest.size() < room)
        rest.push_back({t.axes, 1, t.unseen, t.cold});
    }
    double parts = 0;
    for (const HotProblem& p : rest) parts += p.weight;
    for (HotProblem& p : rest) p.weight *= std::max(seen - shown, 0.0) / parts;
    h.problems.insert(h.problems.end(), rest.begin(), rest.end());
  }
  double sum = 0;
  for (const HotProblem& p : h.problems) sum += p.weight;
  for (HotProblem& p : h.problems) p.weight = sum > 0 ? p.weight / sum : 0;
  std::sort(h.problems.begin(), h.problems.end(), [](const HotProblem& a, const HotProblem& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.axes < b.axes;
  });
  return h;
}

std::vector<HotDefinition> Telemetry::ranking(size_t max) const {
  std::vector<std::pair<double, uint32_t>> order;
  for (const auto& [id, d] : definitions_) order.emplace_back(-d.savable, id);
  std::sort(order.begin(), order.end());
  order.resize(std::min(order.size(), max));
  std::unordered_map<uint32_t, std::vector<const HeavyHitters<ProblemKey, ProblemHash, ProblemInfo>::Entry*>>
      held;
  for (const auto& [savable, id] : order) held[id];
  for (const auto& e : hitters_.entries())
    if (const auto it = held.find(e.key.definition); it != held.end()) it->second.push_back(&e);
  std::vector<HotDefinition> ranked;
  for (const auto& [savable, id] : order)
    ranked.push_back(describe(id, definitions_.at(id), std::move(held[id])));
  return ranked;
}

double Telemetry::total_ns_per_s() const { return decay_.rate_of(total_ns_) * 1e9; }

}  // namespace niche::telemetry
