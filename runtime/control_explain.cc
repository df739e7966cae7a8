// Control's answers about one problem: explain; and force.
#include <algorithm>
#include <cstdio>

#include "runtime/control.h"
#include "runtime/group.h"
#include "runtime/handle_state.h"

namespace niche::core {

using dispatch::FallbackReason;
using dispatch::RolloutState;
using dispatch::Rung;
using dispatch::Status;

namespace {

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g %%", share * 100);
  return text;
}

std::string fallback_text(const dispatch::Kernel& k) {
  return "fallback:" + std::string(k.op->fallback_name(k.fallback_form));
}

// "M=1..4096, N=8..512 in steps of 8, pointers at 64 bytes".
std::string guard_text(const dispatch::Guard& g, const dispatch::Definition& d) {
  std::string text;
  for (int i = 0; i < g.var_count; ++i) {
    const dispatch::Guard::Range& r = g.var[static_cast<size_t>(i)];
    text += d.schema().axes[static_cast<size_t>(d.var_axes()[static_cast<size_t>(i)])].name + '=' +
            std::to_string(r.lo) + ".." + std::to_string(r.hi);
    if (r.multiple_of != 1) text += " in steps of " + std::to_string(r.multiple_of);
    text += ", ";
  }
  return text + "pointers at " + std::to_string(g.alignment_bytes) + " bytes";
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
  const bool by_choice = core_->config().disable || core_->config().cache_dir.empty();
  const bool reads = core_->config().cache_read_only;
  const bool no_news = reads && !host().lost;  // that it cannot mark
  e.cache = host().cache ? core_->config().cache_dir + " (" + std::to_string(host().cache->entries().size()) +
                               (reads ? " kernels, read only)" : " kernels)") +
                               (host().problem.empty() || no_news ? "" : "; " + host().problem)
                         : (host().nothing_yet ? ""
                            : by_choice        ? "none: "
                                               : "unusable: ") +
                               host().problem;
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
    } else if (route) {
      const bool evolved = route->incumbent() && route->state() != RolloutState::kQuarantined;
      e.kernel = evolved ? route->incumbent()->name : fallback_text(*route->fallback());
      e.rung = rung_name(!evolved ? Rung::kFallback : exact ? Rung::kExact : Rung::kRegion);
      e.why = !evolved ? ""
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
    std::string library_because;
    for (const auto& [id, k] : d->residents)
      e.kernels.push_back(explain_kernel(*d, *k, wide, e, &library_because));
    if (e.why.empty()) e.why = library_because;
    if (e.why.empty())
      e.why = d->residents.empty() ? "no verified kernel of this Definition is in the cache"
                                   : "no verified kernel's Guard holds here";
    for (const Gone& g : d->gone) e.kernels.push_back({g.kernel, g.state, g.reason, 0, 0, "", 0});
    if (host().cache) {
      for (const kernels_cache::Standing& s : host().cache->standings().list())
        if (s.definition == e.definition && s.state >= kernels_cache::StandingState::kHeld)
          e.kernels.push_back({s.kernel, standing_name(s.state), s.reason, 0, 0, "", 0});
    }
    const int64_t now = core_->clock().now_ns();
    // One a device on which it is hot.
    for (uint32_t device = 0; device < shelves_.size(); ++device) {
      const auto on = definitions_.find(place_of(d->known.id, device));
      if (on == definitions_.end()) continue;
      const DefinitionState& there = *on->second;
      if (device != 0 && sessions_.count(there.place()) == 0 && there.tuned_on.why.empty())
        continue;  // it never had one
      e.session += e.session.empty() ? "" : "; ";
      if (device != 0) e.session += device_name(static_cast<int>(device)) + ": ";
      e.session += session_text(there, now);
      if (!there.tuned_on.why.empty()) e.session += ", on " + there.tuned_on.why;
    }
  } else {
    e.why = "no call of this Definition was seen yet";
  }
  if (e.session.empty()) e.session = "none";
  return e;
}

// One known kernel at this problem. Where the library serves although the kernel's Guard holds, `library_because`
// learns why.
ExplainedKernel Control::explain_kernel(const DefinitionState& d, const ResidentKernel& k,
                                        const dispatch::WideProblem& problem, const Explanation& e,
                                        std::string* library_because) const {
  const int axes = static_cast<int>(d.known.definition->var_axes().size());
  ExplainedKernel x;
  x.name = k.ref.kernel;
  x.guard = guard_text(k.kernel->guard, *d.known.definition);
  x.verified_unix_ns = k.verified_unix_ns;
  x.kernel_ns = k.kernel_ns;
  x.fallback_ns = k.fallback_ns;
  if (const auto* point = k.nearest(problem.axes, axes)) {
    x.kernel_ns = point->kernel_ns;
    x.fallback_ns = point->fallback_ns;
  }
  const bool challenger = d.board.challenges(k.id()),
             serving = d.grouped ? d.group_serving.count(k.id()) != 0 : d.board.serves(k.id());
  const FallbackReason refuses = k.kernel->refuses({}, problem.layout, problem.axes);
  const bool answers = serving && e.kernel == x.name;
  const bool may_start = k.proven || shelves_[static_cast<size_t>(d.device)].can_mark;
  if (challenger)
    x.state = d.rollout ? d.rollout->describe() : "challenger";
  else if (serving)
    x.state = answers || refuses != FallbackReason::kNone ? "incumbent" : "incumbent elsewhere";
  else if (d.grouped)
    x.state = "verified, waiting for its group";
  else if (!may_start)
    x.state = core_->config().cache_read_only ? "verified, not in service yet"
                                              : "verified, cannot begin its rollout in this process";
  else
    x.state = "verified, waiting for its rollout";

  if (refuses != FallbackReason::kNone) {
    x.reason = std::string("cannot serve this problem: ") + fallback_reason_name(refuses);
  } else if (serving && !answers && e.rung != rung_name(Rung::kForced)) {
    char gain[32];
    std::snprintf(gain, sizeof gain, "%.2fx", k.gain(problem.axes, axes));
    x.reason =
        e.kernel.starts_with("fallback:")
            ? std::string("counts on ") + gain +
                  " here, by what was measured near by: the library is as fast, or the shape was not seen yet"
            : std::string("counts on ") + gain + " here, by what was measured near by: " + e.kernel +
                  " is better";
    if (library_because->empty()) *library_because = x.name + " serves other problems; " + x.reason;
  } else if (challenger) {
    *library_because = x.name + " is on its way: " + x.state;
  } else if (!serving && !d.grouped) {
    if (!may_start && core_->config().cache_read_only)
      x.reason =
          "this process only reads; a server that may write to the cache, or to a state_dir, begins with its "
          "shadow";
    else if (!may_start)
      x.reason = shelves_[static_cast<size_t>(d.device)].problem +
                 "; a server that may write to the cache begins with its shadow";
    else if (d.rollout)
      x.reason = "after that of " + d.board.challenger()->ref.kernel;
    else
      x.reason = "its shadow begins with the next calls";
    if (library_because->empty())
      *library_because = x.name + " is verified here, but not in service: " + x.reason;
  }
  if (serving && !k.proven) x.reason += (x.reason.empty() ? "" : "; ") + std::string("on probation");
  return x;
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

}  // namespace niche::core
