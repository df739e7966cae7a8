// Trials of the judge's timing on the real machine: a library form against itself, and against itself made
// slower. The rule that ends a trial is the judge's own (PairVerdict).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "evolve/judge/bench.h"
#include "evolve/judge/cell.h"
#include "evolve/judge/oracle.h"
#include "evolve/verdict.h"

namespace niche::bench {

class SelfTrials {
 public:
  static dispatch::Result<std::unique_ptr<SelfTrials>> make(const evolve::EvaluatorSpec& spec,
                                                            evolve::ChildStart child_start);
  // FASTER, NOT_FASTER or AMBIGUOUS, after at most 400 pairs.
  dispatch::Result<evolve::VerdictStatus> run(double delay, uint64_t seed);
  const std::string& name() const { return name_; }

 private:
  SelfTrials() = default;
  std::string name_;
  evolve::EvaluatorSpec spec_;
  std::unique_ptr<evolve::judge::SharedArena> arena_;
  std::unique_ptr<evolve::judge::Oracle> oracle_;
  std::unique_ptr<evolve::judge::Bench> bench_;
  std::unique_ptr<evolve::judge::Cell> cell_;
  evolve::judge::BenchProblem problem_;
};

}  // namespace niche::bench
