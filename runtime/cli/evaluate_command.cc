// `niche evaluate`: judges a kernel that somebody wrote as a file, by the same evaluator as a generated one.
#include <cstdio>

#include "evolve/definition_json.h"
#include "evolve/judge/evaluate_file.h"
#include "evolve/proposer/secrets.h"
#include "evolve/session/kernel_record.h"
#include "evolve/session/session.h"
#include "runtime/cli/common.h"
#include "runtime/torch/worker.h"

namespace niche::cli {
namespace {

struct Options {
  DefinitionFlags definition;
  std::string kernel, commit;
  std::vector<std::string> problems;
  int threads = 1;
  bool cold = false;
};

// The record that a session would have written of it.
Status commit(const Options& o, const dispatch::Definition& definition, evolve::FileJudgement judged,
              const evolve::ProblemCosts& costs, kernels_cache::KernelCache& cache) {
  evolve::RenderedPoint rendered = evolve::hashed(std::move(judged.source), definition);
  // A kernel that does not name itself is named by its text.
  if (std::string& name = rendered.source.kernel_name; name.ends_with(".file"))
    name += '.' + rendered.text_hash.substr(0, 10) + '.' +
            evolve::arch_name(evolve::detect_target(o.threads)).substr(4);  // "cpu.avx2": "avx2"
  const std::string name = rendered.source.kernel_name;
  const dispatch::SystemClock clock;
  auto file = cache.commit(
      evolve::kernel_record({definition, evolve::definition_to_json(definition), rendered, judged.judgement,
                             judged.baselines, costs, "file", o.kernel, "", clock.unix_time_ns()}));
  if (!file.ok()) return file.status();
  std::fprintf(stderr, "niche: committed %s as %s in %s\n", name.c_str(), file->c_str(),
               cache.home().path().c_str());
  return {};
}

int run(const Options& o) {
  evolve::proposer::scrub_environment();  // the candidate runs in a child of this process
  auto bench = Workbench::make(o.definition, true);
  if (!bench.ok()) return fail(bench.status());
  auto definition = (*bench)->definition(o.definition);
  if (!definition.ok()) return fail(definition.status());
  // Opened before the judging: a directory that is refused costs no time.
  std::unique_ptr<kernels_cache::KernelCache> cache;
  if (!o.commit.empty()) {
    CacheFlags flags;
    flags.dir = o.commit;
    flags.op_libraries = (*bench)->op_libraries;
    auto opened = flags.open(kernels_cache::Access::kReadWrite);
    if (!opened.ok()) return fail(opened.status());
    cache = std::move(*opened);
  }
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
  const evolve::ProblemCosts costs(spec.problems);
  auto judged = evolve::evaluate_file(o.kernel, std::move(spec), std::move(options));
  if (!judged.ok()) return fail(judged.status());
  std::printf("%s\n", judged->judgement.verdict.to_json().c_str());
  const bool faster = judged->judgement.verdict.faster();
  if (cache && !faster) std::fprintf(stderr, "niche: not committed: the verdict is not FASTER\n");
  if (cache && faster)
    if (const Status s = commit(o, **definition, std::move(*judged), costs, *cache); !s.ok()) return fail(s);
  return faster ? 0 : 3;
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
  c->add_option("--threads", o->threads, "threads of a call")->check(thread_count())->capture_default_str();
  c->add_option("--commit", o->commit,
                "cache directory to put it in, for servers, where the verdict is FASTER");
  c->add_flag("--cold", o->cold, "judge with cold caches");
  c->callback([o, exit_code] { *exit_code = run(*o); });
}

}  // namespace niche::cli
