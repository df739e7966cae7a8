#include "bench/judge/self_trials.h"

#include <algorithm>

#include "evolve/judge/host_args.h"
#include "evolve/judge/pair_verdict.h"
#include "evolve/judgements.h"

namespace niche::bench {

using dispatch::Result;
using evolve::VerdictStatus;
namespace judge = evolve::judge;

namespace {

constexpr int kBatchPairs = 12;  // as the judge's

}  // namespace

Result<std::unique_ptr<SelfTrials>> SelfTrials::make(const evolve::EvaluatorSpec& spec,
                                                     evolve::ChildStart child_start) {
  std::unique_ptr<SelfTrials> t(new SelfTrials());
  t->spec_ = spec;
  auto problem = judge::make_problem(*spec.op, spec.definition, spec.problems[0].var_axes);
  if (!problem.ok()) return problem.status();
  t->problem_.var_axes = spec.problems[0].var_axes;
  t->problem_.cold = spec.problems[0].cold;
  t->problem_.problem = *problem;
  t->name_ = spec.definition->name() + ' ' + problem->to_string();
  auto arena = judge::SharedArena::make(int64_t{1} << 30);
  if (!arena.ok()) return arena.status();
  t->arena_ = std::move(*arena);
  auto oracle = judge::Oracle::make(
      spec.op, spec.definition, t->arena_.get(),
      [child_start] {
        if (child_start) child_start(1);
      },
      int64_t{256} << 20);
  if (!oracle.ok()) return oracle.status();
  t->oracle_ = std::move(*oracle);
  t->bench_ =
      std::make_unique<judge::Bench>(*spec.op, *spec.definition, t->arena_.get(), t->oracle_.get(), 7);
  t->child_start_ = std::move(child_start);
  NICHE_RETURN_IF_ERROR(t->begin_afresh());
  NICHE_RETURN_IF_ERROR(t->bench_->find_best_form(*t->cell_, t->problem_));
  return t;
}

dispatch::Status SelfTrials::begin_afresh() {
  judge::CellSpec cell;
  cell.op = spec_.op;
  cell.definition = spec_.definition;
  cell.arena = arena_.get();
  cell.child_start = child_start_;
  auto made = judge::Cell::make(cell);
  if (!made.ok()) return made.status();
  cell_ = std::move(*made);
  return bench_->fill(problem_);
}

Result<VerdictStatus> SelfTrials::test(double delay, uint64_t seed, int pairs_max) {
  judge::PairVerdict verdict(options_.margin, 1 / options_.alpha, seed);
  while (verdict.taken() < pairs_max) {
    auto pairs =
        bench_->measure_self(*cell_, problem_, delay, std::min(kBatchPairs, pairs_max - verdict.taken()));
    if (!pairs.ok()) return pairs.status();
    if (verdict.add(*pairs) != VerdictStatus::kAmbiguous) break;
  }
  return verdict.status();
}

Result<SelfTrials::Trial> SelfTrials::run(double delay, uint64_t seed) {
  Trial trial;
  while (trial.judgements < evolve::kJudgementsMax) {
    if (trial.judgements > 0) NICHE_RETURN_IF_ERROR(begin_afresh());
    const int pairs_max = options_.pairs_max << trial.judgements++;
    auto found = test(delay, seed, pairs_max);
    if (!found.ok()) return found.status();
    trial.status = *found;
    if (*found == VerdictStatus::kAmbiguous) continue;
    if (*found != VerdictStatus::kFaster) break;
    ++trial.first_faster;
    NICHE_RETURN_IF_ERROR(begin_afresh());
    found = test(delay, seed, pairs_max);
    if (!found.ok()) return found.status();
    if (*found != VerdictStatus::kFaster)
      trial.status = VerdictStatus::kNotFaster;  // faster at first, not on fresh data
    break;
  }
  return trial;
}

}  // namespace niche::bench
