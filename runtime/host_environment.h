// host_environment: the environment key of this process, computed alike by server, worker and command line:
// what it runs on, which libraries its references come from, which operators were loaded, which compiler
// builds its kernels.
//
// Thread-safety: pure but for reading /proc, PATH and the compiler's --version (one child, 3 ms, when asked
// for).
#pragma once

#include <string>
#include <vector>

#include "dispatch/base/status.h"
#include "kernels_cache/environment.h"

namespace niche {

// `libraries`: RuntimeConfig::libraries. `op_libraries`: paths; each is read for its SHA-256 (kIo names the
// one that cannot be). `with_compiler`: false leaves the compiler open (a server that only
// reads): the cache then takes the directory of this environment that was written last.
dispatch::Result<kernels_cache::Environment> host_environment(const std::vector<std::string>& libraries,
                                                              const std::vector<std::string>& op_libraries,
                                                              bool with_compiler);

// First line of `c++ --version`, by the toolchain's own order of names; empty where there is none.
std::string compiler_identity();

}  // namespace niche
