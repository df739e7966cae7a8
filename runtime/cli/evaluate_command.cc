// `niche evaluate`: judges a kernel that somebody wrote as a file, by the same evaluator as a generated one.
#include <cstdio>

#include "evolve/definition_json.h"
#include "evolve/judge/evaluate_file.h"
#include "evolve/judge/failed_case.h"
#include "evolve/proposer/secrets.h"
#include "evolve/session/kernel_record.h"
#include "evolve/session/session.h"
#include "runtime/cli/common.h"
#include "runtime/cli/session_device.h"
#include "runtime/torch/worker.h"

namespace niche::cli {
namespace {

constexpr int kOtherVerdict = 3;  // the exit code

struct Options {
  DefinitionFlags definition;
  std::string kernel, commit, device = "cpu", inputs;
  std::vector<std::string> problems;
  int threads = 1;
  uint64_t seed = 0;
  bool cold = false;
};

// The record that a session would have written of it.
Status commit(const Options& o, const dispatch::Definition& definition, const evolve::CpuTarget& target,
              const evolve::FileJudgement& judged, const evolve::ProblemCosts& costs,
              kernels_cache::KernelCache& cache) {
  evolve::RenderedPoint rendered = evolve::hashed(judged.source, definition);
  // A kernel that does not name itself is named by its text.
  if (std::string& name = rendered.source.kernel_name; name.ends_with(".file")) {
    const std::string arch = evolve::arch_name(target);  // "cpu.avx2": "avx2"
    name += '.' + rendered.text_hash.substr(0, 10) + '.' + arch.substr(arch.find('.') + 1);
  }
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

// What makes the case again at which the kernel was wrong.
Status write_inputs(const Options& o, const dispatch::OpSpec& op,
                    const std::shared_ptr<const dispatch::Definition>& definition,
                    const evolve::Verdict& verdict) {
  if (!verdict.failed_case) {
    if (!o.inputs.empty())
      std::fprintf(stderr, "niche: nothing to write to %s: no case was wrong\n", o.inputs.c_str());
    return {};
  }
  if (o.inputs.empty()) {
    std::fprintf(stderr, "niche: --inputs DIR writes the inputs of that case, and what is right, as .npy\n");
    return {};
  }
  auto files = evolve::write_failed_case(op, definition, *verdict.failed_case, o.inputs);
  if (!files.ok()) return files.status();
  for (const std::string& file : *files) std::fprintf(stderr, "niche: wrote %s\n", file.c_str());
  return {};
}

int run(const Options& o) {
  evolve::proposer::scrub_environment();  // the candidate runs in a child of this process
  auto bench = Workbench::make(o.definition, true);
  if (!bench.ok()) return fail(bench.status());
  auto definition = (*bench)->definition(o.definition);
  if (!definition.ok()) return fail(definition.status());
  evolve::EvaluatorSpec spec;
  const auto op = (*bench)->ops.find_shared((*definition)->schema().op);
  spec.op = op;
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
  std::unique_ptr<SessionDevice> device;
  if (o.device != "cpu") {
    evolve::SessionRequest request;
    request.device = o.device;
    request.op_libraries = (*bench)->op_libraries;
    request.cache_dir = o.commit;
    auto opened = SessionDevice::open(request, false);
    if (!opened.ok()) return fail(opened.status());
    device = std::move(*opened);
    spec.target.device = device->session().device;
    spec.target.cuda = device->session().cuda;
  }
  // Opened before the judging: a directory that is refused costs no time.
  std::unique_ptr<kernels_cache::KernelCache> cache;
  if (!o.commit.empty()) {
    CacheFlags flags;
    flags.dir = o.commit;
    flags.op_libraries = (*bench)->op_libraries;
    auto opened = device ? flags.open(kernels_cache::Access::kReadWrite, device->session().environment)
                         : flags.open(kernels_cache::Access::kReadWrite);
    if (!opened.ok()) return fail(opened.status());
    cache = std::move(*opened);
  }
  evolve::EvaluatorOptions options;
  options.child_start = torch_child_start;
  options.seed = o.seed;
  const evolve::ProblemCosts costs(spec.problems);
  const evolve::CpuTarget target = spec.target;
  auto judged = evolve::evaluate_file(o.kernel, std::move(spec), std::move(options),
                                      device ? device->session().make_evaluator : evolve::make_evaluator);
  if (!judged.ok()) return fail(judged.status());
  const evolve::Verdict& verdict = judged->judgement.verdict;
  std::printf("%s\n", verdict.to_json().c_str());
  std::fputs(evolve::verdict_text(verdict, **definition).c_str(), stderr);
  if (const Status s = write_inputs(o, *op, *definition, verdict); !s.ok()) return fail(s);
  if (!cache) return verdict.faster() ? 0 : kOtherVerdict;
  if (!verdict.faster()) {
    std::fprintf(stderr, "niche: not committed: the verdict is not FASTER\n");
    return kOtherVerdict;
  }
  if (const Status s = commit(o, **definition, target, *judged, costs, *cache); !s.ok()) return fail(s);
  return 0;
}

}  // namespace

void add_evaluate_command(CLI::App& app, int* exit_code) {
  CLI::App* c = app.add_subcommand(
      "evaluate",
      "judge a kernel source; its Verdict as JSON on stdout, for people on stderr; 0: FASTER, 3: another");
  auto o = std::make_shared<Options>();
  c->add_option("kernel", o->kernel,
                "C++ or CUDA C++ source (evolve/candidate_text.h says how it describes itself)")
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
  c->add_option("--device", o->device, "where it runs: cpu, or cuda:N")
      ->check(device_name())
      ->capture_default_str();
  c->add_option("--inputs", o->inputs,
                "where it is wrong, write that case's inputs and right outputs here, as .npy");
  c->add_option("--seed", o->seed, "of the inputs: the same one gives the same; 0: from the system")
      ->check(seed_number());
  c->callback([o, exit_code] { *exit_code = run(*o); });
}

}  // namespace niche::cli
