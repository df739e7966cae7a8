// StandingStore: what is known against a kernel in this environment, durably: held back for re-verification,
// or quarantined for good. One small file each; its name alone carries the state, so that a start reads one
// listing, and a damaged file still condemns. Where two say different things the severer one counts.
//
// Thread-safety: safe. Bound: kStandingMax files; past that, cleared ones and then the oldest give way
// (counted). When the disk refuses, the state still holds in this process, and the Status says that it will
// not survive it.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kernels_cache/entry_file.h"
#include "kernels_cache/kernel_id.h"

namespace niche::kernels_cache {

enum class StandingState : uint8_t {
  kClear = 0,    // nothing against it
  kCleared,      // was held and passed re-verification
  kHeld,         // was on probation in a process that ended badly: must be verified again before it serves
  kQuarantined,  // a fault, mismatch or regression on live traffic, or held for the third time: never again
                 // here
};
const char* standing_name(StandingState state);

struct Standing {
  KernelId id;
  StandingState state = StandingState::kClear;
  std::string definition, kernel, reason;  // empty where the file is damaged
  int64_t when_unix_ns = 0;
  int times_held = 0;
};

// Who a standing is about.
struct KernelRef {
  KernelId id;
  std::string definition;
  std::string kernel;
};
KernelRef kernel_ref(const KernelRecord& record);

class StandingStore {
 public:
  static constexpr size_t kStandingMax = 16'384;
  static constexpr int kHoldsMax = 3;

  // `directory` is written to; absent in a read-only cache without a state directory: then writes return
  // kUnsupported. `shipped` is what came with a read-only cache; it is read too. Nothing
  // is known before the first refresh().
  StandingStore(std::optional<Directory> directory, std::optional<Directory> shipped,
                const EnvironmentTag& tag);

  StandingState state(const KernelId& id) const;
  dispatch::Status quarantine(const KernelRef& kernel, const std::string& reason, int64_t now_unix_ns);
  // `run`: whose unclean end it was; the same run never counts twice. The third hold becomes a quarantine: a
  // crash is seldom attributed, so one is suspicion, and three are a crash loop.
  dispatch::Status hold(const KernelRef& kernel, const std::string& reason, const std::string& run,
                        int64_t now_unix_ns);
  // After re-verification. kNotFound: it was not held.
  dispatch::Status clear_hold(const KernelRef& kernel, int64_t now_unix_ns);
  // Held in this process alone, until the next call: kernels whose marks another process is reading right
  // now.
  void set_suspects(const std::vector<KernelRef>& kernels);
  // Takes over what `from` knows against kernels and this one does not. The first failure, after all were tried.
  dispatch::Status adopt(const StandingStore& from);
  // Forgets everything about it (an operator's decision, or age).
  dispatch::Status forget(const KernelId& id);

  std::vector<Standing> list() const;  // reads each file: for people
  std::optional<Standing> find(const KernelId& id) const;
  // Sees what other processes wrote, and writes again what the disk refused; one directory listing. kIo: what
  // was known before stays.
  dispatch::Status refresh();
  uint64_t dropped() const;

 private:
  struct Change {
    KernelRef kernel;
    StandingState state;
    std::string reason, run;
    int times_held;
    int64_t when_unix_ns;
  };
  dispatch::Status apply(const Change& change);
  dispatch::Status write(const Change& change);
  Standing read(const KernelId& id, StandingState state, std::string* last_run) const;
  void make_room(const KernelId& newcomer);

  const std::optional<Directory> directory_, shipped_;
  const EnvironmentTag tag_;
  mutable std::mutex mutex_;
  std::unordered_map<KernelId, StandingState, KernelIdHash> states_;
  std::unordered_map<KernelId, Change, KernelIdHash> unsaved_;  // the disk refused; tried again by refresh()
  std::unordered_set<KernelId, KernelIdHash> suspects_;
  uint64_t dropped_ = 0;
};

}  // namespace niche::kernels_cache
