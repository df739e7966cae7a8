// Control's dealings with kernels_cache: opening, warm start, probation, quarantine, records that others
// commit.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "runtime/control.h"
#include "runtime/device_plane.h"
#include "runtime/handle_state.h"
#include "runtime/host_environment.h"

namespace niche::core {

using dispatch::LogLevel;
using dispatch::Status;
using kernels_cache::KernelCache;
using kernels_cache::KernelId;

// A full disk may have room again.
constexpr int64_t kMarkRetryNs = 5'000'000'000;

void Control::open_caches() {
  const auto& devices = core_->config().devices;
  shelves_.resize(1 + static_cast<size_t>(devices != nullptr ? devices->count() : 0));
  for (int device = 0; device < static_cast<int>(shelves_.size()); ++device) open_cache(device);
}

void Control::open_cache(int device) {
  const RuntimeConfig& config = core_->config();
  Shelf& shelf = shelves_[static_cast<size_t>(device)];
  if (config.cache_dir.empty()) {
    shelf.problem = "no cache_dir is configured";
    return;
  }
  const bool writes = !config.cache_read_only;
  const bool compiler = writes && config.evolve;
  auto environment =
      device == 0 ? host_environment(config.libraries, config.op_libraries, compiler)
                  : config.devices->environment(device - 1, config.libraries, config.op_libraries, compiler);
  if (!environment.ok()) {
    shelf.problem = environment.status().to_string();
    tell_unusable(shelf.problem);
    return;
  }
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
    std::error_code ignored;
    shelf.nothing_yet = cache.status().code() == dispatch::Code::kNotFound &&
                        std::filesystem::is_directory(config.cache_dir, ignored);
    shelf.problem = shelf.nothing_yet ? cache.status().message() : cache.status().to_string();
    tell_unusable(shelf.problem);
    return;
  }
  shelf.cache = *std::move(cache);
  const int64_t now = core_->clock().unix_time_ns();
  shelf.startup = shelf.cache->probation().startup_scan(shelf.cache->standings(), now);
  if (!shelf.startup.explanation.empty())
    core_->log(LogLevel::kWarning, "runtime", shelf.startup.explanation);
  (void)may_mark(shelf);
  if (shelf.startup.fallbacks_only) {
    shelf.probation_mode = true;
    // A device's kernels are held back by not loading them; the host goes on.
    if (device == 0) (void)core_->dispatcher().publisher().set_mode(dispatch::SnapshotMode::kProbation);
  }
}

void Control::tell_unusable(const std::string& problem) {
  const std::string text = "cache '" + core_->config().cache_dir + "': " + problem;
  core_->log(LogLevel::kError, "runtime", text);
  // The one thing that niche says uninvited: a server that was given a cache and no log would never know.
  if (!core_->config().log && !std::exchange(told_unusable_, true))
    std::fprintf(stderr, "niche: %s (the library serves; Runtime::status and metrics say so too)\n",
                 text.c_str());
}

void Control::look_after_cache_place(Shelf& s) {
  if (!s.cache) return;
  const kernels_cache::Place place = s.cache->place();
  if (place == kernels_cache::Place::kHere) {
    if (std::exchange(s.lost, false)) {
      s.problem.clear();
      event("cache found", "", s.cache->home().path() + " is there again", LogLevel::kWarning);
    }
    return;
  }
  const std::string what =
      s.cache->home().path() + (place == kernels_cache::Place::kGone ? " was renamed or removed"
                                                                     : " was replaced by another directory");
  if (!std::exchange(s.lost, true)) {
    ++counters_.cache_moves;
    event("cache lost", "", what + "; what serves goes on from memory", LogLevel::kError);
    for (const auto& [place, session] : sessions_)  // their kernels would go where nobody looks
      if (&shelf(*definitions_.at(place)) == &s) session->stop();
  }
  auto cache = KernelCache::open(s.cache->options());
  if (!cache.ok()) {
    s.problem = what + ", and no other can be opened: " + cache.status().to_string();
    return;
  }
  s.lost = false;
  move_to(s, *std::move(cache));
}

