// The demo's output directory: empties what an earlier demo left there, and refuses a directory that no demo made.
#pragma once

#include <string>

#include "dispatch/base/status.h"

namespace ranker {

// The file that says "made by the demo"; written before anything else, kept by every later run.
inline constexpr char kDemoMarker[] = ".niche-demo";

// Makes `path` (absent, empty, or marked by an earlier demo) ready for a run: marked, and without that run's
// cache, port, reports and log; other files stay. kInvalid: it is not a directory, or holds files and no marker:
// nothing in it was touched. kIo: it cannot be made, marked or emptied.
niche::dispatch::Status claim_out_directory(const std::string& path);

}  // namespace ranker
