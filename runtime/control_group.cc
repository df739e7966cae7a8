// Control in a group: which kernels of the group's operators serve is proposed, prepared and taken by all its ranks;
// this rank's RouteBoard publishes nothing for them.
//
// Rank 0 proposes one kernel at a time, for the problems that were seen where it promises most. What is taken is
// watched on every rank against the library's figure; who finds it slower, or quarantined, proposes the library in
// its place. Nobody acts alone, so that a kernel which must go serves on for the few steps that an agreement takes.
#include <algorithm>

#include "runtime/control.h"
#include "runtime/group.h"

namespace niche::core {

using dispatch::GroupChange;
using dispatch::LogLevel;
using dispatch::Result;
using dispatch::Status;

namespace {

constexpr double kWorthASwitch = 1.02;
// Less than GroupTable::kProblemsMax, so that several Definitions find room.
constexpr size_t kProblemsAProposal = 128;

// A kernel's name for all ranks: what people call it, and what it is.
std::string wire_name(const kernels_cache::KernelRef& ref) {
  return ref.kernel.substr(0, 200) + "@" + ref.id.hex();
}
std::string_view id_part(std::string_view wire) {
  const size_t at = wire.rfind('@');
  return at == std::string_view::npos ? std::string_view() : wire.substr(at + 1);
}

}  // namespace

Result<std::shared_ptr<Group>> Control::join_group() {
  const RuntimeConfig& config = core_->config();
  if (config.group_ranks == 0) return dispatch::invalid("group: group_ranks is 0: no group is configured");
  if (config.disable) return dispatch::unsupported("group: niche is disabled");
  std::lock_guard<std::mutex> lock(mutex_);
  if (group_) return group_;
  auto joined = Group::join(core_, [this](const GroupChange& c) { return place(c); });
  if (!joined.ok()) return joined.status();
  group_ = *std::move(joined);
  event("group joined", "",
        "rank " + std::to_string(config.group_rank) + " of " + std::to_string(config.group_ranks) +
            " at version " + std::to_string(group_->status().version),
        LogLevel::kInfo);
  return group_;
}

Status Control::offer_to_group(std::shared_ptr<const dispatch::Kernel> kernel) {
  if (core_->config().group_ranks == 0)
    return dispatch::invalid("group: group_ranks is 0: no group is configured");
  if (kernel == nullptr || kernel->launch == nullptr || kernel->definition == nullptr ||
      kernel->is_fallback())
    return dispatch::invalid("group: what is offered is no kernel with a launch and a Definition");
  const std::string &name = kernel->name, &definition = kernel->definition->name();
  if (name.empty() || name.size() > dispatch::GroupTable::kNameBytesMax ||
      name.find('@') != std::string::npos)
    return dispatch::invalid("group: kernel name '" + name + "': 1 to " +
                             std::to_string(dispatch::GroupTable::kNameBytesMax) + " characters without '@'");
  std::lock_guard<std::mutex> lock(mutex_);
  const bool known = std::any_of(definitions_.begin(), definitions_.end(), [&](const auto& entry) {
    return in_group(*entry.second) && entry.second->known.definition->name() == definition;
  });
  if (!known)
    return dispatch::not_found("group: no handle of " + definition + " was made, or group_ops leaves it out");
  if (offered_.size() == kOfferedMax)
    return dispatch::busy("group: " + std::to_string(kOfferedMax) + " kernels were offered");
  if (!offered_.emplace(std::pair(definition, name), std::move(kernel)).second)
    return dispatch::busy("group: kernel '" + name + "' of " + definition + " was offered before");
  return {};
}

// A rank has one device: the first of its list, or the host where it has none.
bool Control::in_group(const DefinitionState& d) const {
  return d.grouped && d.device == (shelves_.size() > 1 && d.known.op->runs_on_device() ? 1 : 0);
}

std::shared_ptr<const ResidentKernel> Control::resident_of(DefinitionState& d, std::string_view wire) {
  for (const auto& [kernel_id, k] : d.residents)
    if (k->ref.id.hex() == id_part(wire)) return k;
  return nullptr;
}

// What is proposed, on this rank. Under the lock: prepare() is called by poll() and by join_group().
Result<dispatch::Publisher::Placement> Control::place(const GroupChange& c) {
  const auto at = std::find_if(definitions_.begin(), definitions_.end(), [&](const auto& entry) {
    return entry.second->known.definition->name() == c.definition && in_group(*entry.second);
  });
  if (at == definitions_.end()) return dispatch::not_found("this rank has no call site of " + c.definition);
  DefinitionState& d = *at->second;
  if (!d.grouped) return dispatch::invalid(c.definition + " is not among this rank's group_ops");
  const auto threads = static_cast<uint32_t>(core_->executor().threads);
  if (c.threads != threads)
    return dispatch::invalid(c.definition + ": proposed for " + std::to_string(c.threads) +
                             " threads, and this rank has " + std::to_string(threads));
  std::shared_ptr<const ResidentKernel> k;
  std::shared_ptr<const dispatch::Kernel> serves;  // null: the library
  if (const auto own = offered_.find({c.definition, c.kernel}); own != offered_.end()) {
    serves = own->second;
  } else if (!c.kernel.empty()) {
    k = resident_of(d, c.kernel);
    if (auto& cache = shelf(d).cache; !k && cache) {
      (void)cache->refresh();
      for (const kernels_cache::KernelId& id : cache->of_definition(d.known.definition->hash()))
        if (id.hex() == id_part(c.kernel)) k = load_kernel(d, id);
    }
    if (!k)
      return dispatch::not_found("kernel '" + c.kernel +
                                 "' is not in this rank's cache, was refused, or was not offered here");
    if (!put_on_probation(shelf(d), *k))
      return dispatch::unsupported("kernel '" + c.kernel +
                                   "' cannot be put on probation: " + shelf(d).problem);
    serves = k->kernel;
  }
  auto& route = d.group_routes[serves ? serves->id : 0];
  if (!route) {
    dispatch::Route::Spec spec;
    spec.definition = d.known.definition;
    spec.fallback = core_->dispatcher().fallback(d.known.id, 0);
    spec.label = serves ? serves->name : spec.fallback->name;
    spec.incumbent = serves;
    spec.state = serves ? dispatch::RolloutState::kIncumbent : dispatch::RolloutState::kFallbackOnly;
    auto made = core_->dispatcher().make_route(std::move(spec));
    if (!made.ok()) return made.status();
    route = *made;
  }
  dispatch::WideProblem problem{
      {d.known.id, c.tenant, static_cast<uint32_t>(d.device), c.threads, c.constraints}, c.layout, {}};
  std::copy(c.axes.begin(), c.axes.end(), problem.axes);
  return dispatch::Publisher::Placement{problem, route};
}

void Control::drive_group(int64_t now_ns) {
  if (!group_) return;
  group_->poll();
  const GroupStatus s = group_->status();
  follow_group(s, now_ns);
  if (!s.fault.empty()) {
    if (!group_fault_told_) event("group fault", "", s.fault, LogLevel::kError);
    group_fault_told_ = true;
    return;
  }
  if (group_trial_.kernel)
    settle_trial(s, now_ns);
  else if (!group_withdrawals_.empty())
    propose_withdrawals(s);
  else if (s.rank == 0)
    propose_next(s, now_ns);
}

// What the version that serves now has changed here.
void Control::follow_group(const GroupStatus& s, int64_t now_ns) {
  if (s.version == group_version_) return;
  group_version_ = s.version;
  for (auto& [id, d] : definitions_) {
    if (!in_group(*d)) continue;
    std::set<uint64_t> serving;
    for (const GroupChange& c : s.serving) {
      if (c.kernel.empty() || c.definition != d->known.definition->name()) continue;
      if (const auto k = resident_of(*d, c.kernel)) serving.insert(k->id());
    }
    const std::set<uint64_t> before = std::exchange(d->group_serving, std::move(serving));
    for (const uint64_t kernel : d->group_serving) {
      if (before.count(kernel) != 0) continue;
      const auto& k = d->residents.at(kernel);
      d->serving_since_ns.try_emplace(kernel, now_ns);
      d->flap.promoted(kernel, now_ns);
      d->watches.erase(kernel);
      std::erase(d->waiting, k);
      ++counters_.swaps;
      event("incumbent", d->known.definition->name(),
            k->ref.kernel + " by group version " + std::to_string(s.version), LogLevel::kInfo);
    }
    for (const uint64_t kernel : before) {
      if (d->group_serving.count(kernel) != 0) continue;
      const auto k = d->residents.find(kernel);
      if (k == d->residents.end()) continue;
      const std::shared_ptr<const ResidentKernel> gone = k->second;
      const auto why = group_withdrawals_.find(kernel);
      const std::string reason =
          why != group_withdrawals_.end() ? why->second : "the group chose another kernel, or the library";
      ++counters_.rollbacks;
      event("rolled back", d->known.definition->name(),
            gone->ref.kernel + " by group version " + std::to_string(s.version) + ": " + reason,
            LogLevel::kWarning);
      d->flap.rolled_back(kernel, rollout::Cause::kWithdrawn, now_ns);
      d->watches.erase(kernel);
      if (why == group_withdrawals_.end()) {
        d->waiting.push_back(gone);  // resident, so that the group can go back to it
      } else {
        group_withdrawals_.erase(why);
        retire(*d, *gone, "withdrawn by the group", reason);
      }
    }
  }
}

// A proposal of this rank: taken, dropped, or still on its way.
void Control::settle_trial(const GroupStatus& s, int64_t now_ns) {
  if (s.version < group_trial_.version && s.dropped == group_trial_.dropped_before) return;
  const GroupTrial trial = std::exchange(group_trial_, {});
  DefinitionState& d = *definitions_.at(trial.definition);
  if (d.group_serving.count(trial.kernel->id()) != 0) return;  // follow_group has told
  event("group declined", d.known.definition->name(),
        trial.kernel->ref.kernel + ": " + (s.last_drop.empty() ? "another rank dropped it" : s.last_drop),
        LogLevel::kWarning);
  // A rank may just have joined, and be able to load it next time: sooner at first, then seldom.
  GroupDecline& decline = group_declines_[trial.kernel->id()];
  decline.not_before_ns = now_ns + (int64_t{1'000'000'000} << std::min(decline.times++, 8));
  if (d.residents.count(trial.kernel->id()) != 0) d.waiting.push_back(trial.kernel);
}

void Control::propose_withdrawals(const GroupStatus& s) {
  std::vector<GroupChange> changes;
  for (auto it = group_withdrawals_.begin(); it != group_withdrawals_.end();) {
    const auto served = changes.size();
    for (const auto& [id, d] : definitions_) {
      if (d->group_serving.count(it->first) == 0) continue;
      const std::string id_text = d->residents.at(it->first)->ref.id.hex();
      for (const GroupChange& c : s.serving) {
        if (id_part(c.kernel) != id_text || c.definition != d->known.definition->name()) continue;
        changes.push_back(c);
        changes.back().kernel.clear();
      }
    }
    it = changes.size() == served ? group_withdrawals_.erase(it) : std::next(it);  // gone already
  }
  if (changes.empty()) return;
  const auto version = group_->propose(changes);
  if (!version.ok() && version.status().code() != dispatch::Code::kBusy)  // busy: the next tick
    event("group", "", "withdrawal: " + version.status().to_string(), LogLevel::kError);
}

double Control::group_gain(DefinitionState& d, const GroupStatus& s, const dispatch::WideProblem& p) {
  const int axes = static_cast<int>(d.known.definition->var_axes().size());
  for (const GroupChange& c : s.serving) {
    if (c.kernel.empty() || c.definition != d.known.definition->name()) continue;
    if (c.layout != p.layout || c.constraints != p.prefix.constraints ||
        !std::equal(c.axes.begin(), c.axes.end(), p.axes))
      continue;
    if (const auto k = resident_of(d, c.kernel)) return k->gain(p.axes, axes);
  }
  return 1;
}

void Control::propose_next(const GroupStatus& s, int64_t now_ns) {
  for (auto& [id, d] : definitions_) {
    if (!in_group(*d) || d->waiting.empty() || !d->due(now_ns)) continue;
    const int axes = static_cast<int>(d->known.definition->var_axes().size());
    std::stable_sort(d->waiting.begin(), d->waiting.end(), [](const auto& a, const auto& b) {
      return a->fallback_ns * b->kernel_ns > b->fallback_ns * a->kernel_ns;
    });
    for (const auto& k : d->waiting) {
      const auto declined = group_declines_.find(k->id());
      if (declined != group_declines_.end() && now_ns < declined->second.not_before_ns) continue;
      if (!d->flap.may_challenge(k->id(), now_ns).allowed || (!k->proven && !may_mark(shelf(*d)))) continue;
      std::vector<GroupChange> changes;
      for (const auto& [p, last_ns] : d->board.seen()) {
        if (changes.size() == kProblemsAProposal) break;
        if (k->kernel->refuses(p.prefix.constraints, p.layout, p.axes) != dispatch::FallbackReason::kNone)
          continue;
        if (!(k->gain(p.axes, axes) > kWorthASwitch * group_gain(*d, s, p))) continue;
        GroupChange c;
        c.definition = d->known.definition->name();
        c.tenant = p.prefix.tenant;
        c.threads = p.prefix.threads;
        c.constraints = p.prefix.constraints;
        c.layout = p.layout;
        std::copy_n(p.axes, dispatch::kMaxVarAxes, c.axes.begin());
        c.kernel = wire_name(k->ref);
        changes.push_back(std::move(c));
      }
      if (changes.empty()) continue;  // no problem was seen yet that it would win
      const auto version = group_->propose(changes);
      if (!version.ok()) {
        if (version.status().code() != dispatch::Code::kBusy)
          event("group", d->known.definition->name(), version.status().to_string(), LogLevel::kWarning);
        return;
      }
      event("group proposed", d->known.definition->name(),
            k->ref.kernel + " for " + std::to_string(changes.size()) + " problems as version " +
                std::to_string(*version),
            LogLevel::kInfo);
      group_trial_ = {id, k, *version, s.dropped};
      std::erase(d->waiting, group_trial_.kernel);
      return;
    }
  }
}

void Control::withdraw_from_group(DefinitionState& d, const ResidentKernel& k, const std::string& reason) {
  if (d.group_serving.count(k.id()) == 0) return;
  if (group_withdrawals_.try_emplace(k.id(), reason).second)
    event("suspect", d.known.definition->name(),
          k.ref.kernel + ": " + reason + "; the group is asked to go back", LogLevel::kWarning);
}

std::vector<std::shared_ptr<const ResidentKernel>> Control::serving_of(const DefinitionState& d) {
  if (!d.grouped) return d.board.serving();
  std::vector<std::shared_ptr<const ResidentKernel>> all;
  for (const uint64_t id : d.group_serving)
    if (const auto k = d.residents.find(id); k != d.residents.end()) all.push_back(k->second);
  return all;
}

uint64_t Control::calls_of(const DefinitionState& d, uint64_t kernel) const {
  if (!d.grouped) return d.board.calls_of(kernel);
  const auto route = d.group_routes.find(kernel);
  if (route == d.group_routes.end() || !route->second) return 0;
  const dispatch::RouteCounts n = core_->dispatcher().counts(*route->second);
  return n.by_rung[static_cast<int>(dispatch::Rung::kExact)];
}

}  // namespace niche::core
