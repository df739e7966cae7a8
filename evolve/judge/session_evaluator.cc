#include "evolve/judge/session_evaluator.h"
#include "evolve/judge/failed_case.h"

#include <algorithm>
#include <random>

#include "dispatch/base/hash.h"
#include "evolve/judge/host_args.h"
#include "evolve/judge/pair_verdict.h"
#include "evolve/sign_test.h"
#include "evolve/toolchain/source_check.h"

namespace niche::evolve::judge {
namespace {

using dispatch::Status;

// Problems that are timed; the rest of a session's are covered by the box around them.
constexpr size_t kTimedProblemsMin = 4;
constexpr int64_t kOracleCacheBytes = int64_t{512} << 20;
constexpr size_t kSourceBytesMax = 1 << 20;
constexpr int kSelfTestPairs = 16;

uint64_t entropy() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace

SessionEvaluator::SessionEvaluator(EvaluatorSpec spec, EvaluatorOptions options, BlockClock clock)
    : spec_(std::move(spec)), options_(std::move(options)), clock_(std::move(clock)) {}

SessionEvaluator::~SessionEvaluator() { oracle_.reset(); }

dispatch::Result<std::unique_ptr<Evaluator>> SessionEvaluator::make(EvaluatorSpec spec,
                                                                    EvaluatorOptions options,
                                                                    BlockClock clock) {
  if (!spec.op || !spec.definition) return dispatch::invalid("evaluator: no operator or no definition");
  if (spec.definition->schema().op != spec.op->schema()->op)
    return dispatch::invalid("evaluator: definition " + spec.definition->name() + " is not one of operator " +
                             spec.op->schema()->op);
  if (spec.problems.empty() || spec.problems.size() > 64)
    return dispatch::invalid("evaluator: " + std::to_string(spec.problems.size()) +
                             " problems, 1 to 64 are possible");
  auto e = std::unique_ptr<SessionEvaluator>(
      new SessionEvaluator(std::move(spec), std::move(options), std::move(clock)));
  NICHE_RETURN_IF_ERROR(e->start());
  return std::unique_ptr<Evaluator>(std::move(e));
}

Status SessionEvaluator::start() {
  if (options_.seed == 0) options_.seed = entropy();
  if (options_.scratch_dir.empty()) {
    auto scratch = ScratchDir::make();
    if (!scratch.ok()) return scratch.status();
    own_scratch_ = std::move(*scratch);
    options_.scratch_dir = own_scratch_.path();
  }

  std::vector<VarAxes> points;
  std::vector<double> weights;
  for (const SeenProblem& s : spec_.problems) {
    points.push_back(s.var_axes);
    weights.push_back(s.weight);
  }
  for (const VarAxes& p : points)
    if (p.size() != spec_.definition->var_axes().size())
      return dispatch::invalid(spec_.definition->name() + ": a problem with " + std::to_string(p.size()) +
                               " axes, " + std::to_string(spec_.definition->var_axes().size()) +
                               " are variable");
  // The heaviest problem and both ends of each axis: what a Guard's hull needs. More would only delay a first
  // kernel.
  const size_t timed = std::max(kTimedProblemsMin, 1 + 2 * spec_.definition->var_axes().size());
  for (size_t i : representative(points, weights, timed)) {
    BenchProblem b;
    b.var_axes = points[i];
    b.weight = weights[i];
    b.cold = spec_.problems[i].cold;
    auto problem = make_problem(*spec_.op, spec_.definition, points[i]);
    if (!problem.ok()) return problem.status();
    b.problem = *problem;
    problems_.push_back(std::move(b));
  }

  auto arena = SharedArena::make(options_.memory_bytes_max);
  if (!arena.ok()) return arena.status();
  arena_ = std::move(*arena);
  const ChildStart child_start = options_.child_start;
  auto oracle = Oracle::make(
      spec_.op, spec_.definition, arena_.get(),
      [child_start] {
        if (child_start) child_start(1);
      },
      kOracleCacheBytes, options_.defences_off);
  if (!oracle.ok()) return oracle.status();
  oracle_ = std::move(*oracle);
  CompileLimits limits;
  limits.read_source = !options_.defences_off.has(Defence::kSource);
  limits.keep_going = options_.keep_going;
  auto toolchain = CppToolchain::find(options_.compiler, options_.scratch_dir, limits);
  if (!toolchain.ok()) return toolchain.status();
  toolchain_ = std::move(*toolchain);
  bench_ = std::make_unique<Bench>(*spec_.op, *spec_.definition, arena_.get(), oracle_.get(),
                                   options_.seed ^ 0xb, clock_);
  verifier_ = std::make_unique<Verifier>(*spec_.op, spec_.definition, arena_.get(), oracle_.get());
  return {};
}

std::string SessionEvaluator::describe() const {
  return toolchain_->version() + "; compiler: " + toolchain_->confinement() +
         (confinement_.empty() ? "" : "; cells: " + confinement_);
}

Status SessionEvaluator::ensure_baselines() {
  if (have_baselines_) return baseline_status_;
  have_baselines_ = true;
  auto cell = make_cell({}, {});
  if (!cell.ok()) return baseline_status_ = cell.status();
  for (BenchProblem& p : problems_) {
    baseline_status_ = bench_->fill(p);
    if (baseline_status_.ok()) baseline_status_ = bench_->find_best_form(**cell, p);
    if (!baseline_status_.ok()) return baseline_status_;
  }
  return {};
}

dispatch::Result<std::vector<ProblemBaseline>> SessionEvaluator::baselines() {
  NICHE_RETURN_IF_ERROR(ensure_baselines());
  std::vector<ProblemBaseline> list;
  for (const BenchProblem& p : problems_)
    list.push_back(
        {p.var_axes, p.weight, p.cold, p.form, std::string(spec_.op->fallback_name(p.form)), p.fallback_ns});
  return list;
}

Status SessionEvaluator::self_test() {
  NICHE_RETURN_IF_ERROR(ensure_baselines());
  BenchProblem& p = problems_[0];
  // Chance alone calls A faster than A once in a hundred; twice in a row is the harness.
  for (const double delay : {0.0, 0.05}) {
    int wrong = 0;
    for (int attempt = 0; attempt < 2 && wrong == attempt; ++attempt) {
      auto cell = make_cell({}, {});
      if (!cell.ok()) return cell.status();
      auto pairs = bench_->measure_self(**cell, p, delay, kSelfTestPairs);
      if (!pairs.ok()) return pairs.status();
      SignTest test(options_.margin);
      const bool use_all = PairVerdict::all_count(*pairs);
      for (const PairSample& x : *pairs)
        if (!x.dropped || use_all) test.add(x.fallback_ns, x.kernel_ns);
      wrong += test.e_faster_max() >= 1 / options_.alpha;
    }
    if (wrong == 2)
      return dispatch::device_error(std::string("timing self-test: a library form ") +
                                    (delay == 0 ? "is FASTER than itself" : "made 5 % slower is FASTER"));
  }
  return {};
}

dispatch::Guard SessionEvaluator::limits_of(const KernelSource& source) const {
  dispatch::Guard g = source.limits;
  const int count = static_cast<int>(spec_.definition->var_axes().size());
  // A source without limits of its own can run everything.
  for (int i = g.var_count; i < count; ++i) g.var[static_cast<size_t>(i)] = {1, INT64_MAX / 2, 1};
  g.var_count = count;
  return g;
}

std::vector<VarAxes> SessionEvaluator::seen_points() const {
  std::vector<VarAxes> points;
  for (const SeenProblem& s : spec_.problems) points.push_back(s.var_axes);
  return points;
}

std::string SessionEvaluator::why_refused(const Candidate& c) const {
  const KernelSource& s = c.source;
  if (s.text.empty()) return "empty source";
  if (s.text.size() > kSourceBytesMax) return "source of " + std::to_string(s.text.size()) + " bytes";
  if (s.plan.phases.empty() || s.plan.phases.size() > 3)
    return std::to_string(s.plan.phases.size()) + " phases: 1 to 3 are possible";
  const int axes = static_cast<int>(spec_.definition->schema().axes.size());
  for (const dispatch::Phase& p : s.plan.phases) {
    if (p.symbol.empty()) return "a phase without a symbol";
    for (const dispatch::TaskFactor& f : p.factors)
      if (f.axis < 0 || f.axis >= axes || f.divisor < 1)
        return "phase '" + p.symbol + "': a task factor out of range";
  }
  if (s.plan.packed_bytes < 0 || s.plan.workspace_bytes < 0 ||
      s.plan.packed_bytes > options_.memory_bytes_max / 4 ||
      s.plan.workspace_bytes > options_.memory_bytes_max / 4)
    return "workspace of " + std::to_string(s.plan.workspace_bytes) + " or packed constants of " +
           std::to_string(s.plan.packed_bytes) + " bytes: too many";
  if (s.plan.pack_symbol.empty() != (s.plan.packed_bytes == 0))
    return "a pack entry needs packed_bytes, and the reverse";
  const int a = s.limits.alignment_bytes;
  if (a < 1 || a > 64 || (a & (a - 1)) != 0)
    return "alignment of " + std::to_string(a) + " bytes: 1 to 64, a power of two";
  for (int i = 0; i < s.limits.var_count; ++i)
    if (s.limits.var[static_cast<size_t>(i)].multiple_of < 1) return "a multiple below 1 in its limits";
  for (const std::string& f : s.flags)
    if (!CppToolchain::flag_allowed(f)) return "compiler flag '" + f + "' is not on the allow-list";
  const auto points = seen_points();
  const dispatch::Guard limits = limits_of(s);
  if (std::none_of(points.begin(), points.end(), [&](const VarAxes& p) { return guard_holds(limits, p); }))
    return "its limits hold none of the session's problems";
  if (options_.defences_off.has(Defence::kSource)) return "";
  const Status checked = check_source("kernel", s.text);
  return checked.ok() ? "" : checked.message();
}

void SessionEvaluator::reject(Verdict& v, Gate gate, const std::string& reason, const Finding& at) const {
  v.status = VerdictStatus::kRejected;
  v.failed_gate = gate;
  v.reason = reason;
  if (at.id) v.failed_case = failed_case(*at.id, *spec_.definition);
}

void SessionEvaluator::undecided(Verdict& v, Gate gate, const std::string& reason) const {
  reject(v, gate, reason);
  v.status = VerdictStatus::kAmbiguous;
}

void SessionEvaluator::refuse(Verdict& v, const BuiltCandidate& built) const {
  built.undecided ? undecided(v, built.gate, built.reason) : reject(v, built.gate, built.reason);
}

dispatch::Result<std::unique_ptr<Cell>> SessionEvaluator::make_cell(const Build& build,
                                                                    std::span<const Candidate> candidates) {
  CellSpec s;
  s.op = spec_.op;
  s.definition = spec_.definition;
  s.arena = arena_.get();
  s.child_start = options_.child_start;
  s.threads = std::max(1, spec_.target.threads);
  s.confine = options_.confine && !options_.defences_off.has(Defence::kWalls);
  s.defences_off = options_.defences_off;
  for (const auto& o : build.objects) s.objects.emplace_back(o);
  // One entry a candidate, so that indices agree; a refused one has no phases and is never run.
  for (size_t i = 0; i < candidates.size(); ++i) {
    const int object = build.candidates[i].object;
    s.kernels.push_back(
        {std::max(0, object), object >= 0 ? candidates[i].source.plan : dispatch::LaunchPlan()});
  }
  if (s.objects.empty()) s.kernels.clear();
  auto cell = Cell::make(s);
  if (cell.ok()) confinement_ = (*cell)->confinement();
  return cell;
}

double SessionEvaluator::hang_seconds() const {
  double slowest = 0;
  for (const BenchProblem& p : problems_) slowest = std::max(slowest, p.fallback_ns);
  return options_.hang_cpu_seconds + 20 * slowest * 1e-9;
}

std::vector<CaseId> SessionEvaluator::cases(const KernelSource& source, const dispatch::Guard& box) const {
  const auto points = correctness_points(*spec_.op, spec_.definition, source.plan, box, options_.seed);
  const int distributions =
      options_.defences_off.has(Defence::kDistributions) ? 1 : std::max(1, spec_.op->distributions());
  std::vector<CaseId> list;
  const auto add = [&](const VarAxes& point, int distribution) {
    auto p = make_problem(*spec_.op, spec_.definition, point);
    if (!p.ok()) return;
    CaseId id;
    id.axes = p->axes;
    id.distribution = distribution;
    // Secret, and the same for every candidate of the session: the oracle computes each reference once.
    std::string key = p->to_string();
    id.seed =
        dispatch::mix64(options_.seed ^ dispatch::hash_bytes(key, static_cast<uint64_t>(distribution) + 1));
    if (std::find(list.begin(), list.end(), id) == list.end()) list.push_back(id);
  };
  const size_t unseen = options_.defences_off.has(Defence::kUnseenPoints) ? 0 : points.size();
  for (size_t i = 0; i < unseen; ++i) {
    add(points[i], static_cast<int>(i % static_cast<size_t>(distributions)));
    // Every distribution on the smallest problem and on one in the middle.
    if (i != 0 && i != points.size() / 2) continue;
    for (int d = 0; d < distributions; ++d) add(points[i], d);
  }
  for (const BenchProblem& p : problems_) {
    if (!guard_holds(box, p.var_axes)) continue;
    for (int d = 0; d < distributions; ++d) add(p.var_axes, d);
    break;
  }
  return list;
}

}  // namespace niche::evolve::judge

namespace niche::evolve {

dispatch::Result<std::unique_ptr<Evaluator>> make_evaluator(EvaluatorSpec spec, EvaluatorOptions options) {
#if defined(__x86_64__) && defined(__linux__)
  return judge::SessionEvaluator::make(std::move(spec), std::move(options));
#else
  (void)spec, (void)options;
  return dispatch::unsupported("evaluator: only x86-64 Linux is supported");
#endif
}

}  // namespace niche::evolve
