#include "kernels_cache/kernel_cache.h"

#include <fcntl.h>
#include <time.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "dispatch/base/hash.h"

namespace niche::kernels_cache {
namespace {

using dispatch::Code;
using dispatch::Result;
using dispatch::Status;

constexpr const char* kEnvironmentFile = "environment.txt";
constexpr const char* kIndexLock = "index.lock";
constexpr int64_t kEnvironmentBytesMax = 64 << 10;
// A directory changed twice inside one tick of the file system's clock shows one time: a listing this young
// is not trusted to be the last word.
constexpr int64_t kTickNs = 20'000'000;

int64_t system_now() {
  timespec t;
  ::clock_gettime(CLOCK_REALTIME, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

std::string running_half(const std::string& canonical_text) {
  return canonical_text.substr(0, canonical_text.rfind("compiler: "));
}

Result<std::string> read_environment(const Directory& home) {
  auto bytes = home.read(kEnvironmentFile, kEnvironmentBytesMax);
  if (!bytes.ok()) return bytes.status();
  return std::string(bytes->begin(), bytes->end());
}

int64_t index_time(const Directory& home) {
  auto file = home.open_file(kIndexFile);
  return file.ok() ? file->modified_ns : 0;
}

struct Home {
  std::string name, environment_text;
};

// The directory of this environment. A process without a compiler takes, of those with the same running half,
// the one whose index is newest.
Home choose_home(const Directory& root, const Environment& env) {
  Home best{env.directory_name(), env.canonical_text()};
  if (!env.compiler.empty()) return best;
  auto names = root.list();
  if (!names.ok()) return best;
  const std::string wanted = running_half(best.environment_text);
  int64_t best_time = -1;
  for (const std::string& name : *names) {
    if (!name.starts_with(env.running_prefix())) continue;
    auto home = root.child(name, Access::kReadOnly);
    if (!home.ok()) continue;
    auto text = read_environment(*home);
    if (!text.ok() || running_half(*text) != wanted) continue;
    const int64_t t = index_time(*home);
    if (t > best_time) {
      best = {name, std::move(*text)};
      best_time = t;
    }
  }
  return best;
}

std::optional<Directory> optional_child(const Directory& parent, const char* name, Access access,
                                        Status* failure) {
  auto child = parent.child(name, access);
  if (child.ok()) return std::move(*child);
  if (child.status().code() != Code::kNotFound && failure->ok()) *failure = child.status();
  return std::nullopt;
}

IndexEntry entry_of(const KernelRecord& r, int64_t bytes) {
  IndexEntry e;
  e.id = kernel_id(r);
  e.definition_hash = dispatch::hash_bytes(r.definition);
  e.served_calls = r.served_calls;
  e.bytes = bytes;
  e.created_unix_ns = r.created_unix_ns;
  e.speedup = r.kernel_ns > 0 ? static_cast<float>(r.fallback_ns / r.kernel_ns) : 1.0f;
  return e;
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
  Home chosen = choose_home(*root, options.environment);
  auto home = root->child(chosen.name, access);
  if (!home.ok()) return home.status();
  // The text is for people and for processes without a compiler; what makes an entry ours is the tag inside
  // it. So a damaged text is written again, and no reason to lose the cache.
  const auto text = read_environment(*home);
  if (access == Access::kReadWrite && (!text.ok() || *text != chosen.environment_text)) {
    const std::string& t = chosen.environment_text;
    NICHE_RETURN_IF_ERROR(
        home->write_atomic(kEnvironmentFile, {{reinterpret_cast<const uint8_t*>(t.data()), t.size()}}));
  }

  std::unique_ptr<KernelCache> cache(
      new KernelCache(std::move(options), std::move(*home), std::move(chosen.environment_text)));
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

  const std::lock_guard lock(cache->mutex_);
  Miss miss;
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
    e.speedup = entry_of(*record, e.bytes).speedup;
    e.flags = 0;
  }
  if (slot != slots_.end())
    record->served_calls = slot->second.entry.served_calls + slot->second.served_unflushed;
  ++counters_.loaded;
  return record;
}

KernelCache::Changes KernelCache::refresh() {
  const Status standings = standings_->refresh();
  const std::lock_guard lock(mutex_);
  if (!standings.ok()) note_miss({MissReason::kIo, standings.message()});
  refresh_locked(/*force=*/false);
  return std::exchange(unreported_, {});
}

void KernelCache::refresh_locked(bool force) {
  if (!kernels_) return;
  const auto modified = kernels_->modified_ns();
  if (!modified.ok()) return;
  if (!force && *modified == listed_modified_ns_) return;
  auto names = kernels_->list();
  if (!names.ok()) {
    note_miss({MissReason::kIo, names.status().message()});
    return;
  }
  std::unordered_set<KernelId, KernelIdHash> present;
  std::unordered_map<std::string, int64_t> refused;
  bool read_again = false;  // the disk failed for an entry
  for (const std::string& name : *names) {
    const auto id = KernelId::from_file_name(name);
    if (id && slots_.contains(*id)) {
      present.insert(*id);
      continue;
    }
    if (static_cast<int64_t>(slots_.size()) >= options_.entries_max) continue;
    if (const auto entry = read_new_entry(name, id, &refused, &read_again)) {
      bytes_ += entry->bytes;
      slots_.emplace(*id, Slot{*entry, 0});
      present.insert(*id);
      unreported_.added.push_back(*id);
    }
  }
  for (auto it = slots_.begin(); it != slots_.end();) {
    if (present.contains(it->first)) {
      ++it;
      continue;
    }
    unreported_.removed.push_back(it->first);
    bytes_ -= it->second.entry.bytes;
    it = slots_.erase(it);
  }
  refused_ = std::move(refused);
  listed_modified_ns_ = !read_again && now() - *modified > kTickNs ? *modified : 0;
}

std::optional<IndexEntry> KernelCache::read_new_entry(const std::string& name,
                                                      const std::optional<KernelId>& id,
                                                      std::unordered_map<std::string, int64_t>* refused,
                                                      bool* read_again) {
  Miss miss{MissReason::kForeign, kernels_->path() + "/" + name + ": no entry's file name"};
  auto file = kernels_->open_file(name);
  if (!file.ok()) miss = miss_of(file.status());
  const int64_t version = file.ok() ? file->modified_ns : 0;
  const auto known = refused_.find(name);
  if (known != refused_.end() && known->second == version) {
    refused->insert(*known);
    return std::nullopt;
  }
  std::optional<KernelRecord> record;
  if (id && file.ok()) record = read_entry(*kernels_, name, tag_, Part::kRecord, &miss);
  if (record && kernel_id(*record) != *id) {
    miss = {MissReason::kForeign,
            kernels_->path() + "/" + name + ": holds another kernel, '" + record->name + "'"};
    record.reset();
  }
  if (record) return entry_of(*record, file->bytes);
  if (miss.reason == MissReason::kAbsent) return std::nullopt;  // removed since the listing
  if (miss.reason == MissReason::kIo)
    *read_again = true;
  else
    refused->emplace(name, version);
  note_miss(miss);
  return std::nullopt;
}

std::optional<OwnedFd> KernelCache::try_index_lock() {
  auto fd = files_.open(home_.fd(), kIndexLock, O_RDWR | O_CREAT, 0600);
  if (!fd.ok()) return std::nullopt;
  OwnedFd lock(files_, *fd);
  auto locked = files_.try_lock(lock.get());
  if (!locked.ok() || !*locked) return std::nullopt;
  return lock;
}

Result<std::string> KernelCache::commit(const KernelRecord& record) {
  const std::lock_guard lock(mutex_);
  const auto fail = [&](Status s) {
    ++counters_.commit_failed;
    return s;
  };
  if (options_.access == Access::kReadOnly || !kernels_)
    return fail(dispatch::unsupported("the cache at " + home_.path() + " is read-only"));
  auto bytes = encode_entry(record, tag_);
  if (!bytes.ok()) return fail(bytes.status());
  const KernelId id = kernel_id(record);
  if (standings_->state(id) == StandingState::kQuarantined) {
    const auto why = standings_->find(id);
    return fail(
        dispatch::unsupported("kernel '" + record.name + "' is quarantined: " + (why ? why->reason : "")));
  }
  const int64_t size = static_cast<int64_t>(bytes->size());
  if (size > options_.bytes_max)
    return fail(dispatch::unsupported("kernel '" + record.name + "': " + std::to_string(size) +
                                      " bytes, the whole cache may have " +
                                      std::to_string(options_.bytes_max)));
  // Without the lock (another process is writing its index, or was stopped while it did) the entry is written
  // all the same; the bound is then kept by whoever has the lock next.
  if (auto index_lock = try_index_lock()) {
    refresh_locked(/*force=*/false);
    evict_locked(id, size);
  }
  const Status written = kernels_->write_atomic(id.file_name(), {*bytes});
  if (!written.ok()) return fail(written);
  // A new verdict is the re-verification that a held kernel waits for. kNotFound: nothing but another
  // process's scan holds it, and that ends by itself.
  if (standings_->state(id) == StandingState::kHeld) {
    const Status cleared = standings_->clear_hold(kernel_ref(record), now());
    if (!cleared.ok() && cleared.code() != dispatch::Code::kNotFound && options_.log)
      options_.log("kernels_cache: " + record.name + " stays held: " + cleared.to_string());
  }

  IndexEntry e = entry_of(record, size);
  if (const auto it = slots_.find(id); it != slots_.end()) {
    e.served_calls = std::max(e.served_calls, it->second.entry.served_calls);
    bytes_ -= it->second.entry.bytes;
    it->second.entry = e;  // new code under an old name: it is not proven
  } else {
    slots_.emplace(id, Slot{e, 0});
  }
  bytes_ += size;
  refused_.erase(id.file_name());
  ++counters_.committed;
  return id.file_name();
}

void KernelCache::evict_locked(const KernelId& newcomer, int64_t newcomer_bytes) {
  const auto own = slots_.find(newcomer);
  const int64_t replaced = own == slots_.end() ? 0 : own->second.entry.bytes;
  const auto fits = [&] {
    return bytes_ - replaced + newcomer_bytes <= options_.bytes_max &&
           static_cast<int64_t>(slots_.size()) < options_.entries_max + (own == slots_.end() ? 0 : 1);
  };
  if (fits()) return;
  // First to go: condemned ones, then those past their grace by calls served, then the young by age.
  const int64_t young_since = now() - options_.evict_grace_ns;
  struct Victim {
    int rank;
    int64_t served, created, bytes;
    KernelId id;
  };
  std::vector<Victim> victims;
  for (const auto& [id, slot] : slots_) {
    if (id == newcomer) continue;
    const bool condemned = standings_->state(id) == StandingState::kQuarantined;
    const bool young = slot.entry.created_unix_ns > young_since;
    victims.push_back({condemned ? 0
                       : young   ? 2
                                 : 1,
                       young ? 0 : slot.entry.served_calls + slot.served_unflushed,
                       slot.entry.created_unix_ns, slot.entry.bytes, id});
  }
  std::sort(victims.begin(), victims.end(), [](const Victim& a, const Victim& b) {
    return std::tie(a.rank, a.served, a.created, a.id) < std::tie(b.rank, b.served, b.created, b.id);
  });
  for (const Victim& v : victims) {
    if (fits()) break;
    const Status removed = files_.remove(kernels_->fd(), v.id.file_name());
    if (!removed.ok() && removed.code() != Code::kNotFound) continue;
    if (options_.log)
      options_.log("kernels_cache evicts " + v.id.file_name() + ": " + std::to_string(v.served) +
                   " calls served, " + std::to_string(v.bytes) + " bytes, to stay under " +
                   std::to_string(options_.bytes_max));
    bytes_ -= v.bytes;
    slots_.erase(v.id);
    ++counters_.evicted;
  }
}

Status KernelCache::remove(const KernelId& id) {
  const std::lock_guard lock(mutex_);
  if (options_.access == Access::kReadOnly || !kernels_)
    return dispatch::unsupported("the cache at " + home_.path() + " is read-only");
  NICHE_RETURN_IF_ERROR(kernels_->remove(id.file_name()));
  if (const auto it = slots_.find(id); it != slots_.end()) {
    bytes_ -= it->second.entry.bytes;
    slots_.erase(it);
  }
  return {};
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

Status KernelCache::flush() {
  const std::lock_guard lock(mutex_);
  if (options_.access == Access::kReadOnly)
    return dispatch::unsupported("the cache at " + home_.path() + " is read-only");
  auto index_lock = try_index_lock();
  if (!index_lock) return dispatch::busy(home_.path() + ": another process writes the index");
  Miss miss;
  if (auto disk = read_index(home_, tag_, &miss)) {
    for (const IndexEntry& e : disk->entries) {
      const auto it = slots_.find(e.id);
      if (it == slots_.end()) continue;
      it->second.entry.served_calls = std::max(it->second.entry.served_calls, e.served_calls);
      if (e.created_unix_ns == it->second.entry.created_unix_ns) it->second.entry.flags |= e.flags;
    }
  }
  refresh_locked(/*force=*/false);
  if (!std::exchange(swept_, true)) {
    home_.remove_leftovers(now());
    if (kernels_) kernels_->remove_leftovers(now());
  }
  Index index;
  index.directory_modified_ns = listed_modified_ns_;
  for (const auto& [id, slot] : slots_) {
    index.entries.push_back(slot.entry);
    index.entries.back().served_calls += slot.served_unflushed;
  }
  index.sort();
  NICHE_RETURN_IF_ERROR(write_index(home_, tag_, index));
  for (auto& [id, slot] : slots_) {
    slot.entry.served_calls += slot.served_unflushed;
    slot.served_unflushed = 0;
  }
  return {};
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
