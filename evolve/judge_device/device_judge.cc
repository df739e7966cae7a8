// DeviceEvaluator: the gates (device_evaluator.h).
#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <thread>

#include "dispatch/base/format.h"
#include "dispatch/base/hash.h"
#include "evolve/judge/host_args.h"
#include "evolve/judge_device/device_evaluator_impl.h"

namespace niche::evolve::judge {
namespace {

using dispatch::Status;

constexpr size_t kJudgedMax = 4096;
constexpr std::chrono::milliseconds kCompilePoll{50};
constexpr size_t kScreenedProblems = 3;
constexpr int kScreenPairs = 5;  // beside the library form and all other candidates of the batch
constexpr double kClearlySlow = 0.93;
constexpr int kBatchPairs =
    12;  // 9 that all agree are evidence enough for FASTER, 6 for SLOWER: the race ends there
constexpr int kOtherStatePairs = 24;
constexpr double kNotSlowerEvidence =
    20;  // for FASTER in the other cache state: all that it must not be is slower
constexpr size_t kRepeatedCases = 4;  // run twice, for determinism

std::string number(double v) { return dispatch::format("%.3g", v); }

double ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::vector<Verdict> DeviceEvaluator::screen(std::span<const Candidate> candidates) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<Verdict> verdicts(candidates.size());
  const Status baseline = ensure_baselines();
  if (!baseline.ok()) {
    for (Verdict& v : verdicts) undecided(v, Gate::kScreen, baseline.message());
    return verdicts;
  }
  std::vector<Trial> trials;
  std::vector<size_t> index;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const std::string why = why_refused(candidates[i]);
    if (!why.empty()) {
      reject(verdicts[i], Gate::kParse, why);
      continue;
    }
    Trial t;
    t.candidate = &candidates[i];
    t.limits = limits_of(candidates[i].source);
    t.box = hull(seen_points(), t.limits);
    trials.push_back(std::move(t));
    index.push_back(i);
  }
  {
    const auto going = [this] { return !options_.keep_going || options_.keep_going(); };
    compile_on_ = going();
    auto compiling = std::async(std::launch::async, [&] { compile(trials); });
    if (!self_tested_) self_test_status_ = self_test(), self_tested_ = true;
    while (compiling.wait_for(kCompilePoll) != std::future_status::ready)
      compile_on_ = compile_on_ && going();
    compile_on_ = true;
  }
  const double compile_ms = ms_since(start) / static_cast<double>(std::max<size_t>(1, trials.size()));
  Budget until{options_.screen_seconds_max, {}};
  const auto began = std::chrono::steady_clock::now();
  std::vector<Screened> list;
  for (size_t k = 0; k < trials.size(); ++k) {
    Verdict& v = verdicts[index[k]];
    v.sandbox = "process";
    v.compile_ms = compile_ms;
    if (trials[k].cubin.ok())
      list.push_back({&trials[k], &v});
    else if (trials[k].cubin.status().code() == dispatch::Code::kBusy)
      undecided(v, Gate::kCompile, trials[k].cubin.status().message());
    else
      reject(v, Gate::kCompile, trials[k].cubin.status().message());
  }
  screen_together(list, until);
  const double each_ms = ms_since(began) / static_cast<double>(std::max<size_t>(1, list.size()));
  for (Screened& s : list) {
    Verdict& v = *s.verdict;
    v.evaluate_ms = each_ms;
    if (!s.alive) continue;
    v.status = VerdictStatus::kAmbiguous;
    v.failed_gate = Gate::kNone;
    v.guard = s.trial->box;
    v.guard.alignment_bytes = s.trial->candidate->source.limits.alignment_bytes;
    if (v.timing.empty()) {
      undecided(v, Gate::kScreen, "no problem of the session was timed");
    } else if (s.library / s.kernel < kClearlySlow) {
      v.status = VerdictStatus::kNotFaster;
      v.failed_gate = Gate::kScreen;
      v.reason = "clearly slower than " + v.timing[0].fallback + ": " + number(s.library / s.kernel) + "x";
    }
  }
  return verdicts;
}

