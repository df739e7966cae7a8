#include "bench/judge/self_trials.h"

#include "evolve/judge/host_args.h"
#include "evolve/judge/pair_verdict.h"

namespace niche::bench {

using dispatch::Result;
using evolve::VerdictStatus;
namespace judge = evolve::judge;

namespace {

constexpr int kPairsMax = 400, kBatchPairs = 12;  // as the judge's defaults
constexpr double kMargin = 0.01, kEnough = 100;

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
  judge::CellSpec cell;
  cell.op = spec.op;
  cell.definition = spec.definition;
  cell.arena = t->arena_.get();
  cell.child_start = child_start;
  auto made = judge::Cell::make(cell);
  if (!made.ok()) return made.status();
  t->cell_ = std::move(*made);
  NICHE_RETURN_IF_ERROR(t->bench_->fill(t->problem_));
  NICHE_RETURN_IF_ERROR(t->bench_->find_best_form(*t->cell_, t->problem_));
  return t;
}

Result<VerdictStatus> SelfTrials::run(double delay, uint64_t seed) {
  judge::PairVerdict verdict(kMargin, kEnough, seed);
  while (verdict.taken() < kPairsMax) {
    auto pairs = bench_->measure_self(*cell_, problem_, delay, kBatchPairs);
    if (!pairs.ok()) return pairs.status();
    if (verdict.add(*pairs) != VerdictStatus::kAmbiguous) break;
  }
  return verdict.status();
}

}  // namespace niche::bench
