#include "evolve/probe/probe_job.h"

namespace niche::evolve {

const char* probe_end_name(ProbeEnd end) {
  constexpr const char* kNames[] = {"ran", "refused", "out_of_bounds", "fault", "hung", "died", "undecided"};
  return kNames[static_cast<size_t>(end)];
}

Verdict ProbeOutcome::verdict() const {
  Verdict v;
  v.sandbox = "process";
  if (end == ProbeEnd::kRan) {
    v.status = VerdictStatus::kAmbiguous;
    return v;
  }
  v.status = candidate_at_fault() ? VerdictStatus::kRejected : VerdictStatus::kAmbiguous;
  v.failed_gate = end == ProbeEnd::kRefused ? Gate::kBinary : Gate::kSmoke;
  v.reason = std::string(probe_end_name(end)) + ": " + text;
  return v;
}

}  // namespace niche::evolve
