// `niche evaluate`: judges a kernel that somebody wrote as a file, by the same evaluator as a generated one.
#include <cstdio>

#include "evolve/judge/evaluate_file.h"
#include "evolve/proposer/secrets.h"
#include "evolve/session/session.h"
#include "runtime/cli/common.h"
#include "runtime/torch/worker.h"

namespace niche::cli {
namespace {

struct Options {
  DefinitionFlags definition;
  std::string kernel;
  std::vector<std::string> problems;
  int threads = 1;
  bool cold = false;
};

int run(const Options& o) {
  evolve::proposer::scrub_environment();  // the candidate runs in a child of this process
  auto bench = Workbench::make(o.definition, true);
  if (!bench.ok()) return fail(bench.status());
  auto definition = (*bench)->definition(o.definition);
  if (!definition.ok()) return fail(definition.status());
  evolve::EvaluatorSpec spec;
  spec.op = (*bench)->ops.find_shared((*definition)->schema().op);
  spec.definition = *definition;
  spec.target = evolve::detect_target(o.threads);
  for (const std::string& text : o.problems) {
    auto axes = parse_problem(text, **definition);
    if (!axes.ok()) return fail(axes.status());
    evolve::SeenProblem p;
    p.cold = o.cold;
    p.var_axes = std::move(*axes);
    spec.problems.push_back(std::move(p));
  }
  evolve::EvaluatorOptions options;
  options.child_start = torch_child_start;
  auto judgement = evolve::evaluate_file(o.kernel, std::move(spec), std::move(options));
  if (!judgement.ok()) return fail(judgement.status());
  std::printf("%s\n", judgement->verdict.to_json().c_str());
  return judgement->verdict.faster() ? 0 : 3;
}

}  // namespace

void add_evaluate_command(CLI::App& app, int* exit_code) {
  CLI::App* c = app.add_subcommand(
      "evaluate", "judge a kernel source; prints its Verdict as JSON; 0: FASTER, 3: another verdict");
  auto o = std::make_shared<Options>();
  c->add_option("kernel", o->kernel, "C++ source (evolve/candidate_text.h says how it describes itself)")
      ->required()
      ->check(CLI::ExistingFile);
  o->definition.add_to(*c);
  c->add_option("--problem", o->problems, "variable axes, e.g. M=16 (repeat)")
      ->allow_extra_args(false)
      ->required();
  c->add_option("--threads", o->threads, "threads of a call")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c->add_flag("--cold", o->cold, "judge with cold caches");
  c->callback([o, exit_code] { *exit_code = run(*o); });
}

}  // namespace niche::cli
