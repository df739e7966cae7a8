// Control's view of traffic: records of the hot path, findings of the background thread, bindings.
#include <algorithm>

#include "runtime/control.h"
#include "runtime/handle_state.h"

namespace niche::core {

using dispatch::EventRecord;
using dispatch::LogLevel;
using dispatch::Rung;
using dispatch::Status;

void Control::drain(int64_t now_ns) {
  const double ns_per_tick = core_->cycle_clock().ns_per_cycle();
  samples_.clear();
  // Device times first: they are of calls of requests whose end may come next.
  // A wide key does not tell its device: such calls are not taken for the host's.
  core_->device_times().harvest([&](const EventRecord& e, double ns) {
    if (!e.key.wide()) take_record(e, ns, now_ns);
  });
  core_->dispatcher().drain([&](const EventRecord& e) {
    if (e.kind == EventRecord::Kind::kRequest) {
      const double took_ns = static_cast<double>(e.ticks) * ns_per_tick;
      latency_.add(took_ns);
      for (const auto& gate : permits_) gate->request_took(took_ns, latency_.quiet_p99_ns());
      for (auto& [id, d] : definitions_)
        if (d->rollout) d->rollout->close_request(e.request_id, now_ns);
      return;
    }
    take_record(e, static_cast<double>(e.ticks) * ns_per_tick, now_ns);
  });
  telemetry_.add(samples_, now_ns);
  busy_.advance(now_ns);
}

void Control::take_record(const EventRecord& e, double ns, int64_t now_ns) {
  const uint32_t place = place_of(e.key.definition(), e.key.wide() ? 0 : e.key.device());
  const auto at = definitions_.find(place);
  if (at == definitions_.end()) return;  // its handle is being made: the next tick sees it
  DefinitionState& d = *at->second;
  if (!e.key.wide()) {
    const dispatch::WideProblem problem = e.key.decode();
    if (d.board.see(problem, now_ns)) {
      d.dirty = true;
      ask_for_form(d, problem);
    }
  }
  if (e.kind != EventRecord::Kind::kTiming) return;
  if (d.rollout) d.rollout->add_timing(e, ns, now_ns);
  if (e.rung == Rung::kExact || e.rung == Rung::kRegion) watch_incumbent(d, e, ns, now_ns);
  // Both arms of a canary are timed on each call, every other call one time in N.
  const bool each = e.rung == Rung::kCanary || e.rung == Rung::kControl;
  telemetry::Sample s;
  s.definition = place;
  s.site = s.definition;
  std::copy(std::begin(e.axes), std::end(e.axes), s.axes.begin());
  s.rung = e.rung;
  s.reason = e.reason;
  s.calls = each ? 1 : static_cast<int64_t>(core_->config().time_one_in);
  s.ns = ns * static_cast<double>(s.calls);
  s.bytes = call_bytes(d, e.axes) * static_cast<double>(s.calls);
  samples_.push_back(s);
  if (d.device != 0) busy_.add(d.device, s.ns);
}

double Control::call_bytes(const DefinitionState& d, const int64_t* var_axes) const {
  dispatch::Problem p;
  return make_problem(d.known, var_axes, &p) ? d.known.op->cost(p).bytes : 0;
}

bool Control::make_problem(const RuntimeCore::Known& known, const int64_t* var_axes, dispatch::Problem* p) {
  p->definition = known.definition;
  const auto extents = known.definition->const_extents();
  std::copy(extents.begin(), extents.end(), p->axes.begin());
  const auto vars = known.definition->var_axes();
  for (size_t i = 0; i < vars.size(); ++i) p->axes[static_cast<size_t>(vars[i])] = var_axes[i];
  return known.op->derive_axes(*known.definition, std::span<int64_t>(p->axes.data(), extents.size())).ok();
}

// The first problem of a class has its library forms measured, once.
void Control::ask_for_form(DefinitionState& d, const dispatch::WideProblem& problem) {
  // On a device a session measures the forms: its records name the best one (load_kernel).
  // In a group nobody's measurement decides: the first form answers on every rank.
  if (d.device != 0 || in_group(d) || d.known.op->fallback_count() < 2) return;
  const int axes = static_cast<int>(d.known.definition->var_axes().size());
  const uint64_t c = form_class(problem.axes, axes);
  FormJob job{d.known.id, c, {}, d.known.op};
  if (d.form_classes.count(c) != 0 || !make_problem(d.known, problem.axes, &job.problem)) return;
  std::lock_guard<std::mutex> lock(background_mutex_);
  if (form_jobs_.size() == kFormJobsMax) return;  // asked again with the class's next new problem
  d.form_classes.insert(c);
  form_jobs_.push_back(std::move(job));
}

void Control::take_findings(int64_t now_ns) {
  std::vector<ShadowFinding> shadows;
  std::vector<FormFinding> forms;
  {
    std::lock_guard<std::mutex> lock(background_mutex_);
    shadows.swap(findings_);
    forms.swap(form_findings_);
  }
  for (const FormFinding& f : forms) {
    const auto at = definitions_.find(f.definition);
    if (at == definitions_.end() || f.form == 0) continue;
    DefinitionState& d = *at->second;
    if (auto form = core_->dispatcher().fallback(f.definition, f.form)) {
      d.board.set_form(f.form_class, form);
      d.dirty = true;
    }
  }
  for (const ShadowFinding& f : shadows) {
    switch (f.kind) {
      case ShadowFinding::Kind::kSkipped:
        ++counters_.shadow_skipped;
        continue;
      case ShadowFinding::Kind::kMatched:
        ++counters_.shadow_matched;
        break;
      case ShadowFinding::Kind::kMismatched:
        ++counters_.shadow_mismatched;
        break;
    }
    for (auto& [id, d] : definitions_) {
      if (d->residents.find(f.kernel) == d->residents.end()) continue;
      const bool challenger = d->board.challenges(f.kernel);
      if (f.kind == ShadowFinding::Kind::kMismatched)
        roll_back(*d, f.kernel, "wrong answer on live traffic: " + f.reason, now_ns);
      else if (challenger && d->rollout)
        d->rollout->add_match();
      break;
    }
  }
}

void Control::check_bindings() {
  for (const auto& handle : core_->handles()) {
    const std::string found = handle->bindings().check();
    if (found.empty()) continue;
    ++counters_.stale_bindings;
    event("stale binding", handle->definition()->name(), found, LogLevel::kError);
  }
}

void Control::publish_dirty() {
  for (auto& [id, d] : definitions_) {
    if (!d->dirty || d->grouped) continue;
    const Status s = d->board.publish();
    d->dirty = d->board.unpublished();
    if (s.ok()) {
      d->publish_failure.clear();
    } else if (s.code() == dispatch::Code::kBusy) {
      ++counters_.publish_waits;
    } else if (d->publish_failure != s.to_string()) {  // told once, tried again every tick
      d->publish_failure = s.to_string();
      event("publication", d->known.definition->name(), d->publish_failure, LogLevel::kWarning);
    }
  }
}

}  // namespace niche::core
