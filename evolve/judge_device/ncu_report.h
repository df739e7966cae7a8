// Nsight Compute's CSV (`ncu --csv --page raw`, a column a metric with a line of units, or the long form, a line a
// metric) as ProfilerCounters. bench/cuda/ncu_digest.py reads the same for people without niche.
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

// One a launch, in the report's order. What the program or ncu printed besides is skipped; a metric that is not there, or
// no number, stays unknown. kCorrupt: no report in it; the message has its last lines, which say why.
dispatch::Result<std::vector<ProfiledLaunch>> read_ncu_report(std::string_view text);

}  // namespace niche::evolve
