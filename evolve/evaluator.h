// Evaluator: judges the candidates of one session: compiles them, runs them in disposable processes, checks
// them against the fp64 reference and times them against the best fallback. Only its numbers count; a
// candidate has none.
//
// Made once a session (judge/evaluator.cc). An interface, so that search and session can be tested without a
// compiler. Thread-safety: one owner thread, in a process without other threads (it forks). Progress: every
// call is bounded by the limits in EvaluatorOptions and ends within about 100 ms after keep_going() turns
// false; a compiler and a profiler are ended for it (but an NVRTC that is under way: up to 2 s).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dispatch/base/status.h"
#include "dispatch/op_spec.h"
#include "evolve/defences.h"
#include "evolve/template_family.h"
#include "evolve/verdict.h"
#include "evolve/worker_client.h"

namespace niche::evolve {

// A judgement that found the very same source FASTER before, in this environment, and still counts: a later one on
// other problems adds to it. Without that, a kernel that wins at small batches and then at large ones would forget the
// small.
struct EarlierJudgement {
  Verdict verdict;
  std::string compiler;  // Judgement::compiler
};

// One source to judge. The suffix its symbols carry must be unique among the candidates of one screen() call.
struct Candidate {
  std::string id;  // names it in reasons: "rms_norm.rows rows=2 unroll=4"
  KernelSource source;
  std::optional<EarlierJudgement> earlier = {};
};

struct EvaluatorSpec {
  std::shared_ptr<const dispatch::OpSpec> op;
  std::shared_ptr<const dispatch::Definition> definition;
  std::vector<SeenProblem> problems;  // at least one, at most 64; weights need not sum to 1
  CpuTarget target;                   // target.threads: threads a call may use
};

// What must happen in a freshly forked child before OpSpecs or kernels run there. The program that links
// libtorch gives one (it sets the thread count and starts the pool); default: a pool of its own, or none for
// one thread. Requires that the parent never started a compute thread: libgomp does not survive fork.
using ChildStart = std::function<dispatch::Executor(int threads)>;

struct EvaluatorOptions {
  uint64_t seed = 0;  // 0: from the system's entropy. Candidates never see it
  ChildStart child_start;
  std::function<bool()> keep_going;  // asked between steps; empty: always
  std::string scratch_dir;  // compiler's files; empty: a new directory under TMPDIR, removed at the end
  std::string compiler;     // empty: c++ / g++ / clang++ on PATH
  double screen_seconds_max = 10;  // one screen() call, compile included
  int screen_pairs = 9;            // pairs a problem in a screen, for what its first three do not rule out
  double judge_seconds_max = 20;   // one judge() call; the e-process usually ends far earlier
  int64_t memory_bytes_max = int64_t{2} << 30;  // argument buffers of one child
  double hang_cpu_seconds = 0.5;                // CPU time of one test launch beyond 20 times the fallback's
  double alpha = 0.01;                          // error of a FASTER on each problem, before confirmation
  double margin = 0.01;                         // a win must be at least this much faster
  int pairs_max =
      400;  // pairs a problem before the verdict is AMBIGUOUS; twice, then four times as many when judged again
  bool confine = true;  // false (a debugger, a sanitizer): no seccomp and Landlock; said in Verdict.sandbox
  DefencesOff defences_off;  // tests of the defences alone
};

struct Judgement {
  Verdict verdict;
  // The very shared object that was verified and timed; empty when it did not compile.
  std::vector<uint8_t> artefact;
  std::string compiler;  // for Provenance
};

// What a problem costs on the library, before any candidate.
struct ProblemBaseline {
  std::vector<int64_t> var_axes;
  double weight = 1;
  bool cold = false;
  int fallback_form = 0;   // the best form
  std::string fallback;    // its name
  double fallback_ns = 0;  // median, in the problem's cache state
};

class Evaluator {
 public:
  virtual ~Evaluator() = default;

  // The best fallback form of every problem, measured at the first use. kDevice, kInvalid or kUnsupported
  // where the operator's own inputs, reference or fallbacks fail: then no candidate can be judged.
  virtual dispatch::Result<std::vector<ProblemBaseline>> baselines() = 0;

  // Quick look at many candidates, one compile for all: gates up to kScreen. One Verdict a candidate, in
  // order: kRejected names the gate; kNotFaster (failed_gate kScreen): clearly slower on the weighted
  // problems; kAmbiguous: worth a judge(). Verdict.timing holds an estimate a problem, good to some 5 %.
  // Cost: about 1 s for 16 candidates of a 1 ms operator.
  virtual std::vector<Verdict> screen(std::span<const Candidate> candidates) = 0;

  // All gates. FASTER only with evidence on fresh data; Verdict.guard is then what a Kernel may serve. Where
  // Candidate::earlier has the same compiler, its Guard is verified again with the session's problems, and its
  // timings count for the Verdict's guard (not for its status; they are not in its `timing`).
  // Cost: 2–4 s for an operator of 1 ms.
  virtual Judgement judge(const Candidate& candidate) = 0;

  // The harness against itself, on the heaviest problem: the library form against itself must not be FASTER,
  // and against itself made 5 % slower must not have the wrong sign. judge() does it once by itself. kDevice
  // names which one failed: then no verdict of this machine can be believed. Cost: some 50 calls of the form.
  virtual dispatch::Status self_test() { return {}; }

  // What a profiler counts of a candidate on the heaviest problem, with what is computed of it. kUnsupported: this
  // evaluator has none; kBusy: keep_going() turned false. Cost: seconds; the kernel runs some dozens of times, in a process of its own.
  virtual dispatch::Result<Digest> profile(const Candidate&) { return dispatch::unsupported("no profiler"); }

  // Machine-wide facts for logs: compiler with flags, containments that hold.
  virtual std::string describe() const = 0;
  // Where the time went so far, for a session's last words; empty: not known.
  virtual std::string spent() const { return {}; }
};

// kInvalid: names what of the spec is wrong; kNotFound: no C++ compiler; kUnsupported: not an x86-64 Linux
// machine.
dispatch::Result<std::unique_ptr<Evaluator>> make_evaluator(EvaluatorSpec spec,
                                                            EvaluatorOptions options = {});
using EvaluatorFactory =
    std::function<dispatch::Result<std::unique_ptr<Evaluator>>(EvaluatorSpec, EvaluatorOptions)>;

}  // namespace niche::evolve
