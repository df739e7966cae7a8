// SessionEvaluator::judge: all gates for one candidate (session_evaluator.h).

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

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
// At a report that the system's clock does not bear out; and how many it takes at least: beside a load of ten, the library's
// blocks were once all dear in the first, and a cheat was believed.
constexpr int kClockAttempts = 4, kClockAttemptsMin = 2;

std::string number(double v) {
  char text[40];
  std::snprintf(text, sizeof text, "%.3g", v);
  return text;
}

}  // namespace

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
  t.box = hull(seen_points(), t.limits);
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
    if (!found->ok) return reject(v, i == 0 ? Gate::kSmoke : found->gate, found->reason), false;
    ++v.correctness_points;
  }
  v.guard = t.box;
  v.guard.alignment_bytes = t.candidate.source.limits.alignment_bytes;
  return true;
}

bool SessionEvaluator::collect(Trial& t, BenchProblem& p, bool cold, double e_stop, int pairs_max,
                               PointTiming& out, double& e_value, ClaimedTimes& claimed) {
  Verdict& v = t.verdict();
  PairVerdict verdict(options_.margin, e_stop, options_.seed);
  while (verdict.taken() < pairs_max && !stop(t.until)) {
    Bench::Request r;
    r.plan = &t.candidate.source.plan;
    r.pairs = std::min(kBatchPairs, pairs_max - verdict.taken());
    r.cold = cold;
    r.verify = !options_.defences_off.has(Defence::kTimedOutputs);
    r.cpu_seconds_max = hang_seconds() * (1 + r.pairs);
    auto m = bench_->measure(*t.cell, p, r);
    if (!m.ok()) return undecided(v, Gate::kTiming, m.status().message()), false;
    if (m->died)
      return reject(v, Gate::kTiming,
                    t.cell->death().text + " while it was timed at " + p.problem.to_string()),
             false;
    if (!m->finding.ok)
      return reject(v, Gate::kTiming, "a timed call was wrong: " + m->finding.reason), false;
    if (verdict.add(m->pairs) != VerdictStatus::kAmbiguous) break;
  }
  out.status = verdict.status();
  out.pairs = verdict.pairs();
  out.fallback_ns = verdict.fallback_ns();
  out.kernel_ns = verdict.kernel_ns();
  out.speedup = verdict.interval().median;
  out.ci_low = verdict.interval().low, out.ci_high = verdict.interval().high;
  e_value = verdict.e_faster();
  claimed = verdict.claimed(cold);
  return true;
}

bool SessionEvaluator::judge_timing(Trial& t) {
  Verdict& v = t.verdict();
  double weights = 0, pooled = 0;
  bool any = false, ambiguous = false;
  for (BenchProblem& p : problems_) {
    if (!guard_holds(t.box, p.var_axes)) continue;
    // Judged again: on other values, as it is in another process.
    if (t.again > 0)
      if (const dispatch::Status filled = bench_->fill(p); !filled.ok())
        return undecided(v, Gate::kTiming, filled.message()), false;
    PointTiming out;
    out.var_axes = p.var_axes;
    out.fallback = spec_.op->fallback_name(p.form);
    double e = 0;
    ClaimedTimes claimed;
    if (!collect(t, p, p.cold, 1 / options_.alpha, t.pairs_max, out, e, claimed)) return false;
    if (out.status == VerdictStatus::kFaster && !cross_check(t, p, claimed)) return false;
    v.timing.push_back(out);
    t.e_values.push_back(e);
    weights += p.weight;
    pooled += p.weight * e;
    any = any || out.status == VerdictStatus::kFaster;
    ambiguous = ambiguous || out.status == VerdictStatus::kAmbiguous;
  }
  v.e_value = weights > 0 ? pooled / weights : 0;
  if (any) return true;
  v.failed_gate = Gate::kTiming;
  v.status = ambiguous ? VerdictStatus::kAmbiguous : VerdictStatus::kNotFaster;
  v.reason = v.timing.empty()
                 ? "no problem was timed"
                 : (ambiguous ? "not enough evidence: " : "not faster than the library: ") +
                       number(v.timing[0].speedup) + "x [" + number(v.timing[0].ci_low) + ", " +
                       number(v.timing[0].ci_high) + "] in " + std::to_string(v.timing[0].pairs) +
                       " pairs against " + v.timing[0].fallback;
  return false;
}

