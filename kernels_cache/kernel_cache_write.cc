// KernelCache's writes: commit, eviction, removal, and the index with its counters.
#include <fcntl.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "kernels_cache/kernel_cache.h"

namespace niche::kernels_cache {
namespace {

using dispatch::Code;
using dispatch::Result;
using dispatch::Status;

constexpr const char* kIndexLock = "index.lock";

}  // namespace

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
    if (!cleared.ok() && cleared.code() != Code::kNotFound && options_.log)
      options_.log("kernels_cache: " + record.name + " stays held: " + cleared.to_string());
  }

  IndexEntry e = index_entry(record, size);
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

Status KernelCache::copy(const KernelId& id, KernelCache& from) {
  if (standings_->state(id) >= StandingState::kHeld)
    return dispatch::unsupported(id.file_name() + " is " + standing_name(standings_->state(id)));
  {
    const std::lock_guard lock(mutex_);
    if (slots_.contains(id)) return {};
  }
  Miss miss;
  const auto record = from.load(id, Part::kRecordAndArtefact, &miss);
  if (!record) return dispatch::not_found(miss.text);
  const auto committed = commit(*record);
  if (committed.ok() && from.proven(id)) set_proven(id);
  return committed.status();
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

}  // namespace niche::kernels_cache