// What stands against kernels, what is on probation and what serves moves along; a removed directory gives no
// artefacts, so that its kernels serve from memory until this process ends.
void Control::move_to(Shelf& s, std::unique_ptr<KernelCache> cache) {
  const std::unique_ptr<KernelCache> old = std::exchange(s.cache, std::move(cache));
  if (s.can_mark) (void)old->probation().end_run();
  s.can_mark = false;
  s.mark_again_ns = 0;
  s.problem.clear();
  const kernels_cache::CacheCounters counted = old->counters();
  for (size_t i = 0; i < counted.misses.size(); ++i) s.earlier.misses[i] += counted.misses[i];
  // Marks of processes that died while they used this directory. It was not us: no fallbacks alone.
  const auto found = s.cache->probation().startup_scan(s.cache->standings(), core_->clock().unix_time_ns());
  if (!found.held.empty()) core_->log(LogLevel::kWarning, "runtime", found.explanation);
  if (const Status adopted = s.cache->standings().adopt(old->standings()); !adopted.ok())
    core_->log(LogLevel::kWarning, "runtime",
               "quarantines hold in this process alone: " + adopted.to_string());
  int copied = 0, left = 0;
  for (auto& [id, d] : definitions_) {
    if (&shelf(*d) != &s) continue;
    d->known_records.clear();
    d->flushed_calls.clear();
    d->remembered = DefinitionState::kNothing;
    d->remember_at_ns = 0;
    for (const auto& [kernel_id, k] : d->residents) {
      d->known_records.insert(k->ref.id);
      const bool answers = d->board.serves(kernel_id) || d->board.challenges(kernel_id);
      if (!core_->config().cache_read_only) (s.cache->copy(k->ref.id, *old).ok() ? copied : left) += 1;
      if (answers) (void)put_on_probation(s, *k);
    }
    for (const KernelId& other : s.cache->of_definition(d->known.definition->hash()))
      if (auto k = load_kernel(*d, other)) d->waiting.push_back(k);
  }
  event("cache moved", "",
        s.cache->home().path() + " is open again: " + std::to_string(copied) + " kernels are in it, " +
            std::to_string(left) + " live in memory alone",
        LogLevel::kWarning);
}

void Control::warm_start(DefinitionState& d) {
  Shelf& shelf = this->shelf(d);
  if (!shelf.cache || shelf.probation_mode) return;
  size_t loaded = 0;
  for (const KernelId& id : shelf.cache->of_definition(d.known.definition->hash())) {
    if (loaded == kWarmKernelsMax) break;
    auto k = load_kernel(d, id);
    if (!k) continue;
    ++loaded;
    // What answered live calls before the restart answers the first one after it; what never did starts with
    // shadow. In a group it takes a proposal.
    if (!d.grouped && (k->served_calls > 0 || k->proven) && put_on_probation(shelf, *k))
      d.board.add_serving(k);
    else
      d.waiting.push_back(k);
  }
  if (d.grouped) return;
  recall_problems(d);
  d.dirty = d.board.unpublished();
  if (loaded == 0) return;
  if (const Status s = d.board.publish(); !s.ok())
    event("publication", d.known.definition->name(), s.to_string(), LogLevel::kWarning);
  d.dirty = d.board.unpublished();
  event("warm start", d.known.definition->name(),
        std::to_string(d.board.serving().size()) + " of " + std::to_string(loaded) +
            " cached kernels serve at once; " + std::to_string(d.board.problems()) +
            " problems were seen before",
        LogLevel::kInfo);
}

