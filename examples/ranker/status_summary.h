// What the demo needs of the Runtime's status JSON.
#pragma once

#include <string>
#include <vector>

#include "dispatch/base/status.h"

namespace ranker {

struct StatusSummary {
  int sessions = 0, sessions_running = 0, rollouts_running = 0, swaps = 0, rollbacks = 0;
  double first_swap_s = 0;          // hot -> first live call on an evolved kernel, the earliest operator
  std::string current;              // "rms_norm.f32.N448: 1.43x after 57 candidates"
  std::vector<std::string> events;  // oldest first
};

// kCorrupt: not the JSON that Runtime::status() writes.
niche::dispatch::Result<StatusSummary> summarize_status(const std::string& json);

}  // namespace ranker