// The cell's times are its own word; the clock that the system keeps for it is not.
bool SessionEvaluator::cross_check(Trial& t, BenchProblem& p, const ClaimedTimes& claimed) {
  if (options_.defences_off.has(Defence::kClock)) return true;
  Verdict& v = t.verdict();
  SeenTimes seen;
  for (int attempt = 0; attempt < kClockAttempts; ++attempt) {
    auto found = bench_->supervise(*t.cell, p, claimed.library_ns, std::max(1, spec_.target.threads),
                                   !options_.defences_off.has(Defence::kTimedOutputs), seen);
    if (!found.ok()) return undecided(v, Gate::kTiming, found.status().message()), false;
    if (seen.died)
      return reject(v, Gate::kTiming,
                    t.cell->death().text + " while it was timed at " + p.problem.to_string()),
             false;
    if (!found->ok) return reject(v, Gate::kTiming, "an untimed call was wrong: " + found->reason), false;
    if (attempt + 1 >= kClockAttemptsMin && believable(claimed, seen)) return true;
  }
  reject(v, Gate::kTiming,
         "reported " + number(claimed.kernel_ns) + " ns a call against " + number(claimed.library_ns) +
             " ns of the library; the system's clock saw " + number(seen.kernel_ns) + " ns against " +
             number(seen.library_ns) + " ns at " + p.problem.to_string());
  return false;
}

bool SessionEvaluator::judge_other_state(Trial& t) {
  Verdict& v = t.verdict();
  for (PointTiming& point : v.timing) {
    if (point.status != VerdictStatus::kFaster || stop(t.until)) continue;
    auto p = std::find_if(problems_.begin(), problems_.end(),
                          [&](auto& x) { return x.var_axes == point.var_axes; });
    PointTiming other;
    double e = 0;
    ClaimedTimes claimed;
    if (!collect(t, *p, !p->cold, 1 / options_.alpha, kOtherStatePairs, other, e, claimed)) return false;
    if (other.pairs == 0) continue;
    // Blocks are warm: only a warm report can be held against them in full.
    if (p->cold && !cross_check(t, *p, claimed)) return false;
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
  dispatch::Guard box = best_box(points(), t.limits);
  // Another process, other addresses, other values.
  auto cell = make_cell(t.build, std::span(&t.candidate, 1));
  if (!cell.ok()) return reject(v, Gate::kConfirm, cell.status().message()), false;
  t.cell = std::move(*cell);
  bool all = true;
  for (size_t i = 0; i < v.timing.size(); ++i) {
    PointTiming& x = v.timing[i];
    if (x.status != VerdictStatus::kFaster || !guard_holds(box, x.var_axes)) continue;
    auto p =
        std::find_if(problems_.begin(), problems_.end(), [&](auto& y) { return y.var_axes == x.var_axes; });
    const dispatch::Status filled = bench_->fill(*p);
    if (!filled.ok()) return undecided(v, Gate::kConfirm, filled.message()), false;
    PointTiming again = x;
    double e = 0;
    ClaimedTimes claimed;
    if (!collect(t, *p, p->cold, 1 / options_.alpha, t.pairs_max, again, e, claimed)) return false;
    if (again.status == VerdictStatus::kFaster && !cross_check(t, *p, claimed)) return false;
    again.cold_speedup = x.cold_speedup;
    x = again;
    all = all && x.status == VerdictStatus::kFaster;
  }
  if (!all) box = best_box(points(), t.limits);
  const bool any = std::any_of(v.timing.begin(), v.timing.end(), [&](auto& x) {
    return x.status == VerdictStatus::kFaster && guard_holds(box, x.var_axes);
  });
  if (!any) {
    v.failed_gate = Gate::kConfirm;
    v.status = stop(t.until) ? VerdictStatus::kAmbiguous : VerdictStatus::kNotFaster;
    v.reason = "faster at first, not on fresh data";
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
