// What `niche cache verify|export|import|prune` do. (`list` is KernelCache::entries with load(id,
// Part::kRecord).)
//
// Thread-safety: as KernelCache. Cost: reads every entry; background or command line.
#pragma once

#include <string>
#include <vector>

#include "kernels_cache/kernel_cache.h"
#include "kernels_cache/lease.h"

namespace niche::kernels_cache {

struct VerifyReport {
  struct Bad {
    std::string file;
    MissReason reason;
    std::string text;
  };
  int good = 0;
  std::vector<Bad> bad;
};
// Checks every entry with its artefact. `remove_bad`: takes away entries that can never be used (not what the
// disk failed to read, and not files without an entry's name).
dispatch::Result<VerifyReport> verify_entries(KernelCache& cache, bool remove_bad);

struct TransferReport {
  int done = 0;
  int skipped = 0;                   // import: quarantined here, or an equal or newer entry is here
  std::vector<std::string> refused;  // one line an entry that failed its check
};
// Writes the given entries (all that may serve, when empty) into one archive file, atomically.
dispatch::Result<TransferReport> export_entries(KernelCache& cache, std::vector<KernelId> ids,
                                                const std::string& path);
// Commits an archive's entries. The archive holds native code that will run in this process: it is trusted as
// its owner is, and its file must obey the cache's rule (owner, mode). kUnsupported: another environment,
// with the lines that differ; what was verified elsewhere is not verified here. kCorrupt: no archive.
dispatch::Result<TransferReport> import_entries(KernelCache& cache, const std::string& path);

struct PruneOptions {
  int64_t bytes_max = -1;               // evict the least served down to this; -1: leave
  int64_t unserved_older_than_ns = -1;  // remove entries that never served and are older; -1: leave
  bool quarantined = false;             // remove entries of quarantined kernels (their standing stays)
  // Forget standings (a kernel may come back and is verified anew); -1: leave.
  int64_t standings_older_than_ns = -1;
  bool other_environments = false;  // remove sibling directories of other environments
};
struct PruneReport {
  int entries = 0, standings = 0, leftovers = 0, leases = 0, environments = 0;
  int64_t bytes = 0;
};
dispatch::Result<PruneReport> prune(KernelCache& cache, const PruneOptions& options);

}  // namespace niche::kernels_cache
