// Home: the directory of a cache's root that belongs to one environment, open, and the text that says what its
// name stands for (environment.txt).
//
// Thread-safety: pure functions over a Directory. Cost: a few system calls; without a compiler, three for each
// directory of the same running half.
#pragma once

#include <string>

#include "kernels_cache/directory.h"
#include "kernels_cache/environment.h"

namespace niche::kernels_cache {

struct Home {
  Directory directory;
  std::string environment_text;  // Environment::canonical_text() of whoever named the directory
};

// Opens the directory of `environment`; with kReadWrite makes it, and writes its text where that is missing or
// damaged. An environment without a compiler takes, of those with the same running half, the one whose index
// is newest. kNotFound: read-only and not there; says which other environments are, and how they differ. kUnsupported, kIo: as Directory::open.
dispatch::Result<Home> open_home(const Directory& root, const Environment& environment, Access access);

}  // namespace niche::kernels_cache