void Control::recall_problems(DefinitionState& d) {
  const int64_t now = core_->clock().now_ns(), unix_now = core_->clock().unix_time_ns();
  for (const kernels_cache::SeenProblem& s : shelf(d).cache->seen(d.known.definition->name())) {
    dispatch::WideProblem p{d.board.prefix(), dispatch::LayoutClass::from_bits(s.layout), {}};
    p.prefix.constraints = dispatch::ConstraintSet::from_bits(static_cast<uint8_t>(s.constraints));
    std::copy(std::begin(s.axes), std::end(s.axes), std::begin(p.axes));
    dispatch::Problem derived;
    if (pack_key(p).wide() || !make_problem(d.known, p.axes, &derived))
      continue;  // of another niche's operator
    d.board.recall(p, now - std::max<int64_t>(0, unix_now - s.last_unix_ns));
  }
}

// One Definition a tick: a merge is a durable write, under the lock.
void Control::remember_problems(int64_t now_ns) {
  for (auto& [id, d] : definitions_) {
    if (now_ns < d->remember_at_ns || d->remembered == d->board.sightings()) continue;
    const Status s = remember_problems(*d, now_ns);
    if (s.code() == dispatch::Code::kUnsupported) continue;
    d->remember_at_ns = now_ns + d->remember_gap_ns;
    if (s.code() == dispatch::Code::kBusy) return;  // another process's turn
    d->remember_gap_ns = std::min(2 * d->remember_gap_ns, kRememberGapMaxNs);
    if (const std::string told = std::exchange(d->remember_failure, s.ok() ? "" : s.to_string());
        !s.ok() && told != d->remember_failure)
      event("not remembered", d->known.definition->name(), d->remember_failure, LogLevel::kWarning);
    return;
  }
}

// kUnsupported: not to be remembered.
Status Control::remember_problems(DefinitionState& d, int64_t now_ns) {
  kernels_cache::KernelCache* const cache = shelf(d).cache.get();
  // Without kernels the library answers all of them anyway. In a group the table is the group's.
  const bool writes = !core_->config().cache_read_only || !core_->config().state_dir.empty();
  if (cache == nullptr || !writes || d.grouped || d.residents.empty())
    return dispatch::unsupported("nothing to remember");
  const uint64_t sightings = d.board.sightings();
  const int64_t unix_now = core_->clock().unix_time_ns();
  std::vector<kernels_cache::SeenProblem> problems;
  for (const auto& [p, last_ns] : d.board.seen()) {
    dispatch::KeyPrefix prefix = p.prefix;
    prefix.constraints = d.board.prefix().constraints;
    if (!(prefix == d.board.prefix())) continue;
    kernels_cache::SeenProblem s;
    std::copy(std::begin(p.axes), std::end(p.axes), std::begin(s.axes));
    s.layout = p.layout.bits();
    s.constraints = p.prefix.constraints.bits();
    s.last_unix_ns = std::max<int64_t>(0, unix_now - (now_ns - last_ns));
    problems.push_back(s);
  }
  const Status merged = cache->remember(d.known.definition->name(), std::move(problems));
  if (merged.ok()) d.remembered = sightings;
  return merged;
}

// Where another process of the cache ends at this moment, it has the lock, and what this one first saw since its last merge
// is lost: a hint, which is not worth waiting for at the end.
void Control::remember_all_problems() {
  const int64_t now = core_->clock().now_ns();
  for (auto& [id, d] : definitions_)
    if (d->remembered != d->board.sightings()) (void)remember_problems(*d, now);
}

