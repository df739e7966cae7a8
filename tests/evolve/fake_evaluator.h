// FakeEvaluator: an evaluator without compiler or machine: times come from a function of the candidate's
// parameters, and evaluating moves a ManualClock, so that budgets can be tested to the second.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "dispatch/base/clock.h"
#include "evolve/evaluator.h"

namespace niche::evolve {

// What a run of fakes saw and how it is to behave; shared by test and evaluator.
struct FakeWorld {
  using Params = std::map<std::string, int>;
  dispatch::ManualClock clock{1'000'000'000};
  double screen_seconds = 1, judge_seconds = 2;
  // Cost (kernel / fallback) at a problem; 0: fails `failing_gate`.
  std::function<double(const Params&, const SeenProblem&)> cost;
  Gate failing_gate = Gate::kSmoke;
  // The judge's answer, when it is not what the screen saw.
  std::function<VerdictStatus(const Params&)> judge_status;
  std::function<Digest(const Params&)> digest;  // of what is timed; empty: none
  dispatch::Result<Digest> profiled = dispatch::unsupported("no profiler");
  std::vector<std::string> profiles;
  double profile_seconds = 0;
  int crash_after_screens = -1;  // throws in the screen after so many: a process that dies
  dispatch::Status baseline_status;

  int screens = 0, judged_with_earlier = 0;
  std::vector<std::string> screened, judged;
  std::vector<double> judged_at;
};

class FakeEvaluator final : public Evaluator {
 public:
  FakeEvaluator(FakeWorld& world, EvaluatorSpec spec, EvaluatorOptions options)
      : world_(world),
        spec_(std::move(spec)),
        options_(std::move(options)),
        start_ns_(world.clock.now_ns()) {}

  dispatch::Result<std::vector<ProblemBaseline>> baselines() override {
    if (!world_.baseline_status.ok()) return world_.baseline_status;
    std::vector<ProblemBaseline> out;
    for (const SeenProblem& p : spec_.problems)
      out.push_back({p.var_axes, p.weight, p.cold, 0, "column order", 1000});
    return out;
  }
  std::vector<Verdict> screen(std::span<const Candidate> candidates) override {
    if (world_.crash_after_screens >= 0 && world_.screens >= world_.crash_after_screens)
      throw std::runtime_error("the process dies here");
    ++world_.screens;
    std::vector<Verdict> out;
    for (const Candidate& c : candidates) {
      world_.screened.push_back(c.id);
      Verdict v = verdict(params_of(c.id), VerdictStatus::kAmbiguous);
      if (options_.keep_going && !options_.keep_going()) v = Verdict{};  // interrupted: nothing known
      out.push_back(std::move(v));
      world_.clock.advance_ns(
          static_cast<int64_t>(1e9 * world_.screen_seconds / static_cast<double>(candidates.size())));
    }
    return out;
  }
  Judgement judge(const Candidate& c) override {
    const auto params = params_of(c.id);
    world_.judged.push_back(c.id);
    world_.judged_with_earlier += c.earlier.has_value();
    world_.judged_at.push_back(static_cast<double>(world_.clock.now_ns() - start_ns_) * 1e-9);
    Judgement j;
    for (int step = 0; step < 20; ++step) {
      if (options_.keep_going && !options_.keep_going()) {
        j.verdict = verdict(params, VerdictStatus::kAmbiguous);
        return j;
      }
      world_.clock.advance_ns(static_cast<int64_t>(1e9 * world_.judge_seconds / 20));
    }
    const VerdictStatus status = world_.judge_status ? world_.judge_status(params) : VerdictStatus::kFaster;
    j.verdict = verdict(params, status);
    j.verdict.evaluate_ms = 1e3 * world_.judge_seconds;
    j.artefact.assign(c.source.text.begin(), c.source.text.end());
    j.compiler = "fake 1.0";
    return j;
  }
  dispatch::Result<Digest> profile(const Candidate& c) override {
    world_.profiles.push_back(c.id);
    for (int step = 0; step < 100; ++step) {
      if (options_.keep_going && !options_.keep_going()) return dispatch::busy("the time was up");
      world_.clock.advance_ns(static_cast<int64_t>(1e9 * world_.profile_seconds / 100));
    }
    return world_.profiled;
  }
  std::string describe() const override { return "fake"; }

 private:
  // "toy.rows rows=2 unroll=4" -> {rows: 2, unroll: 4}
  static FakeWorld::Params params_of(const std::string& id) {
    FakeWorld::Params p;
    std::istringstream words(id);
    std::string word;
    while (words >> word)
      if (const size_t eq = word.find('='); eq != std::string::npos)
        p[word.substr(0, eq)] = std::stoi(word.substr(eq + 1));
    return p;
  }
  Verdict verdict(const FakeWorld::Params& params, VerdictStatus status) const {
    Verdict v;
    v.status = status;
    for (const SeenProblem& p : spec_.problems) {
      const double cost = world_.cost(params, p);
      if (cost <= 0) {
        v.status = VerdictStatus::kRejected;
        v.failed_gate = world_.failing_gate;
        v.reason = "fails by design";
        v.timing.clear();
        return v;
      }
      PointTiming t;
      t.var_axes = p.var_axes;
      t.fallback_ns = 1000;
      t.kernel_ns = 1000 * cost;
      t.speedup = 1 / cost;
      t.status = status == VerdictStatus::kFaster && cost >= 0.99 ? VerdictStatus::kNotFaster : status;
      v.timing.push_back(t);
    }
    if (world_.digest) v.digest = world_.digest(params);
    v.guard.var_count = 1;
    v.guard.var[0] = {1, 1 << 20, 1};
    if (status == VerdictStatus::kNotFaster) v.failed_gate = Gate::kTiming;
    return v;
  }

  FakeWorld& world_;
  EvaluatorSpec spec_;
  EvaluatorOptions options_;
  int64_t start_ns_;
};

}  // namespace niche::evolve
