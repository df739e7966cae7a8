#include "evolve/judge_device/device_evaluator.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "dispatch/base/hash.h"
#include "evolve/cuda_plan_text.h"
#include "evolve/definition_json.h"
#include "evolve/judge/host_args.h"
#include "evolve/judge/oracle_server.h"
#include "evolve/judge_device/device_evaluator_impl.h"
#include "evolve/probe/pacer.h"

namespace niche::evolve::judge {
namespace {

using dispatch::Status;

constexpr size_t kTimedProblemsMin = 4;
// Problems of a device are large, and each has its reference in fp64: what is not kept is computed again for every
// candidate.
constexpr int64_t kOracleCacheBytes = int64_t{4} << 30;
constexpr size_t kSourceBytesMax = 1 << 20;
constexpr int kBaselineRounds = 9;
constexpr int kFirstRounds = 3;  // of all forms; the others are of those that are still in question
constexpr double kFarBehind = 1.3;
constexpr int kLanesMax = 4;
constexpr int kSelfTestPairs = 16;
constexpr double kJudgeSeconds = 40;  // bursts under permits are few, whatever the host does
constexpr double kSampleNs = 20'000;  // shorter samples are several calls
constexpr int kSampleCallsMax = 8;
constexpr int64_t kCopiesBytesMax = int64_t{64} << 20;
constexpr int64_t kDeviceAlignment = 256;

uint64_t entropy() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace

DeviceEvaluator::DeviceEvaluator(EvaluatorSpec spec, EvaluatorOptions options, DeviceEvaluatorOptions device)
    : spec_(std::move(spec)), options_(std::move(options)), device_(std::move(device)) {}

DeviceEvaluator::~DeviceEvaluator() = default;

Status DeviceEvaluator::start() {
  if (options_.seed == 0) options_.seed = entropy();
  options_.judge_seconds_max = std::max(options_.judge_seconds_max, kJudgeSeconds);
  definition_json_ = definition_to_json(*spec_.definition);
  std::vector<VarAxes> points;
  std::vector<double> weights;
  for (const SeenProblem& s : spec_.problems) {
    if (s.var_axes.size() != spec_.definition->var_axes().size())
      return dispatch::invalid(spec_.definition->name() + ": a problem with " +
                               std::to_string(s.var_axes.size()) + " axes, " +
                               std::to_string(spec_.definition->var_axes().size()) + " are variable");
    points.push_back(s.var_axes);
    weights.push_back(s.weight);
  }
  const size_t timed = std::max(kTimedProblemsMin, 1 + 2 * spec_.definition->var_axes().size());
  for (size_t i : representative(points, weights, timed)) {
    TimedProblem t;
    t.var_axes = points[i];
    t.weight = weights[i];
    t.cold = spec_.problems[i].cold;
    auto problem = make_problem(*spec_.op, spec_.definition, points[i]);
    if (!problem.ok()) return problem.status();
    t.problem = *problem;
    problems_.push_back(std::move(t));
  }
  const int host_threads = std::max(1, device_.host_threads);
  LaneOptions lanes;
  lanes.lanes = std::clamp(host_threads / 2, 1, kLanesMax);
  lanes.child_start = [start = options_.child_start, threads = host_threads / lanes.lanes] {
    if (start) start(threads);
  };
  lanes.memory_bytes = options_.memory_bytes_max;
  lanes.cache_bytes = kOracleCacheBytes;
  lanes.defences_off = options_.defences_off;
  auto made = CaseLanes::make(spec_.op, spec_.definition, lanes);
  if (!made.ok()) return made.status();
  lanes_ = std::move(*made);
  auto toolchain = CudaToolchain::find({.library = device_.nvrtc, .cache_dir = device_.cubin_cache_dir});
  if (!toolchain.ok()) return toolchain.status();
  toolchain_ = std::move(*toolchain);
  if (!toolchain_->supports(device_.arch))
    return dispatch::unsupported(toolchain_->version() + " cannot compile for " + device_.arch);
  auto pacer = toolchain_->compile("pacer", std::string(pacer_text()), device_.arch);
  if (!pacer.ok()) return pacer.status();
  pacer_ = std::move(pacer->bytes);
  probe_ = std::make_unique<DeviceProbe>(device_.probe, *device_.permits, *device_.clock);
  probe_->begin();  // libtorch takes seconds to open a device: meanwhile inputs are made
  return {};
}

std::string DeviceEvaluator::describe() const {
  return toolchain_->version() + " for " + device_.arch +
         (probe_->device().empty() ? "" : "; " + probe_->device());
}

// ---- problems and cases

std::vector<VarAxes> DeviceEvaluator::seen_points() const {
  std::vector<VarAxes> points;
  for (const SeenProblem& s : spec_.problems) points.push_back(s.var_axes);
  return points;
}

dispatch::Guard DeviceEvaluator::limits_of(const KernelSource& source) const {
  dispatch::Guard g = source.limits;
  const int count = static_cast<int>(spec_.definition->var_axes().size());
  for (int i = g.var_count; i < count; ++i) g.var[static_cast<size_t>(i)] = {1, INT64_MAX / 2, 1};
  g.var_count = count;
  return g;
}

CaseId DeviceEvaluator::case_id(const dispatch::Problem& problem, int distribution) const {
  CaseId id;
  id.axes = problem.axes;
  id.distribution = distribution;
  id.seed = dispatch::mix64(
      options_.seed ^ dispatch::hash_bytes(problem.to_string(), static_cast<uint64_t>(distribution) + 1));
  return id;
}

std::vector<CaseId> DeviceEvaluator::cases(const KernelSource& source, const dispatch::Guard& box) const {
  const auto points = correctness_points(*spec_.op, spec_.definition, source.plan, box, options_.seed);
  const int distributions = std::max(1, spec_.op->distributions());
  std::vector<CaseId> list;
  const auto add = [&](const VarAxes& point, int distribution) {
    auto p = make_problem(*spec_.op, spec_.definition, point);
    if (!p.ok()) return;
    const CaseId id = case_id(*p, distribution);
    if (std::find(list.begin(), list.end(), id) == list.end()) list.push_back(id);
  };
  for (size_t i = 0; i < points.size(); ++i) {
    // By the point, not by its place in the list: candidates that share a point share its reference.
    const uint64_t hash = dispatch::hash_bytes(
        {reinterpret_cast<const char*>(points[i].data()), points[i].size() * sizeof(points[i][0])});
    add(points[i], static_cast<int>(hash % static_cast<uint64_t>(distributions)));
    if (i != 0 && i != points.size() / 2) continue;
    for (int d = 0; d < distributions; ++d) add(points[i], d);
  }
  for (const TimedProblem& p : problems_) {
    if (!guard_holds(box, p.var_axes)) continue;
    for (int d = 0; d < distributions; ++d) add(p.var_axes, d);
    break;
  }
  return list;
}

Status DeviceEvaluator::fill(TimedProblem& p, uint64_t seed) {
  if (p.seed == seed && !p.args.empty()) return {};
  if (p.filling_seed != seed || !p.filling.valid()) begin_fill(p, seed);
  const Spending spending(&spent_.making);
  CaseLanes::Made made = p.filling.get();
  p.args = std::move(made.args);
  p.seed = made.status.ok() ? seed : 0;
  return made.status;
}

void DeviceEvaluator::begin_fill(TimedProblem& p, uint64_t seed) {
  CaseId id = case_id(p.problem, 0);
  id.seed = seed;
  p.filling = lanes_->begin(id, p.form);
  p.filling_seed = seed;
}

std::vector<ProbeOutcome> DeviceEvaluator::run_probe(std::span<const ProbeJob> jobs) {
  const Spending spending(&spent_.probing);
  return probe_->run_all(jobs);
}
ProbeOutcome DeviceEvaluator::run_probe(const ProbeJob& job) { return std::move(run_probe({&job, 1})[0]); }

std::string DeviceEvaluator::spent() const {
  const DeviceProbe::Counts& c = probe_->counts();
  char text[256];
  std::snprintf(
      text, sizeof text,
      "seconds: %.1f in the probe (%.1f until it was open, %.1f for %lld permits, %.2f under them), %.1f for "
      "inputs and references, %.1f for comparisons, %.1f compiling",
      spent_.probing, static_cast<double>(c.start_ns) / 1e9, static_cast<double>(c.waited_ns) / 1e9,
      static_cast<long long>(c.bursts), static_cast<double>(c.burst_ns) / 1e9, spent_.making,
      spent_.comparing, spent_.compiling);
  return text;
}

// ---- baselines

ProbeJob DeviceEvaluator::job_for(const Trial& t, const dispatch::Problem& problem) const {
  ProbeJob j;
  const size_t axes = spec_.definition->schema().axes.size();
  j.axes.assign(problem.axes.begin(), problem.axes.begin() + static_cast<std::ptrdiff_t>(axes));
  j.name = spec_.definition->name();
  if (t.candidate == nullptr) return j;
  j.name = t.candidate->source.kernel_name;
  j.cubin = t.cubin->bytes;
  j.plan = *t.candidate->source.cuda;
  return j;
}

// A sample is as many calls as make it long beside the clock's steps, each on its own copy of the arguments
// as far as memory allows: what a call finds in the L2 is then what the last such call left there.
ProbeJob::Race DeviceEvaluator::race_of(const TimedProblem& p, bool cold, int rounds) const {
  ProbeJob::Race r;
  r.definition_json = definition_json_;
  r.rounds = rounds;
  r.flush_bytes = cold ? 2 * device_.l2_bytes : 0;
  r.pacer = pacer_;
  if (p.fallback_ns > 0 && !cold)
    r.calls = std::clamp(static_cast<int>(kSampleNs / p.fallback_ns), 1, kSampleCallsMax);
  int64_t bytes = 0;
  for (const auto& a : p.args) bytes += a.bytes;
  r.copies = static_cast<int>(std::clamp<int64_t>(kCopiesBytesMax / std::max<int64_t>(bytes, 1), 1, 2));
  return r;
}

Status DeviceEvaluator::ensure_baselines() {
  if (have_baselines_) return baseline_status_;
  have_baselines_ = true;
  std::vector<int> usable;
  for (int form = 0; form < spec_.op->fallback_count(); ++form)
    if (spec_.op->fallback_applies(form, *spec_.definition)) usable.push_back(form);
  for (TimedProblem& p : problems_) begin_fill(p, case_id(p.problem, 0).seed);
  for (TimedProblem& p : problems_) {
    baseline_status_ = fill(p, case_id(p.problem, 0).seed);
    if (!baseline_status_.ok()) return baseline_status_;
    std::map<int, std::vector<double>> ns;
    baseline_status_ = time_forms(p, kFirstRounds, &usable, &ns);
    std::vector<int> forms = usable;
    for (bool first : {true, false}) {
      if (!first) baseline_status_ = time_forms(p, kBaselineRounds - kFirstRounds, &forms, &ns);
      if (!baseline_status_.ok()) return baseline_status_;
      const auto best = std::min_element(forms.begin(), forms.end(),
                                         [&](int a, int b) { return median_of(ns[a]) < median_of(ns[b]); });
      p.form = *best;
      p.fallback_ns = median_of(ns[*best]);
      std::erase_if(forms, [&](int form) { return median_of(ns[form]) > p.fallback_ns * kFarBehind; });
      if (forms.size() == 1) break;
    }
  }
  return {};
}

// All of `forms` in turns. Where one of them cannot run here (the host's own convolution, say), each alone, and those that
// cannot are taken out of `forms`. An error: none can.
Status DeviceEvaluator::time_forms(const TimedProblem& p, int rounds, std::vector<int>* forms,
                                   std::map<int, std::vector<double>>* ns) {
  const auto time = [&](const std::vector<int>& some) -> Status {
    ProbeJob j = job_for({}, p.problem);
    j.args = p.args;
    j.race = race_of(p, p.cold, rounds);
    j.race.forms = some;
    const ProbeOutcome o = run_probe(j);
    if (o.end != ProbeEnd::kRan || o.form_us.empty())
      return dispatch::device_error("library forms of " + p.problem.to_string() + ": " +
                                    probe_end_name(o.end) + ": " + o.text.substr(0, o.text.find('\n')));
    for (const auto& round : o.form_us)
      for (size_t f = 0; f < some.size(); ++f) (*ns)[some[f]].push_back(round[f] * 1e3);
    return {};
  };
  Status s = time(*forms);
  if (s.ok() || forms->size() == 1) return s;
  ns->clear();
  std::erase_if(*forms, [&](int form) {
    const Status alone = time({form});
    if (!alone.ok()) s = alone;
    return !alone.ok();
  });
  return forms->empty() ? s : Status();
}

dispatch::Result<std::vector<ProblemBaseline>> DeviceEvaluator::baselines() {
  NICHE_RETURN_IF_ERROR(ensure_baselines());
  std::vector<ProblemBaseline> list;
  for (const TimedProblem& p : problems_)
    list.push_back(
        {p.var_axes, p.weight, p.cold, p.form, std::string(spec_.op->fallback_name(p.form)), p.fallback_ns});
  return list;
}

// The library form against itself must not be FASTER.
Status DeviceEvaluator::self_test() {
  NICHE_RETURN_IF_ERROR(ensure_baselines());
  TimedProblem& p = problems_[0];
  for (int attempt = 0; attempt < 2; ++attempt) {
    ProbeJob j = job_for({}, p.problem);
    j.args = p.args;
    j.race = race_of(p, p.cold, kSelfTestPairs);
    j.race.forms = {p.form, p.form};
    const ProbeOutcome o = run_probe(j);
    if (o.end != ProbeEnd::kRan)
      return dispatch::device_error("timing self-test: " + std::string(probe_end_name(o.end)) + ": " +
                                    o.text);
    SignTest test(options_.margin);
    for (const auto& round : o.form_us) test.add(round[0], round[1]);
    if (test.e_faster_max() < 1 / options_.alpha) return {};
  }
  return dispatch::device_error("timing self-test: a library form is FASTER than itself");
}

// ---- candidates

std::string DeviceEvaluator::why_refused(const Candidate& c) const {
  const KernelSource& s = c.source;
  if (s.text.empty()) return "empty source";
  if (s.text.size() > kSourceBytesMax) return "source of " + std::to_string(s.text.size()) + " bytes";
  if (s.cuda == nullptr) return "no launch plan for a device";
  const size_t phases = s.cuda->phases.size();
  if (phases == 0 || phases > dispatch::CudaLaunchPlan::kPhasesMax)
    return std::to_string(phases) + " phases: 1 to " + std::to_string(dispatch::CudaLaunchPlan::kPhasesMax) +
           " are possible";
  if (s.cuda->workspace_bytes < 0 || s.cuda->workspace_bytes > options_.memory_bytes_max / 4)
    return "workspace of " + std::to_string(s.cuda->workspace_bytes) + " bytes: too many";
  const int a = s.limits.alignment_bytes;
  if (a < 1 || a > kDeviceAlignment || (a & (a - 1)) != 0)
    return "alignment of " + std::to_string(a) + " bytes: 1 to 256, a power of two";
  const dispatch::Guard limits = limits_of(s);
  const auto points = seen_points();
  if (std::none_of(points.begin(), points.end(), [&](const VarAxes& p) { return guard_holds(limits, p); }))
    return "its limits hold none of the session's problems";
  for (const TimedProblem& p : problems_)
    for (const dispatch::CudaPhase& phase : s.cuda->phases)
      if (guard_holds(limits, p.var_axes) && cuda_blocks_wanted(phase, p.problem.axes.data()) < 0)
        return "the grid of " + phase.symbol + " at " + p.problem.to_string() +
               " is more than 2147483647 blocks";
  return "";
}

// In threads: after the oracle's fork there is none that they could harm.
void DeviceEvaluator::compile(std::vector<Trial>& trials) {
  const Spending spending(&spent_.compiling);
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next.fetch_add(1); i < trials.size(); i = next.fetch_add(1)) {
      const KernelSource& s = trials[i].candidate->source;
      if (!compile_on_) {
        trials[i].cubin = dispatch::busy("not compiled: the time was up");
        continue;
      }
      trials[i].cubin = toolchain_->compile(s.kernel_name, s.text, device_.arch);
    }
  };
  std::vector<std::thread> threads;
  const auto count = std::min(trials.size(), static_cast<size_t>(std::max(1, device_.host_threads)));
  for (size_t i = 1; i < count; ++i) threads.emplace_back(work);
  work();
  for (std::thread& t : threads) t.join();
}