std::shared_ptr<const ResidentKernel> Control::load_kernel(DefinitionState& d, const KernelId& id) {
  if (!d.known_records.insert(id).second) return nullptr;
  kernels_cache::Miss miss;
  kernels_cache::KernelCache& cache = *shelf(d).cache;
  const auto record = cache.load(id, kernels_cache::Part::kRecordAndArtefact, &miss);
  if (!record) {
    note_gone(d, {id.hex(), kernels_cache::miss_reason_name(miss.reason), miss.text});
    if (miss.reason == kernels_cache::MissReason::kHeld) d.known_records.erase(id);  // a commit may clear it
    return nullptr;
  }
  auto kernel = loader_.load(d.known, *record, cache.proven(id), d.device);
  if (!kernel.ok()) {
    ++counters_.refused_kernels;
    note_gone(d, {record->name, "refused", kernel.status().to_string()});
    event("kernel refused", d.known.definition->name(), kernel.status().to_string(), LogLevel::kWarning);
    return nullptr;
  }
  if (d.device != 0) learn_form(d, **kernel);
  d.residents[(*kernel)->id()] = *kernel;
  if ((*kernel)->ref.kernel == forced_) force_due_ns_ = 1;  // at the next tick
  std::lock_guard<std::mutex> lock(resolve_mutex_);
  std::erase_if(by_id_, [](const auto& e) { return e.second.expired(); });
  by_id_[(*kernel)->id()] = (*kernel)->kernel;
  return *kernel;
}

// The library form that the judge found best at each point that it timed.
void Control::learn_form(DefinitionState& d, const ResidentKernel& k) {
  const int axes = static_cast<int>(d.known.definition->var_axes().size());
  for (const evolve::PointTiming& t : k.timing)
    for (int form = 0; form < d.known.op->fallback_count(); ++form)
      if (d.known.op->fallback_name(form) == t.fallback && t.var_axes.size() == static_cast<size_t>(axes))
        if (auto kernel = core_->dispatcher().fallback(d.known.id, form)) {
          d.board.set_form(form_class(t.var_axes.data(), axes), kernel);
          d.dirty = true;
        }
}

bool Control::may_mark(Shelf& shelf) {
  if (shelf.can_mark || !shelf.cache) return shelf.can_mark;
  const int64_t now = core_->clock().now_ns();
  if (now < shelf.mark_again_ns) return false;
  shelf.mark_again_ns = now + kMarkRetryNs;
  const Status s = shelf.cache->probation().begin_run(core_->clock().unix_time_ns());
  shelf.can_mark = s.ok();
  const std::string problem = s.ok() ? "" : "no probation marks: " + s.message();
  if (const std::string what = problem + "; no kernel of it can start to serve";
      !s.ok() && problem != shelf.problem) {
    if (core_->config().cache_read_only)  // as it was asked for
      core_->log(LogLevel::kWarning, "runtime", "cache '" + core_->config().cache_dir + "': " + what);
    else
      tell_unusable(what);
  }
  if (s.ok() && !shelf.problem.empty())
    core_->log(LogLevel::kInfo, "runtime", "cache '" + core_->config().cache_dir + "': can be written again");
  shelf.problem = problem;
  return shelf.can_mark;
}

bool Control::put_on_probation(Shelf& shelf, const ResidentKernel& k) {
  if (k.proven) return true;
  if (!may_mark(shelf)) return false;
  if (shelf.cache->probation().marked(k.ref.id)) return true;
  const Status s = shelf.cache->probation().mark(k.ref, core_->clock().unix_time_ns());
  if (!s.ok())
    event("probation", k.ref.definition, k.ref.kernel + " may not serve: " + s.to_string(), LogLevel::kError);
  return s.ok();
}

void Control::quarantine(DefinitionState& d, const ResidentKernel& k, const std::string& reason) {
  ++counters_.quarantines;
  if (auto& cache = shelf(d).cache) {
    const Status s = cache->standings().quarantine(k.ref, reason, core_->clock().unix_time_ns());
    if (!s.ok())
      event("quarantine", d.known.definition->name(),
            k.ref.kernel + " holds in this process alone: " + s.to_string(), LogLevel::kError);
    (void)cache->probation().clear(k.ref.id);
  }
  event("quarantine", d.known.definition->name(), k.ref.kernel + ": " + reason, LogLevel::kError);
}

