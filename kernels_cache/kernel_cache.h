// KernelCache: verified kernels across restarts, for one environment.
//
//   <root>/<environment>/environment.txt   what the directory's name stands for
//                        index.kx          table of contents, rebuildable
//                        kernels/<id>.kc   one kernel an entry: record and artefact
//                        standings/        held and quarantined kernels
//                        probation/        marks of serving processes
//                        leases/           one lock a Definition
//                        seen/             problems that traffic showed, one file a Definition
//
// Promises: (1) a bad entry (corrupt, truncated, foreign, stale) is a logged, counted miss and nothing else;
// (2) an entry is whole or absent after a crash at any step, and what commit() acknowledged survives a power
// cut; (3) several processes may use one directory at once; (4) bytes_max is kept by evicting the least
// served; (5) a read-only directory needs no compiler, no network and no write.
//
// Thread-safety: safe; one mutex, held over disk work: control plane only, never on a call. No call waits for
// another process: where one holds the index's lock, eviction and counters are left to it or to the next
// time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels_cache/index.h"
#include "kernels_cache/probation.h"
#include "kernels_cache/record_codec.h"
#include "kernels_cache/seen.h"
#include "kernels_cache/standing.h"

namespace niche::kernels_cache {

struct CacheOptions {
  std::string root;
  Environment environment;
  Access access = Access::kReadWrite;
  // Where standings and probation marks go when `root` is read-only (a state directory of the server); empty:
  // nowhere, then a quarantine lasts as long as the process and no kernel can be put on probation.
  std::string state_root;
  int64_t bytes_max = int64_t{2} << 30;
  int64_t entries_max = 100'000;
  int64_t evict_grace_ns = int64_t{3600} * 1'000'000'000;  // younger entries are evicted last
  std::string boot_id = current_boot_id();
  std::function<int64_t()> now_unix_ns;         // default: the system clock
  std::function<void(const std::string&)> log;  // one line a miss or eviction; default: none
  Files* files = nullptr;                       // default: posix_files()
};

// Where the directory stands that a KernelCache holds open.
enum class Place : uint8_t {
  kHere,      // where its path says
  kReplaced,  // its path names another directory now
  kGone,      // its path names nothing: it was renamed or removed
};

struct CacheCounters {
  std::array<uint64_t, kMissReasonCount> misses{};  // by MissReason
  uint64_t loaded = 0;
  uint64_t committed = 0;
  uint64_t commit_failed = 0;
  uint64_t evicted = 0;
  uint64_t index_rebuilt = 0;
};

class KernelCache {
 public:
  // Reads the index, the standings' names and nothing else. With 10,000 entries, open() and the first kernel
  // loaded take 8 to 9 ms (docs/kernels_cache.md).
  // kNotFound: read-only and not there. kUnsupported: the directory is not ours alone. kIo: the disk refuses.
  static dispatch::Result<std::unique_ptr<KernelCache>> open(CacheOptions options);

  // ---- reading
  // Kernels that answered `share` of all evolved calls up to the last flush, most served first; without those
  // held or quarantined.
  std::vector<KernelId> hot_set(double share = 0.99) const;
  // All that may serve, most served first. Those of one Definition by admission speedup, best first.
  std::vector<KernelId> all() const;
  std::vector<KernelId> of_definition(uint64_t definition_hash) const;
  // Nothing is a miss: counted by reason, logged, and explained in `miss` when given.
  std::optional<KernelRecord> load(const KernelId& id, Part part = Part::kRecordAndArtefact,
                                   Miss* miss = nullptr);
  std::optional<KernelRecord> load_file(const std::string& file, Part part = Part::kRecordAndArtefact,
                                        Miss* miss = nullptr);  // as SessionEvent::record_file names it

  // Problems of a Definition (its name) that were remembered here, the one seen last first. A file that cannot be
  // used is a miss, as an entry's.
  std::vector<SeenProblem> seen(const std::string& definition);

  struct Changes {
    std::vector<KernelId> added, removed;
  };
  // Compares with the directory: entries and standings that other processes wrote or removed since. One stat
  // when nothing changed; reads each new entry's record.
  Changes refresh();