// Stage by stage, so that all candidates share a stage's permits and the library's samples. The smallest problem first:
// it costs little and shows most of what is wrong. Then the heaviest one is checked before it is timed; the others are by
// judge().
void DeviceEvaluator::screen_together(std::vector<Screened>& list, Budget& until) {
  const auto alive = [&](const std::function<bool(const Screened&)>& also) {
    std::vector<Screened*> some;
    for (Screened& s : list)
      if (s.alive && also(s)) some.push_back(&s);
    return some;
  };
  const auto out_of_time = [&] {
    if (!stop(until)) return false;
    for (Screened* s : alive([](const Screened&) { return true; }))
      undecided(*s->verdict, Gate::kScreen, "the time for the screen was up before it was timed"),
          s->alive = false;
    return true;
  };
  std::map<VarAxes, std::vector<Screened*>> smallest;  // candidates' limits differ, and so do their problems
  for (Screened& s : list) {
    const auto points = correctness_points(*spec_.op, spec_.definition, s.trial->candidate->source.plan,
                                           s.trial->box, options_.seed);
    if (points.empty())
      reject(*s.verdict, Gate::kSmoke, "no problem to test it on"), s.alive = false;
    else
      smallest[points.front()].push_back(&s);
  }
  for (const auto& [point, some] : smallest) {
    if (out_of_time()) return;
    auto problem = make_problem(*spec_.op, spec_.definition, point);
    if (problem.ok()) {
      verify_together(some, *problem, Gate::kSmoke);
      continue;
    }
    for (Screened* s : some) reject(*s->verdict, Gate::kSmoke, problem.status().message()), s->alive = false;
  }
  for (const TimedProblem& p : problems_) {
    const auto takes = [&](const Screened& s) {
      return s.verdict->timing.size() < kScreenedProblems && guard_holds(s.trial->limits, p.var_axes);
    };
    if (out_of_time()) return;
    verify_together(alive([&](const Screened& s) { return takes(s) && s.verdict->timing.empty(); }),
                    p.problem, Gate::kCorrectness);
    if (out_of_time()) return;
    time_together(p, alive(takes));
  }
}

void DeviceEvaluator::time_together(const TimedProblem& p, std::span<Screened* const> trials) {
  if (trials.empty()) return;
  const auto pairs = race_together(trials, p, kScreenPairs);
  for (size_t k = 0; k < trials.size(); ++k) {
    std::vector<double> a, b;
    for (const PairSample& x : pairs[k]) a.push_back(x.fallback_ns), b.push_back(x.kernel_ns);
    if (a.empty()) continue;
    const RatioInterval ratio = bootstrap_ratio(a, b, options_.seed, 200);
    PointTiming out;
    out.var_axes = p.var_axes;
    out.fallback = spec_.op->fallback_name(p.form);
    out.fallback_ns = median_of(a), out.kernel_ns = median_of(b);
    out.speedup = ratio.median, out.ci_low = ratio.low, out.ci_high = ratio.high;
    out.pairs = static_cast<int>(a.size());
    trials[k]->verdict->timing.push_back(out);
    trials[k]->library += p.weight;
    trials[k]->kernel += p.weight / ratio.median;
    if (trials[k]->verdict->timing.size() == 1) add_digest(*trials[k]->trial, trials[k]->verdict);
  }
}

Judgement DeviceEvaluator::judge(const Candidate& candidate) {
  const auto start = std::chrono::steady_clock::now();
  Judgement j;
  Verdict& v = j.verdict;
  v.sandbox = "process";
  j.compiler = toolchain_->version() + " for " + device_.arch;
  const auto finish = [&]() -> Judgement {
    v.evaluate_ms = ms_since(start);
    return std::move(j);
  };
  if (const Status s = ensure_baselines(); !s.ok()) return undecided(v, Gate::kSmoke, s.message()), finish();
  if (!self_tested_) self_test_status_ = self_test(), self_tested_ = true;
  if (!self_test_status_.ok()) return undecided(v, Gate::kTiming, self_test_status_.message()), finish();
  const std::string why = why_refused(candidate);
  if (!why.empty()) return reject(v, Gate::kParse, why), finish();
  std::vector<Trial> one(1);
  Trial& t = one[0];
  t.candidate = &candidate;
  t.limits = limits_of(candidate.source);
  if (candidate.earlier && candidate.earlier->compiler == j.compiler) t.earlier = &candidate.earlier->verdict;
  std::vector<VarAxes> points = seen_points();
  if (t.earlier != nullptr) add_corners(*t.earlier, t.limits, &points);
  t.box = hull(points, t.limits);
  compile(one);
  v.compile_ms = ms_since(start);
  if (!t.cubin.ok()) return reject(v, Gate::kCompile, t.cubin.status().message()), finish();
  j.artefact = t.cubin->bytes;
  const uint64_t code =
      dispatch::hash_bytes({reinterpret_cast<const char*>(t.cubin->bytes.data()), t.cubin->bytes.size()});
  const auto judged = judged_.find(code);
  if (judged != judged_.end() && judged->second != candidate.id)
    return reject(v, Gate::kDuplicate, "the same machine code as '" + judged->second + "', judged before"),
           finish();
  Budget until{options_.judge_seconds_max, {}};
  if (judge_correctness(t, until, &v) && judge_timing(t, until, &v) && judge_other_state(t, until, &v))
    judge_confirm(t, until, &v);
  if (v.status != VerdictStatus::kAmbiguous && judged_.size() < kJudgedMax)
    judged_.emplace(code, candidate.id);
  return finish();
}

