// DeviceEvaluator: cases and races, many at once (device_evaluator.h).
#include <algorithm>
#include <thread>

#include "evolve/judge/failed_case.h"
#include "evolve/judge/host_args.h"
#include "evolve/judge_device/device_evaluator_impl.h"

namespace niche::evolve::judge {
namespace {

using dispatch::ArgRole;

constexpr int64_t kAheadBytesMax = int64_t{512} << 20;

}  // namespace

bool DeviceEvaluator::verify(Trial& t, std::span<const CaseRun> list, Budget* until, Verdict* v) {
  struct Under {
    std::future<CaseLanes::Made> made;
    std::future<dispatch::Result<Finding>> found;
  };
  std::vector<Under> all(list.size());
  const bool smoke = v->correctness_points == 0;
  const size_t ahead = cases_ahead(list);
  size_t begun = 0, taken = 0;
  // The result of the next check, in order.
  const auto take = [&] {
    const size_t i = taken++;
    const Spending spending(&spent_.comparing);
    const auto found = all[i].found.get();
    return take_finding(found, smoke && i == 0 ? Gate::kSmoke : Gate::kNone, v);
  };
  const auto there = [&](size_t i) {
    return all[i].found.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  for (size_t i = 0; i < list.size();) {
    if (until != nullptr && stop(*until)) {
      undecided(*v, Gate::kCorrectness,
                "time was up after " + std::to_string(i) + " of " + std::to_string(list.size()) + " cases");
      return false;
    }
    // The first one alone: what is wrong everywhere costs little.
    const size_t count = smoke && i == 0 ? 1 : std::min(std::max<size_t>(1, ahead), list.size() - i);
    for (; begun < list.size() && begun < i + count + ahead; ++begun)
      all[begun].made = lanes_->begin(list[begun].id, problems_[0].form);
    std::vector<CaseLanes::Made> made;
    for (size_t k = 0; k < count; ++k) {
      const Spending spending(&spent_.making);
      made.push_back(all[i + k].made.get());
    }
    auto outputs =
        run_cases(t, list.subspan(i, count), made, smoke && i == 0 ? Gate::kSmoke : Gate::kCorrectness, v);
    for (size_t k = 0; k < outputs.size(); ++k)
      all[i + k].found = lanes_->check(list[i + k].id, problems_[0].form, std::move(outputs[k]));
    if (outputs.size() != count) return false;
    i += count;
    while (taken < i && (taken + ahead < i || there(taken)))
      if (!take()) return false;
  }
  while (taken < list.size())
    if (!take()) return false;
  return true;
}

bool DeviceEvaluator::take_finding(const dispatch::Result<Finding>& found, Gate gate, Verdict* v) const {
  if (!found.ok()) return undecided(*v, Gate::kCorrectness, found.status().message()), false;
  v->max_error = std::max(v->max_error, found->max_error);
  v->rms_error = std::max(v->rms_error, found->rms_error);
  if (!found->ok) {
    reject(*v, gate == Gate::kNone ? found->gate : gate, found->reason);
    if (found->id) name_case(*found->id, v);
    return false;
  }
  ++v->correctness_points;
  return true;
}

void DeviceEvaluator::name_case(const CaseId& id, Verdict* v) const {
  if (v->status == VerdictStatus::kRejected) v->failed_case = failed_case(id, *spec_.definition);
}

size_t DeviceEvaluator::cases_ahead(std::span<const CaseRun> list) const {
  int64_t most = 1;
  for (const CaseRun& c : list) {
    dispatch::Problem p;
    p.definition = spec_.definition;
    p.axes = c.id.axes;
    int64_t bytes = 0;
    for (int a = 0; a < static_cast<int>(spec_.definition->schema().args.size()); ++a)
      if (spec_.definition->has_arg(a)) bytes += p.arg_bytes(a);
    most = std::max(most, bytes);
  }
  return static_cast<size_t>(std::clamp<int64_t>(kAheadBytesMax / most, 1, lanes_->ahead()));
}

// What the first of each case's runs left, under as few permits as hold them; fewer than there are cases: the verdict
// says why.
std::vector<DeviceEvaluator::Outputs> DeviceEvaluator::run_cases(Trial& t, std::span<const CaseRun> list,
                                                                 std::span<CaseLanes::Made> made, Gate gate,
                                                                 Verdict* v) {
  std::vector<ProbeJob> jobs;
  std::vector<size_t> case_of;
  std::vector<dispatch::Problem> problems;
  for (size_t k = 0; k < list.size(); ++k) {
    if (!made[k].status.ok()) {
      undecided(*v, Gate::kCorrectness, made[k].status.message());
      return {};
    }
    problems.push_back(problem_at(list[k].id));
    const auto first = static_cast<int>(jobs.size());
    for (int r = 0; r < list[k].runs; ++r) {
      jobs.push_back(job_for(t, problems[k]));
      if (r == 0)
        jobs.back().args = std::move(made[k].args);
      else
        borrow_inputs(jobs, first);
      case_of.push_back(k);
    }
  }
  std::vector<Outputs> outputs;
  std::vector<ProbeOutcome> outcomes = run_probe(jobs);
  for (size_t j = 0; j < jobs.size(); ++j) {
    const size_t k = case_of[j];
    if (!take_outcome(outcomes[j], gate, v)) {
      v->reason += " at " + problems[k].to_string();
      name_case(list[k].id, v);
      outputs.resize(std::min(outputs.size(), k));
      return outputs;
    }
    if (outputs.size() == k) {
      outputs.push_back(std::move(outcomes[j].outputs));
    } else if (t.candidate->source.properties.deterministic && outcomes[j].outputs != outputs[k]) {
      reject(*v, Gate::kDeterminism, "two runs differ at " + problems[k].to_string());
      name_case(list[k].id, v);
      outputs.resize(k);
      return outputs;
    }
  }
  return outputs;
}

dispatch::Problem DeviceEvaluator::problem_at(const CaseId& id) const {
  dispatch::Problem p;
  p.definition = spec_.definition;
  p.axes = id.axes;
  return p;
}

// The last job's inputs are those of an earlier one.
void DeviceEvaluator::borrow_inputs(std::vector<ProbeJob>& jobs, int owner) const {
  for (const ProbeJob::Arg& a : jobs[static_cast<size_t>(owner)].args)
    jobs.back().args.push_back({a.role, a.bytes, {}});
  jobs.back().inputs_of = owner;
}

// Each of `trials` on one case, all in one batch. Those that fail have their verdicts.
void DeviceEvaluator::verify_together(std::span<Screened* const> trials, const dispatch::Problem& problem,
                                      Gate gate) {
  if (trials.empty()) return;
  const CaseId id = case_id(problem, 0);
  CaseLanes::Made made;
  {
    auto making = lanes_->begin(id, problems_[0].form);
    const Spending spending(&spent_.making);
    made = making.get();
  }
  if (!made.status.ok()) {
    for (Screened* s : trials)
      undecided(*s->verdict, Gate::kCorrectness, made.status.message()), s->alive = false;
    return;
  }
  std::vector<ProbeJob> jobs;
  for (Screened* s : trials) {
    jobs.push_back(job_for(*s->trial, problem));
    if (jobs.size() == 1)
      jobs[0].args = std::move(made.args);
    else
      borrow_inputs(jobs, 0);
  }
  std::vector<ProbeOutcome> outcomes = run_probe(jobs);
  std::vector<std::future<dispatch::Result<Finding>>> found(trials.size());
  for (size_t k = 0; k < trials.size(); ++k) {
    Screened& s = *trials[k];
    s.alive = take_outcome(outcomes[k], gate, s.verdict);
    if (s.alive)
      found[k] = lanes_->check(id, problems_[0].form, std::move(outcomes[k].outputs));
    else
      s.verdict->reason += " at " + problem.to_string(), name_case(id, s.verdict);
  }
  for (size_t k = 0; k < trials.size(); ++k) {
    if (!trials[k]->alive) continue;
    const Spending spending(&spent_.comparing);
    trials[k]->alive =
        take_finding(found[k].get(), gate == Gate::kSmoke ? gate : Gate::kNone, trials[k]->verdict);
  }
}

// The library form beside all of `trials`, in one race. The pairs of each, by its place; none: its verdict says why.
std::vector<std::vector<PairSample>> DeviceEvaluator::race_together(std::span<Screened* const> trials,
                                                                    const TimedProblem& p, int rounds) {
  std::vector<ProbeJob> jobs;
  for (Screened* s : trials) {
    jobs.push_back(job_for(*s->trial, p.problem));
    if (jobs.size() == 1)
      jobs[0].args = p.args;
    else
      borrow_inputs(jobs, 0);
    jobs.back().race = race_of(p, p.cold, rounds);
    jobs.back().race.forms = {p.form};
  }
  const std::vector<ProbeOutcome> outcomes = run_probe(jobs);
  std::vector<std::vector<PairSample>> pairs(trials.size());
  for (size_t k = 0; k < trials.size(); ++k) {
    trials[k]->alive = take_outcome(outcomes[k], Gate::kScreen, trials[k]->verdict);
    if (trials[k]->alive) pairs[k] = pairs_of(outcomes[k]);
  }
  return pairs;
}

std::vector<PairSample> DeviceEvaluator::pairs_of(const ProbeOutcome& o) {
  std::vector<PairSample> pairs;
  for (size_t r = 0; r < o.form_us.size() && r < o.launch_us.size(); ++r)
    pairs.push_back({o.form_us[r][0] * 1e3, o.launch_us[r] * 1e3, false});
  return pairs;
}

DeviceEvaluator::Pairs DeviceEvaluator::race(const Trial& t, const TimedProblem& p, bool cold, int pairs,
                                             double e_stop) {
  ProbeJob j = job_for(t, p.problem);
  j.args = p.args;
  j.race = race_of(p, cold, pairs);
  j.race.forms = {p.form};
  j.race.margin = options_.margin;
  j.race.e_faster = e_stop;
  j.race.e_slower = PairVerdict::kSlowerEvidence;
  Pairs out;
  out.outcome = run_probe(j);
  if (out.outcome.end == ProbeEnd::kRan) out.samples = pairs_of(out.outcome);
  return out;
}

bool DeviceEvaluator::check_timed(const TimedProblem& p, const ProbeOutcome& o, Verdict* v) {
  const auto& args = spec_.definition->schema().args;
  if (std::any_of(args.begin(), args.end(), [](const auto& a) { return a.role == ArgRole::kInOut; }))
    return true;
  CaseId id = case_id(p.problem, 0);
  id.seed = p.seed;
  const Spending spending(&spent_.comparing);
  const auto found = lanes_->check(id, p.form, o.outputs).get();
  if (!found.ok()) return undecided(*v, Gate::kTiming, found.status().message()), false;
  if (!found->ok)
    return reject(*v, Gate::kTiming, "a timed call was wrong: " + found->reason), name_case(id, v), false;
  return true;
}

}  // namespace niche::evolve::judge