  // Everything goes through held descriptors: a directory that is renamed stays readable and writable here, and is
  // read by nobody else any more. Who finds it so opens another KernelCache. Two opens and stats.
  Place place() const;

  // ---- writing
  // Durable when it returns; gives the entry's file name. Requires a verdict of now: a kernel that was held
  // back for re-verification is held no longer. kInvalid: the record; kUnsupported: quarantined or read-only;
  // kIo: the disk (nothing changed).
  dispatch::Result<std::string> commit(const KernelRecord& record);
  dispatch::Status remove(const KernelId& id);
  // Copies a kernel of `from`, a cache of the same environment, unless it is here already or something stands against
  // it. kNotFound: `from` cannot give it any more; else as commit().
  dispatch::Status copy(const KernelId& id, KernelCache& from);
  // Adds to counters in memory; flush() merges them with other processes' into the index.
  void count_served(const KernelId& id, int64_t calls);
  void set_proven(const KernelId& id);  // probation served
  bool proven(const KernelId& id) const;
  // kBusy: another process writes the index; nothing is lost, call again later.
  dispatch::Status flush();
  // Adds to what seen() gives; durable when it returns. As SeenStore::merge. kUnsupported: nowhere to write.
  dispatch::Status remember(const std::string& definition, std::vector<SeenProblem> problems);

  struct EntryInfo {
    KernelId id;
    uint64_t definition_hash = 0;
    int64_t bytes = 0, served_calls = 0, created_unix_ns = 0;
    double speedup = 1;
    bool proven = false;
    StandingState standing = StandingState::kClear;
  };
  std::vector<EntryInfo> entries() const;  // most served first
  int64_t bytes() const;
  CacheCounters counters() const;

  StandingStore& standings() { return *standings_; }
  Probation& probation() { return *probation_; }
  const std::optional<Directory>& leases() const { return leases_; }  // absent when read-only
  const Directory& home() const { return home_; }
  const std::optional<Directory>& kernels() const { return kernels_; }
  const EnvironmentTag& tag() const { return tag_; }
  const std::string& environment_text() const { return environment_text_; }
  // As given, with the compiler of the directory that was chosen.
  const CacheOptions& options() const { return options_; }

 private:
  struct Slot {
    IndexEntry entry;
    int64_t served_unflushed = 0;
  };
  KernelCache(CacheOptions options, Directory home, std::string environment_text);

  int64_t now() const;
  void note_miss(const Miss& miss);
  std::optional<KernelRecord> load_locked(const KernelId& id, Part part, Miss* miss);
  void refresh_locked(bool force);
  std::optional<IndexEntry> read_new_entry(const std::string& name, const std::optional<KernelId>& id,
                                           std::unordered_map<std::string, int64_t>* refused,
                                           bool* read_again);
  void merge_index_locked(const Index& disk);
  void evict_locked(const KernelId& newcomer, int64_t newcomer_bytes);
  std::vector<const Slot*> ordered_locked() const;
  std::optional<OwnedFd> try_index_lock();

  const CacheOptions options_;
  Files& files_;
  const Directory home_;
  const std::string environment_text_;
  const EnvironmentTag tag_;
  std::optional<Directory> kernels_, leases_;
  std::unique_ptr<StandingStore> standings_;
  std::unique_ptr<Probation> probation_;
  std::unique_ptr<SeenStore> seen_;

  mutable std::mutex mutex_;
  std::unordered_map<KernelId, Slot, KernelIdHash> slots_;
  // Files that were a miss, by time: not read again until changed.
  std::unordered_map<std::string, int64_t> refused_;
  Changes unreported_;              // found while committing or flushing; for the next refresh()
  int64_t listed_modified_ns_ = 0;  // the kernels directory's time at the last listing; 0: list again
  int64_t bytes_ = 0;
  bool swept_ = false;  // leftovers of writers that died
  CacheCounters counters_;
};

}  // namespace niche::kernels_cache
