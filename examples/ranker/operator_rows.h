// The rows of the demo's table: one an evolved niche, and one an operator that stayed on the library.
#pragma once

#include <string>

#include "dispatch/base/status.h"
#include "examples/ranker/report.h"

namespace ranker {

// From the Runtime's status JSON (its kernels carry the paired timings of their Verdicts) and the server's
// profile. kCorrupt: a JSON is not what niche writes.
niche::dispatch::Status fill_from_status(const std::string& status_json, const std::string& profile_json,
                                         Report* report);

}  // namespace ranker
