// SessionEvaluator::screen: a quick look at many candidates in one cell (session_evaluator.h).

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>

#include "dispatch/base/hash.h"
#include "evolve/judge/host_args.h"
#include "evolve/judge/session_evaluator.h"
#include "evolve/sign_test.h"

namespace niche::evolve::judge {
namespace {

constexpr size_t kScreenedProblems = 3;
constexpr int kFirstPairs = 3;     // then the clearly slow ones are out
constexpr double kHopeless = 0.8;  // speedup after kFirstPairs below which a candidate is dropped
constexpr double kClearlySlow = 0.93;

// Pairs that no context switch hit, where there are enough of them: beside a busy server the others are noise.
std::vector<PairSample> undisturbed(const std::vector<PairSample>& pairs) {
  std::vector<PairSample> clean;
  for (const PairSample& p : pairs)
    if (!p.dropped) clean.push_back(p);
  return clean.size() >= static_cast<size_t>(kFirstPairs) ? clean : pairs;
}

}  // namespace

struct SessionEvaluator::Screening {
  std::span<const Candidate> candidates;
  std::vector<Verdict> verdicts;
  std::vector<bool> alive;
  Build build;
  std::unique_ptr<Cell> cell;
  std::vector<size_t> problems;                             // indices that are timed here
  std::vector<std::vector<std::vector<PairSample>>> pairs;  // candidate, problem
  Budget until{};
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
};

std::vector<Verdict> SessionEvaluator::screen(std::span<const Candidate> candidates) {
  Screening s;
  s.candidates = candidates;
  s.verdicts.resize(candidates.size());
  s.alive.assign(candidates.size(), true);
  s.until.seconds = options_.screen_seconds_max;
  const auto all = [&](Gate gate, const std::string& reason) {
    for (size_t i = 0; i < candidates.size(); ++i)
      if (s.alive[i]) undecided(s.verdicts[i], gate, reason);
    return std::move(s.verdicts);
  };
  const dispatch::Status baseline = ensure_baselines();
  if (!baseline.ok()) return all(Gate::kScreen, baseline.message());

  std::vector<Candidate> to_build;
  std::vector<size_t> index;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const std::string why = why_refused(candidates[i]);
    if (why.empty()) continue;
    reject(s.verdicts[i], Gate::kParse, why);
    s.alive[i] = false;
  }
  for (size_t i = 0; i < candidates.size(); ++i)
    if (s.alive[i]) to_build.push_back(candidates[i]), index.push_back(i);
  Build built = build_candidates(*toolchain_, to_build, options_.defences_off);
  s.build.objects = std::move(built.objects);
  s.build.candidates.resize(candidates.size());
  for (size_t b = 0; b < index.size(); ++b) {
    const size_t i = index[b];
    s.build.candidates[i] = built.candidates[b];
    s.verdicts[i].compile_ms = built.candidates[b].ms;
    if (built.candidates[b].object >= 0) continue;
    refuse(s.verdicts[i], built.candidates[b]);
    s.alive[i] = false;
  }
  for (size_t p = 0; p < problems_.size() && s.problems.size() < kScreenedProblems; ++p)
    s.problems.push_back(p);
  s.pairs.assign(candidates.size(), std::vector<std::vector<PairSample>>(s.problems.size()));
  if (std::find(s.alive.begin(), s.alive.end(), true) == s.alive.end()) return std::move(s.verdicts);
  auto cell = make_cell(s.build, candidates);
  if (!cell.ok()) return all(Gate::kBinary, cell.status().message());
  s.cell = std::move(*cell);

  if (screen_smoke(s)) screen_times(s);
  screen_verdicts(s);
  return std::move(s.verdicts);
}

// One small case and the heaviest problem, both between guard pages. False: time is up.
bool SessionEvaluator::screen_smoke(Screening& s) {
  for (size_t i = 0; i < s.candidates.size(); ++i) {
    if (!s.alive[i]) continue;
    if (stop(s.until)) return false;
    const KernelSource& source = s.candidates[i].source;
    const dispatch::Guard limits = limits_of(source);
    std::vector<VarAxes> points;
    const auto seen = seen_points();
    const dispatch::Guard box = hull(seen, limits);
    const auto tested = correctness_points(*spec_.op, spec_.definition, source.plan, box, options_.seed);
    if (!tested.empty()) points.push_back(tested.front());
    for (const BenchProblem& p : problems_)
      if (guard_holds(limits, p.var_axes)) {
        points.push_back(p.var_axes);
        break;
      }
    for (const VarAxes& point : points) {
      if (!s.cell->alive()) {
        auto cell = make_cell(s.build, s.candidates);
        if (!cell.ok()) return false;
        s.cell = std::move(*cell);
      }
      auto problem = make_problem(*spec_.op, spec_.definition, point);
      if (!problem.ok()) continue;
      VerifyRequest r;
      r.kernel = static_cast<int>(i);
      r.source = &source;
      r.id = {problem->axes, 0, dispatch::mix64(options_.seed ^ dispatch::hash_bytes(problem->to_string())),
              0};
      r.form = problems_[0].form;
      r.cpu_seconds_max = hang_seconds();
      auto found = verifier_->verify(*s.cell, r);
      if (!found.ok()) {
        undecided(s.verdicts[i], Gate::kSmoke, found.status().message());
        s.alive[i] = false;
        break;
      }
      s.verdicts[i].max_error = std::max(s.verdicts[i].max_error, found->max_error);
      s.verdicts[i].rms_error = std::max(s.verdicts[i].rms_error, found->rms_error);
      ++s.verdicts[i].correctness_points;
      if (found->ok) continue;
      reject(s.verdicts[i], Gate::kSmoke, found->reason, *found);
      s.alive[i] = false;
      break;
    }
  }
  return true;
}

