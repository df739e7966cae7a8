// kernel_record: what the cache keeps of a kernel that an evaluator found FASTER: alike for a session's kernels and for
// one that somebody wrote by hand (`niche evaluate --commit`).
//
// Thread-safety: a pure function.
#pragma once

#include <string>
#include <vector>

#include "evolve/evaluator.h"
#include "evolve/session/candidate_source.h"
#include "evolve/session/problem_costs.h"
#include "kernels_cache/record.h"

namespace niche::evolve {

struct JudgedKernel {
  const dispatch::Definition& definition;
  std::string definition_json;
  const RenderedPoint& rendered;
  const Judgement& judgement;
  const std::vector<ProblemBaseline>& baselines;
  const ProblemCosts& costs;  // of the problems that it was judged on
  std::string family, parameters, session;
  int64_t unix_ns = 0;
  const EarlierJudgement* earlier = nullptr;  // that the judgement was given
};

// The record's Verdict has the timings of `earlier` too, where its compiler is the same: of a problem in both the later
// one that decided; at most kTimingsMax.
inline constexpr size_t kTimingsMax = 96;
kernels_cache::KernelRecord kernel_record(const JudgedKernel& k);

}  // namespace niche::evolve
