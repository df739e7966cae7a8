// replay: runs a policy over a recorded space as a session would drive it, and keeps the best cost by
// evaluation.
//
// Pure: the result is a function of space, policy, seed and batch. Cost: what the policy costs.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/base/status.h"
#include "evolve/replay/recorded_space.h"
#include "evolve/search/policy.h"

namespace niche::evolve::replay {

struct ReplayOptions {
  std::string policy = "default";
  uint64_t seed = 1;
  int evaluations = 200;
  int batch = 8;
  double stop_within = 0;  // end as soon as the best is within this factor of the optimum; 0: never
  std::vector<search::FamilyPoint> warm_start;
  std::vector<search::PastResult> past;
  bool use_seeds = true;  // the families' own guesses
};

struct ReplayResult {
  std::vector<double> best;  // best[i]: smallest cost after i + 1 evaluations; 0: none passed yet
  std::vector<std::pair<double, search::FamilyPoint>> elites;  // the eight smallest costs, smallest first
  std::vector<search::PastResult> evaluated;                   // all, in order
  // Evaluations until the best was within `factor` of the optimum; `censored` when it never was.
  int evaluations_to(double factor, double optimum, int censored) const;
  double slowdown_after(int evaluations, double optimum, double none_passed) const;
};

// kNotFound: no such policy.
dispatch::Result<ReplayResult> replay(const RecordedSpace& space, const ReplayOptions& options);

}  // namespace niche::evolve::replay
