// KernelCache: opening and reading. kernel_cache_refresh.cc compares it with the directory,
// kernel_cache_write.cc changes the directory.
#include "kernels_cache/kernel_cache.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "kernels_cache/home.h"

namespace niche::kernels_cache {
namespace {

using dispatch::Code;
using dispatch::Result;
using dispatch::Status;

int64_t system_now() {
  timespec t;
  ::clock_gettime(CLOCK_REALTIME, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// What a process without a compiler reads as written by one that had it; a cache that is opened again for it, elsewhere,
// is of the same environment.
std::string compiler_in(const std::string& environment_text) {
  constexpr std::string_view kKey = "\ncompiler: ";
  const size_t at = environment_text.rfind(kKey);
  if (at == std::string::npos) return "";
  const size_t begin = at + kKey.size();
  return environment_text.substr(begin, environment_text.find('\n', begin) - begin);
}

std::optional<Directory> optional_child(const Directory& parent, const char* name, Access access,
                                        Status* failure) {
  auto child = parent.child(name, access);
  if (child.ok()) return std::move(*child);
  if (child.status().code() != Code::kNotFound && failure->ok()) *failure = child.status();
  return std::nullopt;
}

}  // namespace

KernelCache::KernelCache(CacheOptions options, Directory home, std::string environment_text)
    : options_(std::move(options)),
      files_(*options_.files),
      home_(std::move(home)),
      environment_text_(std::move(environment_text)),
      tag_(environment_tag(environment_text_)) {}

Result<std::unique_ptr<KernelCache>> KernelCache::open(CacheOptions options) {
  if (options.files == nullptr) options.files = &posix_files();
  if (!options.now_unix_ns) options.now_unix_ns = system_now;
  const Access access = options.access;
  auto root = Directory::open(*options.files, options.root, access);
  if (!root.ok()) return root.status();
  auto home = open_home(*root, options.environment, access);
  if (!home.ok()) return home.status();
  options.environment.compiler = compiler_in(home->environment_text);

  std::unique_ptr<KernelCache> cache(
      new KernelCache(std::move(options), std::move(home->directory), std::move(home->environment_text)));
  Status failure;
  cache->kernels_ = optional_child(cache->home_, "kernels", access, &failure);
  if (access == Access::kReadWrite) cache->leases_ = optional_child(cache->home_, "leases", access, &failure);

  std::optional<Directory> state = cache->home_;
  Access state_access = access;
  if (access == Access::kReadOnly && !cache->options_.state_root.empty()) {
    state_access = Access::kReadWrite;
    auto state_dir = Directory::open(cache->files_, cache->options_.state_root, state_access);
    if (!state_dir.ok()) return state_dir.status();
    const std::string home_name = cache->home_.path().substr(cache->home_.path().rfind('/') + 1);
    state = optional_child(*state_dir, home_name.c_str(), state_access, &failure);
  }
  std::optional<Directory> standings, probation, shipped;
  if (access == Access::kReadOnly) shipped = optional_child(cache->home_, "standings", access, &failure);
  if (state && state_access == Access::kReadWrite) {
    standings = optional_child(*state, "standings", state_access, &failure);
    probation = optional_child(*state, "probation", state_access, &failure);
  }
  if (!failure.ok()) return failure;
  cache->standings_ = std::make_unique<StandingStore>(std::move(standings), std::move(shipped), cache->tag_);
  // Without the standings a condemned kernel would serve: no cache is better.
  NICHE_RETURN_IF_ERROR(cache->standings_->refresh());
  cache->probation_ = std::make_unique<Probation>(std::move(probation), cache->tag_, cache->options_.boot_id);

  // Hints: a place that cannot be used costs what was remembered, and nothing else.
  Status no_seen;
  std::optional<Directory> seen, shipped_seen;
  if (state && state_access == Access::kReadWrite)
    seen = optional_child(*state, "seen", state_access, &no_seen);
  if (access == Access::kReadOnly) shipped_seen = optional_child(cache->home_, "seen", access, &no_seen);
  cache->seen_ = std::make_unique<SeenStore>(std::move(seen), std::move(shipped_seen), cache->tag_);

  const std::lock_guard lock(cache->mutex_);
  Miss miss;
  if (!no_seen.ok()) cache->note_miss(miss_of(no_seen));
  if (auto index = read_index(cache->home_, cache->tag_, &miss)) {
    cache->merge_index_locked(*index);
    cache->listed_modified_ns_ = index->directory_modified_ns;
    cache->refresh_locked(/*force=*/false);  // what was added or removed since the index was written
    cache->unreported_ = {};
  } else {
    if (miss.reason != MissReason::kAbsent) cache->note_miss(miss);
    cache->refresh_locked(/*force=*/true);
    cache->unreported_ = {};
    ++cache->counters_.index_rebuilt;
  }
  return cache;
}

int64_t KernelCache::now() const { return options_.now_unix_ns(); }

void KernelCache::note_miss(const Miss& miss) {
  ++counters_.misses[static_cast<size_t>(miss.reason)];
  if (options_.log)
    options_.log(std::string("kernels_cache miss (") + miss_reason_name(miss.reason) + "): " + miss.text);
}

void KernelCache::merge_index_locked(const Index& disk) {
  slots_.reserve(disk.entries.size());
  for (const IndexEntry& e : disk.entries) {
    auto [it, fresh] = slots_.try_emplace(e.id, Slot{e, 0});
    if (fresh) {
      bytes_ += e.bytes;
    } else {
      it->second.entry.served_calls = std::max(it->second.entry.served_calls, e.served_calls);
      it->second.entry.flags |= e.flags;
    }
  }
}

std::vector<const KernelCache::Slot*> KernelCache::ordered_locked() const {
  std::vector<const Slot*> order;
  order.reserve(slots_.size());
  for (const auto& [id, slot] : slots_) order.push_back(&slot);
  const auto served = [](const Slot* s) { return s->entry.served_calls + s->served_unflushed; };
  std::sort(order.begin(), order.end(), [&](const Slot* a, const Slot* b) {
    if (served(a) != served(b)) return served(a) > served(b);
    if (a->entry.created_unix_ns != b->entry.created_unix_ns)
      return a->entry.created_unix_ns > b->entry.created_unix_ns;
    return a->entry.id < b->entry.id;
  });
  return order;
}

std::vector<KernelId> KernelCache::hot_set(double share) const {
  const std::lock_guard lock(mutex_);
  const auto order = ordered_locked();
  double total = 0;
  for (const Slot* s : order) total += static_cast<double>(s->entry.served_calls + s->served_unflushed);
  std::vector<KernelId> hot;
  double sum = 0;
  for (const Slot* s : order) {
    const double calls = static_cast<double>(s->entry.served_calls + s->served_unflushed);
    if (calls == 0 || sum >= share * total) break;
    sum += calls;
    if (standings_->state(s->entry.id) < StandingState::kHeld) hot.push_back(s->entry.id);
  }
  return hot;
}

std::vector<KernelId> KernelCache::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<KernelId> ids;
  for (const Slot* s : ordered_locked())
    if (standings_->state(s->entry.id) < StandingState::kHeld) ids.push_back(s->entry.id);
  return ids;
}

std::vector<KernelId> KernelCache::of_definition(uint64_t definition_hash) const {
  const std::lock_guard lock(mutex_);
  std::vector<const IndexEntry*> found;
  for (const auto& [id, slot] : slots_)
    if (slot.entry.definition_hash == definition_hash && standings_->state(id) < StandingState::kHeld)
      found.push_back(&slot.entry);
  std::sort(found.begin(), found.end(), [](const IndexEntry* a, const IndexEntry* b) {
    return a->speedup != b->speedup ? a->speedup > b->speedup : a->id < b->id;
  });
  std::vector<KernelId> ids;
  for (const IndexEntry* e : found) ids.push_back(e->id);
  return ids;
}

std::optional<KernelRecord> KernelCache::load(const KernelId& id, Part part, Miss* miss) {
  const std::lock_guard lock(mutex_);
  Miss local;
  auto record = load_locked(id, part, &local);
  if (!record) note_miss(local);
  if (miss != nullptr) *miss = local;
  return record;
}

std::optional<KernelRecord> KernelCache::load_file(const std::string& file, Part part, Miss* miss) {
  if (const auto id = KernelId::from_file_name(file)) return load(*id, part, miss);
  const std::lock_guard lock(mutex_);
  const Miss foreign{MissReason::kForeign, "'" + file + "' is no entry's file name"};
  note_miss(foreign);
  if (miss != nullptr) *miss = foreign;
  return std::nullopt;
}

std::optional<KernelRecord> KernelCache::load_locked(const KernelId& id, Part part, Miss* miss) {
  const StandingState standing = standings_->state(id);
  if (standing >= StandingState::kHeld) {
    const auto why = standings_->find(id);
    *miss = {standing == StandingState::kHeld ? MissReason::kHeld : MissReason::kQuarantined,
             id.file_name() + " is " + standing_name(standing) + ": " + (why ? why->reason : "")};
    return std::nullopt;
  }
  if (!kernels_) {
    *miss = {MissReason::kAbsent, home_.path() + " has no kernels"};
    return std::nullopt;
  }
  auto record = read_entry(*kernels_, id.file_name(), tag_, part, miss);
  if (record && kernel_id(*record) != id) {
    *miss = {MissReason::kForeign, kernels_->path() + "/" + id.file_name() + ": holds kernel '" +
                                       record->name + "' of '" + record->definition + "', whose file is " +
                                       kernel_id(*record).file_name()};
    record.reset();
  }
  const auto slot = slots_.find(id);
  if (!record) {
    if (miss->reason != MissReason::kIo && slot != slots_.end()) {
      bytes_ -= slot->second.entry.bytes;
      slots_.erase(slot);
    }
    return std::nullopt;
  }
  if (slot != slots_.end() && slot->second.entry.created_unix_ns != record->created_unix_ns) {
    // Another process replaced it: new code under an old name has proven nothing.
    IndexEntry& e = slot->second.entry;
    e.created_unix_ns = record->created_unix_ns;
    e.speedup = index_entry(*record, e.bytes).speedup;
    e.flags = 0;
  }
  if (slot != slots_.end())
    record->served_calls = slot->second.entry.served_calls + slot->second.served_unflushed;
  ++counters_.loaded;
  return record;
}

std::vector<SeenProblem> KernelCache::seen(const std::string& definition) {
  std::vector<Miss> misses;
  auto problems = seen_->read(definition, &misses);
  const std::lock_guard lock(mutex_);
  for (const Miss& m : misses) note_miss(m);
  return problems;
}

Status KernelCache::remember(const std::string& definition, std::vector<SeenProblem> problems) {
  std::vector<Miss> misses;
  const Status merged = seen_->merge(definition, std::move(problems), now(), &misses);
  const std::lock_guard lock(mutex_);
  for (const Miss& m : misses) note_miss(m);
  return merged;
}

void KernelCache::count_served(const KernelId& id, int64_t calls) {
  const std::lock_guard lock(mutex_);
  if (const auto it = slots_.find(id); it != slots_.end() && calls > 0) it->second.served_unflushed += calls;
}

void KernelCache::set_proven(const KernelId& id) {
  const std::lock_guard lock(mutex_);
  if (const auto it = slots_.find(id); it != slots_.end()) it->second.entry.flags |= IndexEntry::kProven;
}

bool KernelCache::proven(const KernelId& id) const {
  const std::lock_guard lock(mutex_);
  const auto it = slots_.find(id);
  return it != slots_.end() && it->second.entry.proven();
}

std::vector<KernelCache::EntryInfo> KernelCache::entries() const {
  const std::lock_guard lock(mutex_);
  std::vector<EntryInfo> infos;
  for (const Slot* s : ordered_locked()) {
    const IndexEntry& e = s->entry;
    infos.push_back({e.id, e.definition_hash, e.bytes, e.served_calls + s->served_unflushed,
                     e.created_unix_ns, e.speedup, e.proven(), standings_->state(e.id)});
  }
  return infos;
}

int64_t KernelCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

CacheCounters KernelCache::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace niche::kernels_cache
