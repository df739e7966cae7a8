// Runs a program on untrusted input: empty environment, no descriptors but the captured output, limits, own
// process group, killed with this process.
//
// Thread-safety: safe from several threads. Cost: about 0.5 ms beyond the program's own time (vfork; the size
// of the calling process does not matter).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dispatch/base/status.h"
#include "evolve/toolchain/confine.h"

namespace niche::evolve {

struct ConfinedCommand {
  std::vector<std::string> argv;  // argv[0]: absolute path
  std::string working_dir;
  ResourceLimits limits;
  double wall_seconds = 60;
  std::function<bool()>
      keep_going;        // asked every 100 ms: false ends it as the wall limit does. Empty: always
  int landlock_fd = -1;  // of make_landlock_ruleset; -1: none
  size_t output_bytes_max = 64 << 10;  // stdout and stderr together; the rest is read and dropped
};

struct ConfinedResult {
  int exit_code = -1;  // -1: ended by a signal
  int signal = 0;
  bool timed_out = false;  // the wall limit
  bool stopped = false;    // keep_going
  std::string output;
};

// kIo: could not be started. A program that fails is a result, not an error.
dispatch::Result<ConfinedResult> run_confined(const ConfinedCommand& command);

}  // namespace niche::evolve
