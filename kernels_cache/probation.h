// Probation: what makes a crash in a serving kernel not a crash loop.
//
// Each serving process keeps a run mark, locked while it lives, and one durable mark for each kernel that
// serves live for the first time. A start reads the marks of processes that are gone without having ended
// cleanly: the kernels they had on probation are held back for re-verification, and a second unclean end
// within ten minutes means fallbacks alone.
//
// Liveness is a flock, not a pid: pids repeat between containers that share the directory. A machine that
// went down (its boot id differs) is no crash of ours: its kernels are held, but it does not count toward the
// ten minutes. All ends found by one scan count once: a killed pod of eight processes is one event.
//
// Thread-safety: safe. Cost: mark() is one durable file (0.1 to some 10 ms): before a kernel first serves,
// never on a call.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "kernels_cache/standing.h"

namespace niche::kernels_cache {

// Two unclean ends within this time mean fallbacks alone, for as long.
inline constexpr int64_t kUncleanWindowNs = int64_t{600} * 1'000'000'000;

struct StartupReport {
  int unclean_ends = 0;            // processes found dead without a clean end
  bool machine_restarted = false;  // at least one of them on an earlier boot
  std::vector<KernelRef> held;     // kernels held back by this scan
  bool fallbacks_only = false;     // the second unclean end within ten minutes
  int64_t fallbacks_only_until_unix_ns = 0;
  // False: another process is scanning right now. Then every kernel with a mark counts as held, in this
  // process and until the next scan, and nothing was written.
  bool complete = true;
  std::string explanation;  // one line for the log and health: what was found and what follows
};

// "/proc/sys/kernel/random/boot_id"; empty where there is none.
std::string current_boot_id();

class Probation {
 public:
  // `directory` absent: no writable place; mark() and begin_run() return kUnsupported.
  Probation(std::optional<Directory> directory, const EnvironmentTag& tag, std::string boot_id);
  ~Probation();  // without end_run(): the marks stay, as after a crash

  // Call once, before the first evolved kernel may serve.
  StartupReport startup_scan(StandingStore& standings, int64_t now_unix_ns);
  // Declares this process as serving. kIo: not durable; the caller then serves fallbacks alone.
  dispatch::Status begin_run(int64_t now_unix_ns);
  // Durable before it returns OK. On any other Status the kernel must not serve. Requires begin_run().
  dispatch::Status mark(const KernelRef& kernel, int64_t now_unix_ns);
  // It served its time without fault, or was taken out of service.
  dispatch::Status clear(const KernelId& id);
  bool marked(const KernelId& id) const;
  // The clean end: removes this process's marks.
  dispatch::Status end_run();

  const std::string& run() const { return run_; }

 private:
  dispatch::Status write(const std::string& name, FrameKind kind, std::span<const uint8_t> payload);
  std::optional<KernelRef> read_mark(const std::string& name) const;

  const std::optional<Directory> directory_;
  const EnvironmentTag tag_;
  const std::string boot_id_;
  mutable std::mutex mutex_;
  std::string run_;
  OwnedFd run_lock_;
  std::unordered_set<KernelId, KernelIdHash> marked_;
};

}  // namespace niche::kernels_cache
