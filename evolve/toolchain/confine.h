// Confinement of a process that runs text or code from strangers: Landlock (files, network), seccomp (system
// calls), resource limits. Each part degrades by itself; callers record which parts held.
//
// Thread-safety: free functions on the calling thread's credentials; seccomp reaches all threads of the
// process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace niche::evolve {

struct ResourceLimits {
  int64_t cpu_seconds = 0;  // 0: unlimited
  int64_t address_bytes = 0;
  int64_t data_bytes = 0;
  int64_t file_bytes = -1;  // -1: unlimited
  int64_t open_files = 0;
  int64_t stack_bytes = 0;  // of the main thread, from now on
};
// Async-signal-safe: also called between vfork and exec. Core dumps are always off.
void apply_resource_limits(const ResourceLimits& limits);

// A Landlock ruleset: `read_paths` may be read and executed, `write_paths` also written; TCP is refused.
// Paths that do not exist are skipped. Returns a descriptor (close it after use), or -1 where the kernel has
// no Landlock.
int make_landlock_ruleset(const std::vector<std::string>& read_paths,
                          const std::vector<std::string>& write_paths);
// Async-signal-safe. Sets NO_NEW_PRIVS first, as Landlock demands. False: refused by the kernel.
bool enter_landlock(int ruleset_fd);

// Refuses sockets (EACCES) and what could stand in for them or reach into other processes (io_uring, ptrace,
// process_vm_*). Async-signal-safe. Stays over exec. False: refused by the kernel.
bool forbid_network();

// Leaves the system calls that memory management, waiting, clocks and one open channel need; each other one
// raises SIGSYS (SECCOMP_RET_TRAP), whose handler decides. Applies to every thread of the process. False:
// refused by the kernel.
bool enter_compute_seccomp();

}  // namespace niche::evolve