// Probation ends after so many calls and so much time as a serving kernel.
void Control::look_after_probation(int64_t now_ns) {
  const RuntimeConfig& config = core_->config();
  for (auto& [id, d] : definitions_) {
    kernels_cache::KernelCache* const cache = shelf(*d).cache.get();
    if (cache == nullptr) continue;
    for (const auto& k : serving_of(*d)) {
      if (k->proven || !cache->probation().marked(k->ref.id)) continue;
      const auto since = d->serving_since_ns.try_emplace(k->id(), now_ns).first->second;
      if (static_cast<double>(now_ns - since) < config.probation_seconds * 1e9) continue;
      if (static_cast<int64_t>(calls_of(*d, k->id())) < config.probation_calls) continue;
      cache->set_proven(k->ref.id);
      if (const Status s = cache->probation().clear(k->ref.id); s.ok())
        event("probation served", d->known.definition->name(), k->ref.kernel, LogLevel::kInfo);
    }
  }
  end_probation_mode();
}

void Control::end_probation_mode() {
  for (Shelf& s : shelves_) {
    if (!s.probation_mode || core_->clock().unix_time_ns() < s.startup.fallbacks_only_until_unix_ns) continue;
    s.probation_mode = false;
    if (&s == &shelves_[0]) (void)core_->dispatcher().publisher().set_mode(dispatch::SnapshotMode::kServing);
    for (auto& [id, d] : definitions_)
      if (&shelf(*d) == &s) warm_start(*d);
    event("probation", "", "fallbacks-only time is over; verified kernels may serve again",
          LogLevel::kWarning);
  }
}

void Control::flush_served() {
  if (core_->config().cache_read_only) return;
  std::vector<bool> any(shelves_.size(), false);
  for (auto& [id, d] : definitions_) {
    kernels_cache::KernelCache* const cache = shelf(*d).cache.get();
    if (cache == nullptr) continue;
    for (const auto& k : serving_of(*d)) {
      const uint64_t calls = calls_of(*d, k->id());
      uint64_t& flushed = d->flushed_calls[k->id()];
      if (calls <= flushed) continue;
      cache->count_served(k->ref.id, static_cast<int64_t>(calls - flushed));
      flushed = calls;
      any[static_cast<size_t>(d->device)] = true;
    }
  }
  for (size_t i = 0; i < shelves_.size(); ++i)
    if (any[i]) (void)shelves_[i].cache->flush();  // kBusy: another process writes the index; the counts wait
}

// Kernels that other processes committed, and those of our own sessions whose event was lost.
void Control::find_new_records() {
  for (Shelf& s : shelves_)
    if (s.cache && !s.probation_mode) find_new_records(s);
}

void Control::find_new_records(Shelf& s) {
  (void)s.cache->standings().refresh();  // what was known stays; cache->refresh() counts the failure
  // Another process of this machine may have condemned what serves here.
  for (auto& [id, d] : definitions_) {
    if (&shelf(*d) != &s) continue;
    std::vector<uint64_t> condemned;
    for (const auto& [kernel_id, k] : d->residents)
      if (s.cache->standings().state(k->ref.id) == kernels_cache::StandingState::kQuarantined)
        condemned.push_back(kernel_id);
    for (uint64_t kernel : condemned)
      roll_back(*d, kernel, "quarantined by another process", core_->clock().now_ns());
  }
  const KernelCache::Changes changes = s.cache->refresh();
  if (changes.added.empty() && changes.removed.empty()) return;
  for (auto& [id, d] : definitions_) {
    if (&shelf(*d) != &s) continue;
    const std::vector<KernelId> ours = s.cache->of_definition(d->known.definition->hash());
    for (const KernelId& added : changes.added) {
      if (std::find(ours.begin(), ours.end(), added) == ours.end()) continue;
      if (auto k = load_kernel(*d, added)) d->waiting.push_back(k);
    }
  }
}

}  // namespace niche::core