bool SessionEvaluator::screen_times(Screening& s) {
  std::mt19937_64 random(options_.seed ^ 0x5c);
  std::vector<size_t> order;
  for (size_t i = 0; i < s.candidates.size(); ++i) order.push_back(i);
  for (int pass = 0; pass < 2; ++pass) {
    const int pairs = pass == 0 ? kFirstPairs : std::max(0, options_.screen_pairs - kFirstPairs);
    // Random order, so that a drift of the machine meets no candidate in particular.
    std::shuffle(order.begin(), order.end(), random);
    for (size_t i : order)
      for (size_t q = 0; q < s.problems.size() && s.alive[i]; ++q) {
        BenchProblem& p = problems_[s.problems[q]];
        auto& kept = s.pairs[i][q];
        if (!guard_holds(limits_of(s.candidates[i].source), p.var_axes)) continue;
        if (stop(s.until)) return false;
        if (pass == 1) {
          std::vector<double> ratio;
          for (const PairSample& x : undisturbed(kept)) ratio.push_back(x.fallback_ns / x.kernel_ns);
          if (median_of(ratio) < kHopeless) continue;
        }
        if (!s.cell->alive()) {
          auto cell = make_cell(s.build, s.candidates);
          if (!cell.ok()) return false;
          s.cell = std::move(*cell);
        }
        Bench::Request r;
        r.kernel = static_cast<int>(i);
        r.plan = &s.candidates[i].source.plan;
        r.pairs = pairs;
        r.cold = p.cold;
        r.cpu_seconds_max = hang_seconds() * 4;
        auto measured = bench_->measure(*s.cell, p, r);
        if (!measured.ok() || measured->died) {
          reject(s.verdicts[i], Gate::kScreen,
                 measured.ok() ? s.cell->death().text + " while it was timed at " + p.problem.to_string()
                               : measured.status().message());
          s.alive[i] = false;
          break;
        }
        for (const PairSample& x : measured->pairs)
          if (x.kernel_ns > 0 && x.fallback_ns > 0) kept.push_back(x);
      }
  }
  return true;
}

void SessionEvaluator::screen_verdicts(Screening& s) {
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - s.start).count();
  for (size_t i = 0; i < s.candidates.size(); ++i) {
    Verdict& v = s.verdicts[i];
    v.sandbox = confinement_;
    v.evaluate_ms = ms / static_cast<double>(s.candidates.size());
    if (!s.alive[i]) continue;
    double library = 0, kernel = 0;
    for (size_t q = 0; q < s.problems.size(); ++q) {
      const BenchProblem& p = problems_[s.problems[q]];
      std::vector<double> a, b;
      for (const PairSample& x : undisturbed(s.pairs[i][q]))
        a.push_back(x.fallback_ns), b.push_back(x.kernel_ns);
      if (a.empty()) continue;
      const RatioInterval ratio = bootstrap_ratio(a, b, options_.seed, 200);
      PointTiming t;
      t.var_axes = p.var_axes;
      t.fallback = spec_.op->fallback_name(p.form);
      t.fallback_ns = median_of(a);
      t.kernel_ns = median_of(b);
      t.speedup = ratio.median, t.ci_low = ratio.low, t.ci_high = ratio.high;
      t.pairs = static_cast<int>(a.size());
      v.timing.push_back(t);
      // Weights are shares of device time: the kernel's share of what the library takes.
      library += p.weight;
      kernel += p.weight / ratio.median;
    }
    v.status = VerdictStatus::kAmbiguous;
    v.failed_gate = Gate::kNone;
    v.guard = hull(seen_points(), limits_of(s.candidates[i].source));
    v.guard.alignment_bytes = s.candidates[i].source.limits.alignment_bytes;
    if (v.timing.empty()) {
      v.failed_gate = Gate::kScreen;
      v.reason = "the time for the screen was up before it was timed";
    } else if (library / kernel < kClearlySlow) {
      v.status = VerdictStatus::kNotFaster;
      v.failed_gate = Gate::kScreen;
      v.reason =
          "clearly slower than " + v.timing[0].fallback + ": " + std::to_string(library / kernel) + "x";
    }
  }
}

}  // namespace niche::evolve::judge
