// SessionEvaluator: the Evaluator of one session: an oracle, a toolchain, and cells as they are needed.
//
// Order of life: arena, then the oracle (so that it never sees a candidate), then cells. Thread-safety: one
// owner thread.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "evolve/evaluator.h"
#include "evolve/judge/bench.h"
#include "evolve/judge/build.h"
#include "evolve/judge/verifier.h"
#include "evolve/toolchain/scratch_dir.h"
#include "evolve/toolchain/wall_meter.h"

namespace niche::evolve::judge {

class SessionEvaluator final : public Evaluator {
 public:
  // `clock`: a test's, that disturbs what the blocks of the clock check take.
  static dispatch::Result<std::unique_ptr<Evaluator>> make(EvaluatorSpec spec, EvaluatorOptions options,
                                                           BlockClock clock = system_clock_ns);
  ~SessionEvaluator() override;

  dispatch::Result<std::vector<ProblemBaseline>> baselines() override;
  std::vector<Verdict> screen(std::span<const Candidate> candidates) override;
  Judgement judge(const Candidate& candidate) override;
  dispatch::Status self_test() override;
  std::string describe() const override;

 private:
  SessionEvaluator(EvaluatorSpec spec, EvaluatorOptions options, BlockClock clock);
  dispatch::Status start();

  // What screen() and judge() share.
  struct Budget {
    double seconds;
    WallMeter meter;  // a session that is stopped for a while does not run out of time
  };
  bool stop(Budget& b) const {
    return b.meter.seconds() >= b.seconds || (options_.keep_going && !options_.keep_going());
  }
  dispatch::Status ensure_baselines();
  std::string why_refused(const Candidate& c) const;  // kParse; empty: acceptable
  dispatch::Result<std::unique_ptr<Cell>> make_cell(const Build& build,
                                                    std::span<const Candidate> candidates);
  std::vector<CaseId> cases(const KernelSource& source, const dispatch::Guard& box) const;
  double hang_seconds() const;
  dispatch::Guard limits_of(const KernelSource& source) const;
  std::vector<VarAxes> seen_points() const;
  // `at`: what a check found: the case is named, so that it can be made again.
  void reject(Verdict& v, Gate gate, const std::string& reason, const Finding& at = {}) const;
  // Not the candidate's fault: time was up, or the operator or the machine failed.
  void refuse(Verdict& v, const BuiltCandidate& built) const;
  void undecided(Verdict& v, Gate gate, const std::string& reason) const;

  // screen()
  struct Screening;
  bool screen_smoke(Screening& s);
  bool screen_times(Screening& s);
  void screen_verdicts(Screening& s);

  // judge()
  struct Trial;
  bool judge_correctness(Trial& t);
  bool judge_timing(Trial& t);
  bool judge_other_state(Trial& t);
  bool judge_confirm(Trial& t);
  // What is collected at a problem in one cache state. These give false when the trial is over (its verdict says why).
  struct Measured;
  // Pairs until the evidence is enough either way.
  bool collect(Trial& t, BenchProblem& p, bool cold, int pairs_max, Measured& m);
  // The same, held against the system's clock: a FASTER, or whatever comes out. Where the clock disagrees both are measured
  // again, once.
  enum class Checked { kFaster, kAll };
  bool collect_checked(Trial& t, BenchProblem& p, bool cold, int pairs_max, Checked what, Measured& m);
  bool watch_blocks(Trial& t, BenchProblem& p, ClockCheck& check, ClockCheck::Next& next);
  // A new process for the trial, fresh values for the problem.
  bool begin_afresh(Trial& t, BenchProblem& p);

  EvaluatorSpec spec_;
  EvaluatorOptions options_;
  BlockClock clock_;
  ScratchDir own_scratch_;
  std::unique_ptr<SharedArena> arena_;
  std::unique_ptr<Oracle> oracle_;
  std::unique_ptr<CppToolchain> toolchain_;
  std::unique_ptr<Bench> bench_;
  std::unique_ptr<Verifier> verifier_;
  std::vector<BenchProblem> problems_;  // by weight, heaviest first; a few (see start())
  bool have_baselines_ = false;
  dispatch::Status baseline_status_;
  bool self_tested_ = false;
  dispatch::Status self_test_status_;
  std::string confinement_;
  std::unordered_map<uint64_t, std::string> judged_;  // code_hash: id of the first candidate with that code
  std::unordered_map<uint64_t, int> undecided_;       // code_hash: judgements that found neither way
};

}  // namespace niche::evolve::judge
