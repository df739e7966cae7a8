// Keys of model services: where they may come from, and how they are kept out of processes in which
// candidates run.
//
// Thread-safety: none: before threads start.
#pragma once

#include <string>

#include "dispatch/base/status.h"

namespace niche::evolve::proposer {

// From a file (its first line), else from the environment variable; empty: there is none. kIo, kInvalid: the
// file cannot be read, is readable by others, or holds no key.
dispatch::Result<std::string> read_key(const std::string& file, const char* variable);

// Overwrites in this process's memory, and removes, every environment variable whose name sounds like a
// secret (KEY, TOKEN, SECRET, PASSWORD, CREDENTIAL): a child made by fork would inherit the memory. Returns
// how many there were.
int scrub_environment();

}  // namespace niche::evolve::proposer
