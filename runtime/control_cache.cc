// Control's dealings with kernels_cache: opening, warm start, probation, quarantine, records that others
// commit.
#include <algorithm>

#include "runtime/control.h"
#include "runtime/handle_state.h"
#include "runtime/host_environment.h"

namespace niche::core {

using dispatch::LogLevel;
using dispatch::Status;
using kernels_cache::KernelCache;
using kernels_cache::KernelId;

// A full disk may have room again.
constexpr int64_t kMarkRetryNs = 5'000'000'000;

void Control::open_cache() {
  const RuntimeConfig& config = core_->config();
  if (config.cache_dir.empty()) {
    cache_problem_ = "no cache_dir is configured";
    return;
  }
  const bool writes = !config.cache_read_only;
  auto environment = host_environment(config.libraries, config.op_libraries, writes && config.evolve);
  if (!environment.ok()) {
    cache_problem_ = environment.status().to_string();
    core_->log(LogLevel::kError, "runtime", "cache: " + cache_problem_);
    return;
  }
  if (environment->compiler.empty()) adopt_written_compiler(config.cache_dir, &*environment);
  kernels_cache::CacheOptions options;
  options.root = config.cache_dir;
  options.environment = *environment;
  options.access = writes ? kernels_cache::Access::kReadWrite : kernels_cache::Access::kReadOnly;
  options.state_root = writes ? "" : config.state_dir;
  options.bytes_max = config.cache_bytes_max;
  options.log = [core = core_.get()](const std::string& line) {
    core->log(LogLevel::kWarning, "kernels_cache", line);
  };
  auto cache = KernelCache::open(std::move(options));
  if (!cache.ok()) {
    // A server without its cache serves the library; it does not refuse to start.
    cache_problem_ = cache.status().to_string();
    core_->log(LogLevel::kError, "runtime", "cache '" + config.cache_dir + "': " + cache_problem_);
    return;
  }
  cache_ = *std::move(cache);
  const int64_t now = core_->clock().unix_time_ns();
  startup_ = cache_->probation().startup_scan(cache_->standings(), now);
  if (!startup_.explanation.empty()) core_->log(LogLevel::kWarning, "runtime", startup_.explanation);
  (void)may_mark();
  if (startup_.fallbacks_only) {
    probation_mode_ = true;
    (void)core_->dispatcher().publisher().set_mode(dispatch::SnapshotMode::kProbation);
  }
}

void Control::warm_start(DefinitionState& d) {
  if (!cache_ || probation_mode_) return;
  size_t loaded = 0;
  for (const KernelId& id : cache_->of_definition(d.known.definition->hash())) {
    if (loaded == kWarmKernelsMax) break;
    auto k = load_kernel(d, id);
    if (!k) continue;
    ++loaded;
    // What answered live calls before the restart answers the first one after it; what never did starts with
    // shadow. In a group it takes a proposal.
    if (!d.grouped && (k->served_calls > 0 || k->proven) && put_on_probation(*k))
      d.board.add_serving(k);
    else
      d.waiting.push_back(k);
  }
  if (loaded == 0 || d.grouped) return;
  if (const Status s = d.board.publish(); !s.ok())
    event("publication", d.known.definition->name(), s.to_string(), LogLevel::kWarning);
  event("warm start", d.known.definition->name(),
        std::to_string(d.board.serving().size()) + " of " + std::to_string(loaded) +
            " cached kernels serve at once",
        LogLevel::kInfo);
}

std::shared_ptr<const ResidentKernel> Control::load_kernel(DefinitionState& d, const KernelId& id) {
  if (!d.known_records.insert(id).second) return nullptr;
  kernels_cache::Miss miss;
  const auto record = cache_->load(id, kernels_cache::Part::kRecordAndArtefact, &miss);
  if (!record) {
    note_gone(d, {id.hex(), kernels_cache::miss_reason_name(miss.reason), miss.text});
    if (miss.reason == kernels_cache::MissReason::kHeld) d.known_records.erase(id);  // a commit may clear it
    return nullptr;
  }
  auto kernel = loader_.load(d.known, *record, cache_->proven(id));
  if (!kernel.ok()) {
    ++counters_.refused_kernels;
    note_gone(d, {record->name, "refused", kernel.status().to_string()});
    event("kernel refused", d.known.definition->name(), kernel.status().to_string(), LogLevel::kWarning);
    return nullptr;
  }
  d.residents[(*kernel)->id()] = *kernel;
  std::lock_guard<std::mutex> lock(resolve_mutex_);
  std::erase_if(by_id_, [](const auto& e) { return e.second.expired(); });
  by_id_[(*kernel)->id()] = (*kernel)->kernel;
  return *kernel;
}

bool Control::may_mark() {
  if (can_mark_ || !cache_) return can_mark_;
  const int64_t now = core_->clock().now_ns();
  if (now < mark_again_ns_) return false;
  mark_again_ns_ = now + kMarkRetryNs;
  const Status s = cache_->probation().begin_run(core_->clock().unix_time_ns());
  can_mark_ = s.ok();
  const std::string problem = s.ok() ? "" : "no probation marks: " + s.message();
  if (!s.ok() && problem != cache_problem_)
    core_->log(
        LogLevel::kWarning, "runtime",
        "cache '" + core_->config().cache_dir + "': " + problem + "; no kernel of it can start to serve");
  if (s.ok() && !cache_problem_.empty())
    core_->log(LogLevel::kInfo, "runtime", "cache '" + core_->config().cache_dir + "': can be written again");
  cache_problem_ = problem;
  return can_mark_;
}

bool Control::put_on_probation(const ResidentKernel& k) {
  if (k.proven) return true;
  if (!may_mark()) return false;
  if (cache_->probation().marked(k.ref.id)) return true;
  const Status s = cache_->probation().mark(k.ref, core_->clock().unix_time_ns());
  if (!s.ok())
    event("probation", k.ref.definition, k.ref.kernel + " may not serve: " + s.to_string(), LogLevel::kError);
  return s.ok();
}

void Control::quarantine(DefinitionState& d, const ResidentKernel& k, const std::string& reason) {
  ++counters_.quarantines;
  if (cache_) {
    const Status s = cache_->standings().quarantine(k.ref, reason, core_->clock().unix_time_ns());
    if (!s.ok())
      event("quarantine", d.known.definition->name(),
            k.ref.kernel + " holds in this process alone: " + s.to_string(), LogLevel::kError);
    (void)cache_->probation().clear(k.ref.id);
  }
  event("quarantine", d.known.definition->name(), k.ref.kernel + ": " + reason, LogLevel::kError);
}

// Probation ends after so many calls and so much time as a serving kernel.
void Control::look_after_probation(int64_t now_ns) {
  if (!cache_) return;
  const RuntimeConfig& config = core_->config();
  for (auto& [id, d] : definitions_) {
    for (const auto& k : serving_of(*d)) {
      if (k->proven || !cache_->probation().marked(k->ref.id)) continue;
      const auto since = d->serving_since_ns.try_emplace(k->id(), now_ns).first->second;
      if (static_cast<double>(now_ns - since) < config.probation_seconds * 1e9) continue;
      if (static_cast<int64_t>(calls_of(*d, k->id())) < config.probation_calls) continue;
      cache_->set_proven(k->ref.id);
      if (const Status s = cache_->probation().clear(k->ref.id); s.ok())
        event("probation served", d->known.definition->name(), k->ref.kernel, LogLevel::kInfo);
    }
  }
  if (probation_mode_ && core_->clock().unix_time_ns() >= startup_.fallbacks_only_until_unix_ns) {
    probation_mode_ = false;
    (void)core_->dispatcher().publisher().set_mode(dispatch::SnapshotMode::kServing);
    for (auto& [id, d] : definitions_) warm_start(*d);
    event("probation", "", "fallbacks-only time is over; verified kernels may serve again",
          LogLevel::kWarning);
  }
}

void Control::flush_served() {
  if (!cache_ || core_->config().cache_read_only) return;
  bool any = false;
  for (auto& [id, d] : definitions_) {
    for (const auto& k : serving_of(*d)) {
      const uint64_t calls = calls_of(*d, k->id());
      uint64_t& flushed = d->flushed_calls[k->id()];
      if (calls <= flushed) continue;
      cache_->count_served(k->ref.id, static_cast<int64_t>(calls - flushed));
      flushed = calls;
      any = true;
    }
  }
  if (any) (void)cache_->flush();  // kBusy: another process writes the index; the counts wait in memory
}

// Kernels that other processes committed, and those of our own sessions whose event was lost.
void Control::find_new_records() {
  if (!cache_ || probation_mode_) return;
  (void)cache_->standings().refresh();  // what was known stays; cache_->refresh() counts the failure
  // Another process of this machine may have condemned what serves here.
  for (auto& [id, d] : definitions_) {
    std::vector<uint64_t> condemned;
    for (const auto& [kernel_id, k] : d->residents)
      if (cache_->standings().state(k->ref.id) == kernels_cache::StandingState::kQuarantined)
        condemned.push_back(kernel_id);
    for (uint64_t kernel : condemned)
      roll_back(*d, kernel, "quarantined by another process", core_->clock().now_ns());
  }
  const KernelCache::Changes changes = cache_->refresh();
  if (changes.added.empty() && changes.removed.empty()) return;
  for (auto& [id, d] : definitions_) {
    const std::vector<KernelId> ours = cache_->of_definition(d->known.definition->hash());
    for (const KernelId& added : changes.added) {
      if (std::find(ours.begin(), ours.end(), added) == ours.end()) continue;
      if (auto k = load_kernel(*d, added)) d->waiting.push_back(k);
    }
  }
}

}  // namespace niche::core