bool DeviceEvaluator::judge_correctness(Trial& t, Budget& until, Verdict* v) {
  const auto list = cases(t.candidate->source, t.box);
  if (list.empty()) return reject(*v, Gate::kSmoke, "no problem to test it on"), false;
  // Repeated ones are spread over the cases, which come smallest first.
  const size_t step = std::max<size_t>(1, list.size() / kRepeatedCases);
  std::vector<CaseRun> runs;
  for (size_t i = 0; i < list.size(); ++i) runs.push_back({list[i], i % step == 0 ? 2 : 1});
  if (!verify(t, runs, &until, v)) return false;
  v->guard = t.box;
  v->guard.alignment_bytes = t.candidate->source.limits.alignment_bytes;
  return true;
}

void DeviceEvaluator::add_digest(const Trial& t, Verdict* v) {
  if (v->timing.empty() || !device_.peaks.known()) return;
  v->digest = digest_of(t, problem_of(v->timing.front()), v->timing.front().kernel_ns);
}

Digest DeviceEvaluator::digest_of(const Trial& t, const TimedProblem& p, double kernel_ns) const {
  const KernelSource& s = t.candidate->source;
  const dispatch::Cost cost = spec_.op->cost(p.problem);
  // What rotates through a sample's calls, against what the L2 holds.
  const bool stays =
      !p.cold && cost.bytes * race_of(p, false, 1).copies < static_cast<double>(device_.peaks.l2_bytes);
  return compute_digest(device_.peaks, t.cubin->info, *s.cuda,
                        {p.problem, cost, kernel_ns, !stays, uses_matrix_pipe(s.text)});
}

// The heaviest problem that its limits hold.
dispatch::Result<Digest> DeviceEvaluator::profile(const Candidate& candidate) {
  if (device_.profiler.ncu.empty()) return dispatch::unsupported("no profiler is set up");
  NICHE_RETURN_IF_ERROR(ensure_baselines());
  if (const std::string why = why_refused(candidate); !why.empty()) return dispatch::invalid(why);
  std::vector<Trial> one(1);
  Trial& t = one[0];
  t.candidate = &candidate;
  t.limits = limits_of(candidate.source);
  compile(one);
  if (!t.cubin.ok()) return t.cubin.status();
  const auto p = std::find_if(problems_.begin(), problems_.end(),
                              [&](const TimedProblem& x) { return guard_holds(t.limits, x.var_axes); });
  if (p == problems_.end()) return dispatch::invalid("its limits hold none of the problems that are timed");
  NICHE_RETURN_IF_ERROR(fill(*p, p->seed != 0 ? p->seed : case_id(p->problem, 0).seed));
  ProbeJob job = job_for(t, p->problem);
  job.args = p->args;
  auto counters = run_profiler(device_.profiler, job, p->cold, options_.keep_going);
  if (!counters.ok()) return counters.status();
  // Stands for what the judge measured of it, where it did not.
  Digest d = digest_of(t, *p, counters->us > 0 ? counters->us * 1e3 : 0);
  d.counters = std::move(*counters);
  return d;
}

TimedProblem& DeviceEvaluator::problem_of(const PointTiming& timing) {
  return *std::find_if(problems_.begin(), problems_.end(),
                       [&](const TimedProblem& p) { return p.var_axes == timing.var_axes; });
}

bool DeviceEvaluator::collect(Trial& t, TimedProblem& p, bool cold, int pairs_max, double e_stop,
                              Budget& until, Verdict* v, PointTiming* out, double* e_value) {
  PairVerdict verdict(options_.margin, e_stop, options_.seed);
  while (verdict.taken() < pairs_max && !stop(until)) {
    const Pairs pairs = race(t, p, cold, std::min(kBatchPairs, pairs_max - verdict.taken()), e_stop);
    if (!take_outcome(pairs.outcome, Gate::kTiming, v)) {
      v->reason += " while it was timed at " + p.problem.to_string();
      return false;
    }
    if (pairs.samples.empty()) return undecided(*v, Gate::kTiming, "no time was taken"), false;
    if (verdict.taken() == 0 && !check_timed(p, pairs.outcome, v)) return false;
    if (verdict.add(pairs.samples) != VerdictStatus::kAmbiguous) break;
  }
  out->status = verdict.status();
  out->pairs = verdict.pairs();
  out->fallback_ns = verdict.fallback_ns();
  out->kernel_ns = verdict.kernel_ns();
  out->speedup = verdict.interval().median;
  out->ci_low = verdict.interval().low, out->ci_high = verdict.interval().high;
  *e_value = verdict.e_faster();
  return true;
}

