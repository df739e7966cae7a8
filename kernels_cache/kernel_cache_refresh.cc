// KernelCache::refresh: what other processes wrote and removed since the last look; place: whether they can.
#include <fcntl.h>

#include <unordered_set>
#include <utility>

#include "kernels_cache/kernel_cache.h"

namespace niche::kernels_cache {
namespace {

using dispatch::Status;

// A directory changed twice inside one tick of the file system's clock shows one time: a listing this young
// is not trusted to be the last word.
constexpr int64_t kTickNs = 20'000'000;

}  // namespace

KernelCache::Changes KernelCache::refresh() {
  const Status standings = standings_->refresh();
  const std::lock_guard lock(mutex_);
  if (!standings.ok()) note_miss({MissReason::kIo, standings.message()});
  refresh_locked(/*force=*/false);
  return std::exchange(unreported_, {});
}

Place KernelCache::place() const {
  const auto look = [this](const Directory& held) {
    auto fd = files_.open(AT_FDCWD, held.path(), O_RDONLY | O_DIRECTORY, 0);
    if (!fd.ok()) return fd.status().code() == dispatch::Code::kNotFound ? Place::kGone : Place::kHere;
    const OwnedFd there(files_, *fd);
    const auto named = files_.stat(there.get()), ours = files_.stat(held.fd());
    if (!named.ok() || !ours.ok()) return Place::kHere;  // the disk fails: nothing is known
    return named->st_dev == ours->st_dev && named->st_ino == ours->st_ino ? Place::kHere : Place::kReplaced;
  };
  const Place home = look(home_);
  return home != Place::kHere || !kernels_ ? home : look(*kernels_);
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
  if (record) return index_entry(*record, file->bytes);
  if (miss.reason == MissReason::kAbsent) return std::nullopt;  // removed since the listing
  if (miss.reason == MissReason::kIo)
    *read_again = true;
  else
    refused->emplace(name, version);
  note_miss(miss);
  return std::nullopt;
}

}  // namespace niche::kernels_cache
