// The inside of a DeviceEvaluator (device_evaluator.h).
#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "evolve/judge/bench.h"
#include "evolve/judge/pair_verdict.h"
#include "evolve/judge/points.h"
#include "evolve/judge_device/case_lanes.h"
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
  std::future<CaseLanes::Made> filling;
  uint64_t filling_seed = 0;
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
  dispatch::Result<Digest> profile(const Candidate& candidate) override;
  std::string describe() const override;
  std::string spent() const override;

 private:
  // One candidate on its way through the gates.
  struct Trial {
    const Candidate* candidate = nullptr;
    dispatch::Result<CompiledCubin> cubin = dispatch::internal("not compiled");
    dispatch::Guard limits, box;
    const Verdict* earlier = nullptr;  // of the candidate, where its compiler is this one
    std::vector<PointTiming> timing;
    double e_value = 0;
  };
  struct CaseRun {
    CaseId id;
    int runs = 1;  // two must leave the same bits
  };
  // Where the session's seconds go: waiting for what, in the owner's thread.
  struct Spent {
    double making = 0, comparing = 0, compiling = 0, probing = 0;
  };
  class Spending {
   public:
    explicit Spending(double* seconds) : seconds_(seconds) {}
    ~Spending() {
      *seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    }
    Spending(const Spending&) = delete;
    Spending& operator=(const Spending&) = delete;

   private:
    double* const seconds_;
    const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
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
  dispatch::Status time_forms(const TimedProblem& p, int rounds, std::vector<int>* forms,
                              std::map<int, std::vector<double>>* ns);
  // The arguments of its races; begin_fill: a lane makes them meanwhile.
  dispatch::Status fill(TimedProblem& p, uint64_t seed);
  void begin_fill(TimedProblem& p, uint64_t seed);
  std::vector<ProbeOutcome> run_probe(std::span<const ProbeJob> jobs);
  ProbeOutcome run_probe(const ProbeJob& job);
  CaseId case_id(const dispatch::Problem& problem, int distribution) const;
  std::vector<CaseId> cases(const KernelSource& source, const dispatch::Guard& box) const;
  dispatch::Guard limits_of(const KernelSource& source) const;
  std::vector<VarAxes> seen_points() const;
  std::string why_refused(const Candidate& c) const;
  // kBusy: the time was up before its turn (compile_on_).
  void compile(std::vector<Trial>& trials);
  ProbeJob job_for(const Trial& t, const dispatch::Problem& problem) const;
  // Right on these cases? False: the verdict says why not. Undecided ones are kAmbiguous. `until` null: no limit.
  bool verify(Trial& t, std::span<const CaseRun> list, Budget* until, Verdict* v);
  size_t cases_ahead(std::span<const CaseRun> list) const;
  using Outputs = std::vector<std::vector<uint8_t>>;  // one an argument
  std::vector<Outputs> run_cases(Trial& t, std::span<const CaseRun> list, std::span<CaseLanes::Made> made,
                                 Gate gate, Verdict* v);
  bool take_finding(const dispatch::Result<Finding>& found, Gate gate, Verdict* v) const;
  dispatch::Problem problem_at(const CaseId& id) const;
  void borrow_inputs(std::vector<ProbeJob>& jobs, int owner) const;
  // Screens look at all candidates at once.
  struct Screened {
    Trial* trial = nullptr;
    Verdict* verdict = nullptr;
    bool alive = true;
    double library = 0, kernel = 0;  // weighted over the problems that were timed
  };
  void verify_together(std::span<Screened* const> trials, const dispatch::Problem& problem, Gate gate);
  std::vector<std::vector<PairSample>> race_together(std::span<Screened* const> trials, const TimedProblem& p,
                                                     int rounds);
  static std::vector<PairSample> pairs_of(const ProbeOutcome& o);
  // Pairs of library form and candidate; form and candidate alike where `t` is null (self-test).
  struct Pairs {
    std::vector<PairSample> samples;
    ProbeOutcome outcome;
  };
  // At most `pairs`, fewer where evidence of `e_stop` is there before.
  Pairs race(const Trial& t, const TimedProblem& p, bool cold, int pairs, double e_stop);
  // Are the outputs that the last timed calls left right? In-place operators were called again and again on
  // their own results: theirs are not looked at.
  bool check_timed(const TimedProblem& p, const ProbeOutcome& o, Verdict* v);
  ProbeJob::Race race_of(const TimedProblem& p, bool cold, int rounds) const;
  void reject(Verdict& v, Gate gate, const std::string& reason) const;
  void undecided(Verdict& v, Gate gate, const std::string& reason) const;
  bool take_outcome(const ProbeOutcome& o, Gate gate, Verdict* v) const;
  // Of a rejection: the case at which it was wrong, so that it can be made again.
  void name_case(const CaseId& id, Verdict* v) const;
  // Of the heaviest problem that was timed; nothing where none was, or the device's peaks are not known.
  void add_digest(const Trial& t, Verdict* v);
  Digest digest_of(const Trial& t, const TimedProblem& p, double kernel_ns) const;

  // device_judge.cc
  void screen_together(std::vector<Screened>& list, Budget& until);
  void time_together(const TimedProblem& p, std::span<Screened* const> trials);
  bool judge_correctness(Trial& t, Budget& until, Verdict* v);
  bool judge_timing(Trial& t, Budget& until, Verdict* v);
  bool judge_other_state(Trial& t, Budget& until, Verdict* v);
  bool judge_confirm(Trial& t, Budget& until, Verdict* v);
  bool collect(Trial& t, TimedProblem& p, bool cold, int pairs_max, double e_stop, Budget& until, Verdict* v,
               PointTiming* out, double* e_value);
  TimedProblem& problem_of(const PointTiming& timing);
  std::vector<JudgedPoint> judged_points(const Verdict& v);

  EvaluatorSpec spec_;
  EvaluatorOptions options_;
  DeviceEvaluatorOptions device_;
  std::string definition_json_;
  std::unique_ptr<CaseLanes> lanes_;
  std::unique_ptr<CudaToolchain> toolchain_;
  std::vector<uint8_t> pacer_;
  std::unique_ptr<DeviceProbe> probe_;
  std::vector<TimedProblem> problems_;  // heaviest first
  bool have_baselines_ = false;
  dispatch::Status baseline_status_;
  bool self_tested_ = false;
  dispatch::Status self_test_status_;
  Spent spent_;
  std::atomic<bool> compile_on_ = true;  // false: whoever compiles begins with no other candidate
  std::unordered_map<uint64_t, std::string> judged_;  // hash of the cubin: id of the first candidate with it
};

}  // namespace niche::evolve::judge
