// SeenStore: the problems of a Definition that live traffic has shown in this environment, so that a restart
// serves them as the process before did, from the first call on. What was measured at them is in the
// kernels' records; this is the list of where it matters.
//
// One file a Definition, "seen/<16 hex of the name's hash>.seen". A file that cannot be used is a Miss of that
// Definition alone, and the next merge() writes it anew.
//
// Thread-safety: safe; a merge holds a lock on a file, which others only try. Bounds: kProblemsMax problems a
// Definition (256 KiB), those seen last; kFilesMax files, those written last. Cost: read: one file; merge: a
// read and a durable write (0.1 to some 10 ms). Control plane.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dispatch/problem_key.h"
#include "kernels_cache/entry_file.h"

namespace niche::kernels_cache {

// A problem without what differs from process to process (numbers of Definition and device, threads).
struct SeenProblem {
  int64_t axes[dispatch::kMaxVarAxes] = {};  // Definition::var_axes() order, unused ones 0
  uint64_t layout = 0;                       // LayoutClass::bits()
  uint64_t constraints = 0;                  // ConstraintSet::bits()
  int64_t last_unix_ns = 0;
};
static_assert(sizeof(SeenProblem) == 64);

class SeenStore {
 public:
  static constexpr size_t kProblemsMax = 4096, kFilesMax = 256;

  // As StandingStore: `directory` is written to, `shipped` came with a read-only cache. Without either nothing
  // is known, without the first merge() returns kUnsupported.
  SeenStore(std::optional<Directory> directory, std::optional<Directory> shipped, const EnvironmentTag& tag);

  // The one seen last first. Files that cannot be used are told in `misses`, an absent one is not.
  std::vector<SeenProblem> read(const std::string& definition, std::vector<Miss>* misses) const;
  // Adds to what is there, whoever wrote it; of a problem in both the later time stays. Durable when it
  // returns. kBusy: another process merges; kIo: the disk (nothing changed).
  dispatch::Status merge(const std::string& definition, std::vector<SeenProblem> problems,
                         int64_t now_unix_ns, std::vector<Miss>* misses) const;

 private:
  dispatch::Status make_room(const std::string& newcomer) const;

  const std::optional<Directory> directory_, shipped_;
  const EnvironmentTag tag_;
};

// A file's payload; exposed for the fuzz test. Nothing: `miss` says why.
std::vector<uint8_t> encode_seen(const std::string& definition, const std::vector<SeenProblem>& problems);
std::optional<std::vector<SeenProblem>> decode_seen(std::span<const uint8_t> payload,
                                                    const std::string& definition, const std::string& where,
                                                    Miss* miss);

}  // namespace niche::kernels_cache
