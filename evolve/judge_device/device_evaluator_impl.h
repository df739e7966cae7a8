// The inside of a DeviceEvaluator (device_evaluator.h).
#pragma once

#include <chrono>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "evolve/judge/arena.h"
#include "evolve/judge/bench.h"
#include "evolve/judge/oracle.h"
#include "evolve/judge/pair_verdict.h"
#include "evolve/judge/points.h"
#include "evolve/judge_device/device_evaluator.h"
#include "evolve/toolchain/cuda_toolchain.h"
#include "evolve/toolchain/wall_meter.h"

namespace niche::evolve::judge {

// A problem that is timed, with the arguments that its races start from.
struct TimedProblem {
  VarAxes var_axes;
  double weight = 1;
  bool cold = false;
  dispatch::Problem problem;
  int form = 0;
  double fallback_ns = 0;
  uint64_t seed = 0;  // of `args`; 0: not filled
  std::vector<ProbeJob::Arg> args;
};

class DeviceEvaluator final : public Evaluator {
 public:
  DeviceEvaluator(EvaluatorSpec spec, EvaluatorOptions options, DeviceEvaluatorOptions device);
  ~DeviceEvaluator() override;
  dispatch::Status start();

  dispatch::Result<std::vector<ProblemBaseline>> baselines() override;
  std::vector<Verdict> screen(std::span<const Candidate> candidates) override;
  Judgement judge(const Candidate& candidate) override;
  dispatch::Status self_test() override;
  std::string describe() const override;

 private:
  // One candidate on its way through the gates.
  struct Trial {
    const Candidate* candidate = nullptr;
    dispatch::Result<CompiledCubin> cubin = dispatch::internal("not compiled");
    dispatch::Guard limits, box;
    std::vector<PointTiming> timing;
    double e_value = 0;
  };
  struct Budget {
    double seconds;
    WallMeter meter;
  };
  bool stop(Budget& b) const {
    return b.meter.seconds() >= b.seconds || (options_.keep_going && !options_.keep_going());
  }

  // device_evaluator.cc
  dispatch::Status ensure_baselines();
  dispatch::Status fill(TimedProblem& p, uint64_t seed);
  CaseId case_id(const dispatch::Problem& problem, int distribution) const;
  std::vector<CaseId> cases(const KernelSource& source, const dispatch::Guard& box) const;
  dispatch::Guard limits_of(const KernelSource& source) const;
  std::vector<VarAxes> seen_points() const;
  std::string why_refused(const Candidate& c) const;
  void compile(std::vector<Trial>& trials) const;
  ProbeJob job_for(const Trial& t, const dispatch::Problem& problem) const;
  // Places a case's buffers in the arena, has the oracle fill them, and gives them as a job's arguments.
  dispatch::Status place(const CaseId& id, RunBuffers* run, std::vector<ProbeJob::Arg>* args);
  // Compares what a run left behind; the run's buffers are still in the arena.
  dispatch::Result<Finding> compare(const CaseId& id, RunBuffers& run, const ProbeOutcome& o);
  // Right on this case, in `runs` runs? False: the verdict says why not. Undecided ones are kAmbiguous.
  bool verify(Trial& t, const CaseId& id, int runs, Verdict* v);
  // Pairs of library form and candidate; form and candidate alike where `t` is null (self-test).
  struct Pairs {
    std::vector<PairSample> samples;
    ProbeOutcome outcome;
  };
  Pairs race(const Trial& t, const TimedProblem& p, bool cold, int pairs);
  // Are the outputs that the last timed calls left right? In-place operators were called again and again on
  // their own results: theirs are not looked at.
  bool check_timed(const TimedProblem& p, const ProbeOutcome& o, Verdict* v);
  ProbeJob::Race race_of(const TimedProblem& p, bool cold, int rounds) const;
  void reject(Verdict& v, Gate gate, const std::string& reason) const;
  void undecided(Verdict& v, Gate gate, const std::string& reason) const;
  bool take_outcome(const ProbeOutcome& o, Gate gate, Verdict* v) const;

  // device_judge.cc
  bool judge_correctness(Trial& t, Budget& until, Verdict* v);
  bool judge_timing(Trial& t, Budget& until, Verdict* v);
  bool judge_other_state(Trial& t, Budget& until, Verdict* v);
  bool judge_confirm(Trial& t, Budget& until, Verdict* v);
  bool collect(Trial& t, TimedProblem& p, bool cold, int pairs_max, Budget& until, Verdict* v,
               PointTiming* out, double* e_value);
  TimedProblem& problem_of(const PointTiming& timing);
  std::vector<JudgedPoint> judged_points(const Verdict& v);

  EvaluatorSpec spec_;
  EvaluatorOptions options_;
  DeviceEvaluatorOptions device_;
  std::string definition_json_;
  std::unique_ptr<SharedArena> arena_;
  std::unique_ptr<Oracle> oracle_;
  std::unique_ptr<CudaToolchain> toolchain_;
  std::vector<uint8_t> pacer_;
  std::unique_ptr<DeviceProbe> probe_;
  std::vector<TimedProblem> problems_;  // heaviest first
  bool have_baselines_ = false;
  dispatch::Status baseline_status_;
  bool self_tested_ = false;
  dispatch::Status self_test_status_;
  std::unordered_map<uint64_t, std::string> judged_;  // hash of the cubin: id of the first candidate with it
};

}  // namespace niche::evolve::judge
