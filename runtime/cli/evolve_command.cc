// `niche evolve`: one session in the foreground, with live progress; writes the cache that a server reads.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "dispatch/base/format.h"
#include "evolve/definition_json.h"
#include "evolve/proposer/secrets.h"
#include "evolve/session/local_session.h"
#include "runtime/cli/common.h"
#include "runtime/cli/progress_line.h"
#include "runtime/cli/session_device.h"
#include "runtime/cli/session_proposer.h"
#include "runtime/host_environment.h"
#include "runtime/torch/worker.h"

namespace niche::cli {
namespace {

using dispatch::format;
using evolve::SessionEvent;

std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");

// The first signal ends the session at the next candidate, the second ends the program: its children die with it, and
// what was committed is in the cache. Two may come at once, in two threads.
void interrupt(int signal) {
  if (interrupted.exchange(true)) {
    constexpr char kText[] = "\nniche: interrupted again: leaving at once\n";
    (void)!::write(STDERR_FILENO, kText, sizeof kText - 1);
    ::_exit(128 + signal);
  }
}

struct Options {
  DefinitionFlags definition;
  std::string cache, store, policy = "default", device = "cpu";
  std::vector<std::string> problems;
  double seconds = 60, target = 0;
  int evaluations = 2000, threads = 1, batch = 8;
  uint64_t seed = 0;
  bool cold = false, resume = false, profile = false;
  evolve::ModelRequest model;
  std::string knowledge;
};

// "M=16" or "M=16:0.7" or "B=4,L=200:0.3".
dispatch::Result<evolve::SeenProblem> parse_weighted(const std::string& text, const dispatch::Definition& d,
                                                     bool cold) {
  const size_t colon = text.find(':');
  auto axes = parse_problem(text.substr(0, colon), d);
  if (!axes.ok()) return axes.status();
  evolve::SeenProblem p;
  p.cold = cold;
  p.var_axes = std::move(*axes);
  if (colon == std::string::npos) return p;
  const auto weight = parse_number<double>(std::string_view(text).substr(colon + 1));
  p.weight = weight.value_or(0);
  if (!(p.weight > 0))
    return dispatch::invalid("problem '" + text + "' of " + d.name() +
                             ": a weight that is no positive number");
  return p;
}

// Best so far, what is left of the budget, which gates refused how many.
void show(ProgressLine& line, const Options& o, const SessionEvent& e) {
  switch (e.kind) {
    case SessionEvent::Kind::kProgress: {
      std::string refused;
      for (int g = 0; g < evolve::kGateCount; ++g)
        if (const int n = e.rejected[static_cast<size_t>(g)]; n != 0)
          refused +=
              ' ' + std::string(evolve::gate_name(static_cast<evolve::Gate>(g))) + ' ' + std::to_string(n);
      std::string now = format("%.0f s left  %d of %d tried  best screened %.3fx  confirmed %.3fx (%d)",
                               std::max(0.0, o.seconds - e.seconds_used), e.tried, o.evaluations,
                               e.best_speedup, e.committed_speedup, e.kernels);
      if (!refused.empty()) now += "  refused:" + refused;
      if (e.questions > 0)
        now += format("  model: %d of %d asked, %d programs, $%.4f of $%.2f", e.questions,
                      o.model.questions_max, e.programs, e.model_usd, o.model.usd_max);
      line.show(now);
      break;
    }
    case SessionEvent::Kind::kKernel:
      line.print(format("%6.1f s  verified ", e.seconds_used) + e.kernel_name);
      break;
    case SessionEvent::Kind::kDone:
    case SessionEvent::Kind::kFailed:
      line.end();
      break;
  }
}

// Someone waits at a terminal: what is wrong with the proposer is said before the session begins.
constexpr double kProposerSeconds = 120;

int run(const Options& o) {
  std::unique_ptr<evolve::proposer::ProposalSource> source;
  std::unique_ptr<kb::Library> library;
  if (!o.model.proposer.empty()) {
    auto started = start_session_proposer(
        o.model, kProposerSeconds);  // before anything else here has a thread or a child
    if (!started.ok()) return fail(started.status());
    source = std::move(*started);
    auto opened = kb::Library::open(o.knowledge);
    if (!opened.ok()) return fail(opened.status());
    library = std::move(*opened);
  }
  evolve::proposer::scrub_environment();  // candidates run in children of this process
  auto bench = Workbench::make(o.definition, true);
  if (!bench.ok()) return fail(bench.status());
  auto definition = (*bench)->definition(o.definition);
  if (!definition.ok()) return fail(definition.status());
  evolve::SessionRequest request;
  request.definition_json = evolve::definition_to_json(**definition);
  for (const std::string& text : o.problems) {
    auto p = parse_weighted(text, **definition, o.cold);
    if (!p.ok()) return fail(p.status());
    request.problems.push_back(*p);
  }
  std::error_code ignored;
  std::filesystem::create_directories(o.cache, ignored);
  request.cache_dir = o.cache;
  request.store_path = o.store.empty() ? o.cache + "/trajectories.sqlite" : o.store;
  request.op_libraries = (*bench)->op_libraries;
  request.wall_seconds_max = o.seconds;
  request.evaluations_max = o.evaluations;
  request.target_speedup = o.target;
  request.threads = o.threads;
  request.seed = o.seed;
  request.policy = o.policy;
  request.batch = o.batch;
  request.resume = o.resume;
  if (o.device != "cpu") request.device = o.device;
  if (o.profile && request.device.empty())
    return fail(dispatch::invalid("--profile looks at a kernel on a GPU: --device cuda:N names one"));
  request.model = o.model;
  evolve::LocalSessionOptions session;
  session.ops = &(*bench)->ops;
  std::unique_ptr<SessionDevice> device;
  if (request.device.empty()) {
    auto environment = host_environment(torch_libraries(), (*bench)->op_libraries, true);
    if (!environment.ok()) return fail(environment.status());
    session.families = &(*bench)->families;
    session.environment = *environment;
    session.make_evaluator = evolve::make_evaluator;
  } else {
    auto opened = SessionDevice::open(request, o.profile);
    if (!opened.ok()) return fail(opened.status());
    device = std::move(*opened);
    session.profile = device->profiles();
    session.families = &device->session().families;
    session.environment = device->session().environment;
    session.make_evaluator = device->session().make_evaluator;
    session.device = device->session().device;
    session.cuda = device->session().cuda;
  }
  session.evaluator_options.child_start = torch_child_start;
  ProgressLine line;
  session.on_event = [&o, &line](const SessionEvent& e) { show(line, o, e); };
  session.model.source = source.get();
  session.model.library = library.get();
  session.model.options.questions_max = o.model.questions_max;
  session.model.options.answer_seconds_max = o.model.answer_seconds_max;
  session.model.options.context_bytes_max = o.model.context_bytes_max;
  session.stop = [] { return interrupted.load(); };
  session.log = [&line](const std::string& said) { line.print(said); };
  for (int signal : {SIGINT, SIGTERM}) std::signal(signal, interrupt);
  auto last = evolve::run_local_session(std::move(request), std::move(session));
  if (!last.ok()) return fail(last.status());
  std::printf("%s: %s after %.1f s; %d tried, %d kernels committed, %.3fx\n", (*definition)->name().c_str(),
              evolve::last_words(*last).c_str(), last->seconds_used, last->tried, last->kernels,
              last->committed_speedup);
  if (last->questions > 0)
    std::printf("  model: %d questions, %d programs, $%.4f\n", last->questions, last->programs,
                last->model_usd);
  for (int g = 0; g < evolve::kGateCount; ++g)
    if (last->rejected[static_cast<size_t>(g)] != 0)
      std::printf("  rejected at %-12s %d\n", evolve::gate_name(static_cast<evolve::Gate>(g)),
                  last->rejected[static_cast<size_t>(g)]);
  return last->kind == SessionEvent::Kind::kDone ? 0 : 1;
}

}  // namespace

void add_evolve_command(CLI::App& app, int* exit_code) {
  CLI::App* c =
      app.add_subcommand("evolve", "evolve kernels for one Definition in the foreground, into a cache");
  auto o = std::make_shared<Options>();
  o->definition.add_to(*c);
  c->add_option("--cache", o->cache, "cache directory")->envname("NICHE_CACHE_DIR")->required();
  c->add_option("--problem", o->problems, "variable axes and a weight, e.g. M=16:0.7 (repeat)")
      ->allow_extra_args(false)
      ->required();
  c->add_option("--seconds", o->seconds, "wall time")->check(positive())->capture_default_str();
  c->add_option("--evaluations", o->evaluations, "candidates")
      ->check(whole_in(1, 1'000'000'000))
      ->capture_default_str();
  c->add_option("--target", o->target, "end at this speed-up; 0: none")
      ->check(not_negative())
      ->capture_default_str();
  c->add_option("--threads", o->threads, "threads that a live call may use")
      ->check(thread_count())
      ->capture_default_str();
  c->add_option("--batch", o->batch, "candidates a compile")->check(CLI::Range(1, 64))->capture_default_str();
  c->add_option("--policy", o->policy, "search policy")->capture_default_str();
  c->add_option("--store", o->store, "SQLite file of search trees; default: in the cache directory");
  c->add_option("--device", o->device, "what the kernels are for: cpu, or cuda:N")
      ->check(device_name())
      ->capture_default_str();
  c->add_option("--seed", o->seed, "0: from the system")->check(seed_number());
  c->add_flag("--profile", o->profile, "at the end, Nsight Compute looks at the best kernel of a GPU")
      ->needs(c->get_option("--device"));
  c->add_flag("--cold", o->cold, "judge with cold caches");
  c->add_flag("--resume", o->resume, "go on with this Definition's unfinished session");
  c->add_option("--proposer", o->model.proposer,
                "a model that writes programs: exec:CMD, mailbox:DIR, openai:URL#MODEL or anthropic:MODEL");
  c->add_option("--model-budget", o->model.usd_max, "dollars that it may cost")->check(not_negative());
  c->add_option("--model-price", o->model.price, "IN,OUT: dollars a million tokens");
  c->add_option("--model-tokens", o->model.tokens_max, "tokens that it may take; 0: no limit")
      ->check(whole_in(0, int64_t{1} << 53));
  c->add_option("--model-key-file", o->model.key_file, "its key; else OPENAI_API_KEY, ANTHROPIC_API_KEY");
  c->add_option("--questions", o->model.questions_max, "asked of the model at most")
      ->check(whole_in(0, 1'000'000))
      ->capture_default_str();
  c->add_option("--answer-seconds", o->model.answer_seconds_max, "time for an answer")
      ->check(positive())
      ->capture_default_str();
  c->add_option("--context-bytes", o->model.context_bytes_max,
                "of a question, for models with a small context; 0: no limit")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24));
  c->add_option("--knowledge", o->knowledge, "directory with pages of your own for the model");
  c->callback([o, exit_code] { *exit_code = run(*o); });
}

}  // namespace niche::cli