void DeviceEvaluator::reject(Verdict& v, Gate gate, const std::string& reason) const {
  v.status = VerdictStatus::kRejected;
  v.failed_gate = gate;
  v.reason = reason;
}
void DeviceEvaluator::undecided(Verdict& v, Gate gate, const std::string& reason) const {
  reject(v, gate, reason);
  v.status = VerdictStatus::kAmbiguous;
}

// True: it ran. Else the verdict says what became of it, at `gate` or where the probe says.
bool DeviceEvaluator::take_outcome(const ProbeOutcome& o, Gate gate, Verdict* v) const {
  if (o.end == ProbeEnd::kRan) return true;
  const Verdict found = o.verdict();
  v->status = found.status;
  v->failed_gate = o.end == ProbeEnd::kRefused ? found.failed_gate : gate;
  v->reason = found.reason;
  return false;
}

}  // namespace niche::evolve::judge

namespace niche::evolve {

dispatch::Result<std::unique_ptr<Evaluator>> make_device_evaluator(EvaluatorSpec spec,
                                                                   EvaluatorOptions options,
                                                                   DeviceEvaluatorOptions device) {
  if (!spec.op || !spec.definition) return dispatch::invalid("evaluator: no operator or no definition");
  if (spec.definition->schema().op != spec.op->schema()->op)
    return dispatch::invalid("evaluator: definition " + spec.definition->name() + " is not one of operator " +
                             spec.op->schema()->op);
  if (!spec.op->runs_on_device())
    return dispatch::unsupported("operator '" + spec.op->schema()->op +
                                 "': its library forms read host memory alone");
  if (spec.problems.empty() || spec.problems.size() > 64)
    return dispatch::invalid("evaluator: " + std::to_string(spec.problems.size()) +
                             " problems, 1 to 64 are possible");
  if (device.permits == nullptr || device.clock == nullptr)
    return dispatch::invalid("evaluator: no permits or no clock");
  auto e = std::make_unique<judge::DeviceEvaluator>(std::move(spec), std::move(options), std::move(device));
  NICHE_RETURN_IF_ERROR(e->start());
  return std::unique_ptr<Evaluator>(std::move(e));
}

}  // namespace niche::evolve
