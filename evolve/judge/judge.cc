// SessionEvaluator::judge: all gates for one candidate (session_evaluator.h).

#include <algorithm>
#include <chrono>
#include <cmath>

#include "dispatch/base/format.h"
#include "dispatch/base/hash.h"
#include "evolve/judge/pair_verdict.h"
#include "evolve/judge/session_evaluator.h"
#include "evolve/judgements.h"
#include "evolve/sign_test.h"

namespace niche::evolve::judge {
namespace {

constexpr size_t kJudgedMax = 4096;
constexpr int kBatchPairs = 12;
constexpr int kOtherStatePairs = 24;

std::string number(double v) { return dispatch::format("%.3g", v); }

std::string disagreement(const ClockCheck& check, int measurement) {
  const ClockCheck::Measurement& m = check.measurement(measurement);
  return "reported " + number(m.claimed.kernel_ns) + " ns a call against " + number(m.claimed.library_ns) +
         " ns of the library; the system's clock saw " + number(m.seen.kernel_ns) + " ns against " +
         number(m.seen.library_ns) + " ns";
}

// "1.02x [0.97, 1.1] in 400 pairs against rms_norm at M=16"
std::string measured(const PointTiming& t, const dispatch::Problem& p) {
  return number(t.speedup) + "x [" + number(t.ci_low) + ", " + number(t.ci_high) + "] in " +
         std::to_string(t.pairs) + " pairs against " + t.fallback + " at " + p.to_string();
}

}  // namespace

struct SessionEvaluator::Measured {
  PointTiming timing;
  double e_value = 0;
  ClaimedTimes claimed;
};

struct SessionEvaluator::Trial {
  const Candidate& candidate;
  Judgement judgement;
  Build build;
  std::unique_ptr<Cell> cell;
  dispatch::Guard limits, box;
  std::vector<double> e_values;  // one a timing
  Budget until{};
  int again = 0;  // judgements before this one that found neither way
  int pairs_max = 0;
  Gate gate = Gate::kTiming;         // or kConfirm: whose pairs are taken
  const Verdict* earlier = nullptr;  // of the candidate, where its compiler is this one
  Verdict& verdict() { return judgement.verdict; }
};

Judgement SessionEvaluator::judge(const Candidate& candidate) {
  const auto start = std::chrono::steady_clock::now();
  Trial t{candidate, {}, {}, nullptr, {}, {}, {}, {options_.judge_seconds_max, {}}};
  Verdict& v = t.verdict();
  t.judgement.compiler = toolchain_->version();
  const auto finish = [&]() -> Judgement {
    v.sandbox = confinement_;
    v.evaluate_ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    return std::move(t.judgement);
  };
  const dispatch::Status baseline = ensure_baselines();
  if (!baseline.ok()) {
    undecided(v, Gate::kSmoke, baseline.message());
    return finish();
  }
  if (!self_tested_) self_test_status_ = self_test(), self_tested_ = true;
  if (!self_test_status_.ok()) {
    undecided(v, Gate::kTiming, self_test_status_.message());
    return finish();
  }
  const std::string why = why_refused(candidate);
  if (!why.empty()) {
    reject(v, Gate::kParse, why);
    return finish();
  }
  t.limits = limits_of(candidate.source);
  if (candidate.earlier && candidate.earlier->compiler == t.judgement.compiler)
    t.earlier = &candidate.earlier->verdict;
  std::vector<VarAxes> points = seen_points();
  if (t.earlier != nullptr) add_corners(*t.earlier, t.limits, &points);
  t.box = hull(points, t.limits);
  t.build = build_candidates(*toolchain_, std::span(&candidate, 1), options_.defences_off);
  v.compile_ms = t.build.candidates[0].ms;
  if (t.build.candidates[0].object < 0) {
    refuse(v, t.build.candidates[0]);
    return finish();
  }
  t.judgement.artefact = t.build.objects[0];
  const auto judged = judged_.find(t.build.candidates[0].code_hash);
  if (judged != judged_.end() && judged->second != candidate.id) {
    reject(v, Gate::kDuplicate, "the same machine code as '" + judged->second + "', judged before");
    return finish();
  }
  auto cell = make_cell(t.build, std::span(&candidate, 1));
  if (!cell.ok()) {
    reject(v, Gate::kBinary, cell.status().message());
    return finish();
  }
  const uint64_t code = t.build.candidates[0].code_hash;
  const auto before = undecided_.find(code);
  t.again = before == undecided_.end() ? 0 : before->second;
  t.pairs_max = options_.pairs_max << std::min(t.again, kJudgementsMax - 1);
  t.cell = std::move(*cell);
  // Right, then faster, then not slower in the other cache state, then faster again on fresh data.
  if (judge_correctness(t) && judge_timing(t) && judge_other_state(t)) judge_confirm(t);
  if (v.status != VerdictStatus::kAmbiguous && judged_.size() < kJudgedMax)
    judged_.emplace(code, candidate.id);
  if (v.status == VerdictStatus::kAmbiguous && undecided_.size() < kJudgedMax) undecided_[code] = t.again + 1;
  return finish();
}

bool SessionEvaluator::judge_correctness(Trial& t) {
  Verdict& v = t.verdict();
  const auto list = cases(t.candidate.source, t.box);
  if (list.empty()) return reject(v, Gate::kSmoke, "no problem to test it on"), false;
  for (size_t i = 0; i < list.size(); ++i) {
    if (stop(t.until)) {
      undecided(v, Gate::kCorrectness,
                "time was up after " + std::to_string(i) + " of " + std::to_string(list.size()) + " cases");
      return false;
    }
    VerifyRequest r;
    r.kernel = 0;
    r.source = &t.candidate.source;
    r.id = list[i];
    r.form = problems_[0].form;
    r.cpu_seconds_max = hang_seconds();
    r.threads = spec_.target.threads > 1 && i % 2 == 1;
    auto found = verifier_->verify(*t.cell, r);
    if (!found.ok()) return undecided(v, Gate::kCorrectness, found.status().message()), false;
    v.max_error = std::max(v.max_error, found->max_error);
    v.rms_error = std::max(v.rms_error, found->rms_error);
    if (!found->ok) return reject(v, i == 0 ? Gate::kSmoke : found->gate, found->reason, *found), false;
    ++v.correctness_points;
  }
  v.guard = t.box;
  v.guard.alignment_bytes = t.candidate.source.limits.alignment_bytes;
  return true;
}

bool SessionEvaluator::collect(Trial& t, BenchProblem& p, bool cold, int pairs_max, Measured& m) {
  Verdict& v = t.verdict();
  PairVerdict verdict(options_.margin, 1 / options_.alpha, options_.seed);
  while (verdict.taken() < pairs_max && !stop(t.until)) {
    Bench::Request r;
    r.plan = &t.candidate.source.plan;
    r.pairs = std::min(kBatchPairs, pairs_max - verdict.taken());
    r.cold = cold;
    r.verify = !options_.defences_off.has(Defence::kTimedOutputs);
    r.cpu_seconds_max = hang_seconds() * (1 + r.pairs);
    auto batch = bench_->measure(*t.cell, p, r);
    if (!batch.ok()) return undecided(v, t.gate, batch.status().message()), false;
    if (batch->died)
      return reject(v, t.gate, t.cell->death().text + " while it was timed at " + p.problem.to_string()),
             false;
    if (!batch->finding.ok)
      return reject(v, t.gate, "a timed call was wrong: " + batch->finding.reason, batch->finding), false;
    if (verdict.add(batch->pairs) != VerdictStatus::kAmbiguous) break;
  }
  PointTiming& out = m.timing;
  out.var_axes = p.var_axes;
  out.fallback = spec_.op->fallback_name(p.form);
  out.status = verdict.status();
  out.pairs = verdict.pairs();
  out.fallback_ns = verdict.fallback_ns();
  out.kernel_ns = verdict.kernel_ns();
  out.speedup = verdict.interval().median;
  out.ci_low = verdict.interval().low, out.ci_high = verdict.interval().high;
  m.e_value = verdict.e_faster();
  m.claimed = verdict.claimed(cold);
  return true;
}

// The cell's times are its own word; the clock that the system keeps for it is not.
bool SessionEvaluator::collect_checked(Trial& t, BenchProblem& p, bool cold, int pairs_max, Checked what,
                                       Measured& m) {
  Verdict& v = t.verdict();
  ClockCheck check;
  for (;;) {
    m = {};
    if (!collect(t, p, cold, pairs_max, m)) return false;
    const bool doubted =
        what == Checked::kAll ? m.timing.pairs > 0 : m.timing.status == VerdictStatus::kFaster;
    if (!doubted || options_.defences_off.has(Defence::kClock)) return true;
    check.claim(m.claimed);
    auto next = ClockCheck::Next::kBlocks;
    const std::string at = " at " + p.problem.to_string();
    while (next == ClockCheck::Next::kBlocks) {
      if (stop(t.until))
        return undecided(v, t.gate, "time was up before the system's clock had seen enough" + at), false;
      if (!watch_blocks(t, p, check, next)) return false;
    }
    switch (next) {
      case ClockCheck::Next::kBelieved:
        return true;
      case ClockCheck::Next::kMeasureAgain:
        if (stop(t.until))
          return undecided(v, t.gate,
                           "time was up before it could be measured again: " + disagreement(check, 0) + at),
                 false;
        if (!begin_afresh(t, p)) return false;
        break;
      default:
        return reject(v, t.gate,
                      disagreement(check, 0) + at +
                          "; measured again in a new process: " + disagreement(check, 1)),
               false;
    }
  }
}

bool SessionEvaluator::watch_blocks(Trial& t, BenchProblem& p, ClockCheck& check, ClockCheck::Next& next) {
  Verdict& v = t.verdict();
  const double library_ns = check.measurement(check.measurements() - 1).claimed.library_ns;
  auto found = bench_->supervise(*t.cell, p, library_ns, std::max(1, spec_.target.threads),
                                 !options_.defences_off.has(Defence::kTimedOutputs), check.seen());
  if (!found.ok()) return undecided(v, t.gate, found.status().message()), false;
  if (check.seen().died)
    return reject(v, t.gate, t.cell->death().text + " while it was timed at " + p.problem.to_string()), false;
  if (!found->ok) return reject(v, t.gate, "an untimed call was wrong: " + found->reason, *found), false;
  next = check.saw();
  return true;
}

bool SessionEvaluator::begin_afresh(Trial& t, BenchProblem& p) {
  auto cell = make_cell(t.build, std::span(&t.candidate, 1));
  if (!cell.ok()) return reject(t.verdict(), t.gate, cell.status().message()), false;
  t.cell = std::move(*cell);
  if (const dispatch::Status filled = bench_->fill(p); !filled.ok())
    return undecided(t.verdict(), t.gate, filled.message()), false;
  return true;
}

bool SessionEvaluator::judge_timing(Trial& t) {
  Verdict& v = t.verdict();
  double weights = 0, pooled = 0;
  bool any = false;
  const BenchProblem* first = nullptr;  // that was timed
  const BenchProblem* open = nullptr;   // the first one without an answer
  for (BenchProblem& p : problems_) {
    if (!guard_holds(t.box, p.var_axes)) continue;
    // Judged again: on other values, as it is in another process.
    if (t.again > 0)
      if (const dispatch::Status filled = bench_->fill(p); !filled.ok())
        return undecided(v, Gate::kTiming, filled.message()), false;
    Measured m;
    if (!collect_checked(t, p, p.cold, t.pairs_max, Checked::kFaster, m)) return false;
    v.timing.push_back(m.timing);
    t.e_values.push_back(m.e_value);
    weights += p.weight;
    pooled += p.weight * m.e_value;
    any = any || m.timing.status == VerdictStatus::kFaster;
    if (first == nullptr) first = &p;
    if (open == nullptr && m.timing.status == VerdictStatus::kAmbiguous) open = &p;
  }
  v.e_value = weights > 0 ? pooled / weights : 0;
  if (any) return true;
  v.failed_gate = Gate::kTiming;
  v.status = open != nullptr ? VerdictStatus::kAmbiguous : VerdictStatus::kNotFaster;
  const BenchProblem* named = open != nullptr ? open : first;
  const auto point =
      std::find_if(v.timing.begin(), v.timing.end(), [&](auto& x) { return x.var_axes == named->var_axes; });
  v.reason = named == nullptr
                 ? "no problem was timed"
                 : (open != nullptr ? "not enough evidence: " : "not faster than the library: ") +
                       measured(*point, named->problem);
  return false;
}

bool SessionEvaluator::judge_other_state(Trial& t) {
  Verdict& v = t.verdict();
  for (PointTiming& point : v.timing) {
    if (point.status != VerdictStatus::kFaster || stop(t.until)) continue;
    auto p = std::find_if(problems_.begin(), problems_.end(),
                          [&](auto& x) { return x.var_axes == point.var_axes; });
    Measured m;
    // Blocks are warm: only a warm report can be held against them in full.
    if (p->cold ? !collect_checked(t, *p, false, kOtherStatePairs, Checked::kAll, m)
                : !collect(t, *p, true, kOtherStatePairs, m))
      return false;
    const PointTiming& other = m.timing;
    if (other.pairs == 0) continue;
    point.cold_speedup = other.fallback_ns / other.kernel_ns;
    if (other.status != VerdictStatus::kNotFaster || other.speedup >= 1 - options_.margin) continue;
    point.status = VerdictStatus::kNotFaster;
    v.reason = std::string("slower with ") + (p->cold ? "warm" : "cold") + " caches at " +
               p->problem.to_string() + ": " + number(point.cold_speedup) + "x";
  }
  const bool any = std::any_of(v.timing.begin(), v.timing.end(),
                               [](auto& x) { return x.status == VerdictStatus::kFaster; });
  if (any) return true;
  v.failed_gate = Gate::kTiming;
  v.status = VerdictStatus::kNotFaster;
  return false;
}

bool SessionEvaluator::judge_confirm(Trial& t) {
  Verdict& v = t.verdict();
  const auto points = [&] {
    std::vector<JudgedPoint> list;
    for (const PointTiming& x : v.timing) {
      const auto p =
          std::find_if(problems_.begin(), problems_.end(), [&](auto& y) { return y.var_axes == x.var_axes; });
      list.push_back({x.var_axes, p->weight, x.status});
    }
    return list;
  };
  const int alignment = v.guard.alignment_bytes;
  dispatch::Guard box = best_box_with(points(), t.earlier, t.box, t.limits);
  t.gate = Gate::kConfirm;
  // Another process, other addresses; each problem gets other values.
  auto cell = make_cell(t.build, std::span(&t.candidate, 1));
  if (!cell.ok()) return reject(v, Gate::kConfirm, cell.status().message()), false;
  t.cell = std::move(*cell);
  bool all = true;
  std::string lost;
  for (size_t i = 0; i < v.timing.size(); ++i) {
    PointTiming& x = v.timing[i];
    if (x.status != VerdictStatus::kFaster || !guard_holds(box, x.var_axes)) continue;
    auto p =
        std::find_if(problems_.begin(), problems_.end(), [&](auto& y) { return y.var_axes == x.var_axes; });
    const dispatch::Status filled = bench_->fill(*p);
    if (!filled.ok()) return undecided(v, Gate::kConfirm, filled.message()), false;
    Measured again;
    if (!collect_checked(t, *p, p->cold, t.pairs_max, Checked::kFaster, again)) return false;
    again.timing.cold_speedup = x.cold_speedup;
    x = again.timing;
    all = all && x.status == VerdictStatus::kFaster;
    if (lost.empty() && x.status != VerdictStatus::kFaster) lost = ": " + measured(x, p->problem);
  }
  if (!all) box = best_box_with(points(), t.earlier, t.box, t.limits);
  const bool any = std::any_of(v.timing.begin(), v.timing.end(), [&](auto& x) {
    return x.status == VerdictStatus::kFaster && guard_holds(box, x.var_axes);
  });
  if (!any) {
    v.failed_gate = Gate::kConfirm;
    v.status = stop(t.until) ? VerdictStatus::kAmbiguous : VerdictStatus::kNotFaster;
    v.reason = "faster at first, not on fresh data" + lost;
    return false;
  }
  v.status = VerdictStatus::kFaster;
  v.failed_gate = Gate::kNone;
  v.reason.clear();
  v.guard = box;
  v.guard.alignment_bytes = alignment;
  return true;
}

}  // namespace niche::evolve::judge
