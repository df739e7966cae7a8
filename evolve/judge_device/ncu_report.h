// Nsight Compute's CSV (`ncu --csv --page raw`, a column a metric with a line of units, or the long form, a line a
// metric) as ProfilerCounters. What this reader says of a report is what counts: bench/cuda/ncu_digest.py reads the same
// where there is no niche, and both are held to tests/fixtures/ncu/expected.json.
//
// Thread-safety: pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "evolve/digest.h"

namespace niche::evolve {

struct ProfiledLaunch {
  std::string kernel;
  ProfilerCounters counters;
};

// One a launch, in the report's order, at least one. What the program or ncu printed besides is skipped; a metric that is
// not there, or no finite number, stays unknown. kCorrupt: no report in it (the message has its last lines, which say why),
// or one that is cut off: within a value, a line or the head, or before the first launch.
dispatch::Result<std::vector<ProfiledLaunch>> read_ncu_report(std::string_view text);

}  // namespace niche::evolve
