// Trials of the judge's timing on the real machine: a library form against itself, and against itself made
// slower. A trial goes the way that a session's candidate goes (judge/judge.cc, session/judge_plan.h): the judge's rule
// (PairVerdict) on at most 400 pairs; a FASTER is confirmed in a new process on fresh values; one that found neither way is
// judged anew, in a new process too, with 800 and then 1,600 pairs. A session judges again only what measured well:
// here everything is. Left out is the clock check, which could only take a FASTER back.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "evolve/evaluator.h"
#include "evolve/judge/bench.h"
#include "evolve/judge/cell.h"
#include "evolve/judge/oracle.h"
#include "evolve/verdict.h"

namespace niche::bench {

class SelfTrials {
 public:
  static dispatch::Result<std::unique_ptr<SelfTrials>> make(const evolve::EvaluatorSpec& spec,
                                                            evolve::ChildStart child_start);
  struct Trial {
    evolve::VerdictStatus status = evolve::VerdictStatus::kAmbiguous;
    int judgements = 0;
    int first_faster = 0;  // judgements whose first test said FASTER, before it was confirmed
  };
  // Requires a process without other threads (it forks). Cost: some 100 calls of the form, 5,600 at most.
  dispatch::Result<Trial> run(double delay, uint64_t seed);
  const std::string& name() const { return name_; }

 private:
  SelfTrials() = default;
  // A new process, fresh values.
  dispatch::Status begin_afresh();
  dispatch::Result<evolve::VerdictStatus> test(double delay, uint64_t seed, int pairs_max);
  std::string name_;
  evolve::EvaluatorSpec spec_;
  evolve::EvaluatorOptions options_;  // the judge's defaults
  evolve::ChildStart child_start_;
  std::unique_ptr<evolve::judge::SharedArena> arena_;
  std::unique_ptr<evolve::judge::Oracle> oracle_;
  std::unique_ptr<evolve::judge::Bench> bench_;
  std::unique_ptr<evolve::judge::Cell> cell_;
  evolve::judge::BenchProblem problem_;
};

}  // namespace niche::bench