bool DeviceEvaluator::judge_timing(Trial& t, Budget& until, Verdict* v) {
  double weights = 0, pooled = 0;
  bool any = false, ambiguous = false;
  for (TimedProblem& p : problems_) {
    if (!guard_holds(t.box, p.var_axes)) continue;
    PointTiming out;
    out.var_axes = p.var_axes;
    out.fallback = spec_.op->fallback_name(p.form);
    double e = 0;
    if (!collect(t, p, p.cold, options_.pairs_max, 1 / options_.alpha, until, v, &out, &e)) return false;
    v->timing.push_back(out);
    weights += p.weight;
    pooled += p.weight * e;
    any = any || out.status == VerdictStatus::kFaster;
    ambiguous = ambiguous || out.status == VerdictStatus::kAmbiguous;
  }
  v->e_value = weights > 0 ? pooled / weights : 0;
  add_digest(t, v);
  if (any) return true;
  v->failed_gate = Gate::kTiming;
  v->status = ambiguous ? VerdictStatus::kAmbiguous : VerdictStatus::kNotFaster;
  v->reason = v->timing.empty()
                  ? "no problem was timed"
                  : (ambiguous ? "not enough evidence: " : "not faster than the library: ") +
                        number(v->timing[0].speedup) + "x [" + number(v->timing[0].ci_low) + ", " +
                        number(v->timing[0].ci_high) + "] in " + std::to_string(v->timing[0].pairs) +
                        " pairs against " + v->timing[0].fallback;
  return false;
}

bool DeviceEvaluator::judge_other_state(Trial& t, Budget& until, Verdict* v) {
  for (PointTiming& point : v->timing) {
    if (point.status != VerdictStatus::kFaster || stop(until)) continue;
    TimedProblem& p = problem_of(point);
    PointTiming other;
    double e = 0;
    if (!collect(t, p, !p.cold, kOtherStatePairs, kNotSlowerEvidence, until, v, &other, &e)) return false;
    if (other.pairs == 0) continue;
    point.cold_speedup = other.fallback_ns / other.kernel_ns;
    if (other.status != VerdictStatus::kNotFaster || other.speedup >= 1 - options_.margin) continue;
    point.status = VerdictStatus::kNotFaster;
    v->reason = std::string("slower with a ") + (p.cold ? "warm" : "cold") + " L2 at " +
                p.problem.to_string() + ": " + number(point.cold_speedup) + "x";
  }
  if (std::any_of(v->timing.begin(), v->timing.end(),
                  [](const PointTiming& x) { return x.status == VerdictStatus::kFaster; }))
    return true;
  v->failed_gate = Gate::kTiming;
  v->status = VerdictStatus::kNotFaster;
  return false;
}

std::vector<JudgedPoint> DeviceEvaluator::judged_points(const Verdict& v) {
  std::vector<JudgedPoint> list;
  for (const PointTiming& x : v.timing) list.push_back({x.var_axes, problem_of(x).weight, x.status});
  return list;
}

// Other values. (A process of its own would cost each judgement the seconds that libtorch takes to open a device.)
bool DeviceEvaluator::judge_confirm(Trial& t, Budget& until, Verdict* v) {
  const int alignment = v->guard.alignment_bytes;
  dispatch::Guard box = best_box_with(judged_points(*v), t.earlier, t.box, t.limits);
  bool all = true;
  for (PointTiming& x : v->timing) {
    if (x.status != VerdictStatus::kFaster || !guard_holds(box, x.var_axes)) continue;
    TimedProblem& p = problem_of(x);
    const uint64_t fresh = dispatch::mix64(p.seed + 1);
    if (const Status s = fill(p, fresh); !s.ok()) return undecided(*v, Gate::kConfirm, s.message()), false;
    PointTiming again = x;
    double e = 0;
    if (!collect(t, p, p.cold, options_.pairs_max, 1 / options_.alpha, until, v, &again, &e)) return false;
    again.cold_speedup = x.cold_speedup;
    x = again;
    all = all && x.status == VerdictStatus::kFaster;
  }
  if (!all) box = best_box_with(judged_points(*v), t.earlier, t.box, t.limits);
  const bool any = std::any_of(v->timing.begin(), v->timing.end(), [&](const PointTiming& x) {
    return x.status == VerdictStatus::kFaster && guard_holds(box, x.var_axes);
  });
  if (!any) {
    v->failed_gate = Gate::kConfirm;
    v->status = stop(until) ? VerdictStatus::kAmbiguous : VerdictStatus::kNotFaster;
    v->reason = "faster at first, not on fresh data";
    return false;
  }
  v->status = VerdictStatus::kFaster;
  v->failed_gate = Gate::kNone;
  v->reason.clear();
  v->guard = box;
  v->guard.alignment_bytes = alignment;
  return true;
}

}  // namespace niche::evolve::judge
