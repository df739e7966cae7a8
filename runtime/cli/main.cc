// The `niche` program.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "evolve/proposer/proposer_process.h"
#include "runtime/cli/common.h"
#include "runtime/cli/replay/replay_command.h"
#include "runtime/cli/session_proposer.h"
#include "runtime/cli/typing_errors.h"
#include "runtime/torch/worker.h"

int main(int argc, char** argv) {
  // First: a worker forks, and must not have a thread by then. `niche probe 1`: candidates on GPU 1.
  // Its session does not wait for the proposer to load: templates have their turn meanwhile.
  if (niche::is_worker(argc, argv))
    return niche::worker_main(argc, argv, [](const niche::evolve::ModelRequest& model) {
      return niche::cli::start_session_proposer(model, 0);
    });

  // The process that asks a model; started by `niche evolve --proposer` and by `niche worker`.
  if (argc == 2 && std::string_view(argv[1]) == "proposer") return niche::evolve::proposer::proposer_main();

  CLI::App app{"niche: shape-aware dispatch of evolved, verified kernels"};
  app.set_version_flag("--version", NICHE_VERSION);
  app.require_subcommand(1);
  int exit_code = 0;
  niche::cli::add_evolve_command(app, &exit_code);
  niche::cli::add_evaluate_command(app, &exit_code);
  niche::cli::add_history_commands(app, &exit_code);
  niche::cli::add_kb_command(app, &exit_code);
  niche::cli::add_cache_command(app, &exit_code);
  niche::cli::add_explain_command(app, &exit_code);
  niche::cli::add_config_command(app, &exit_code);
  niche::replay::add_replay_command(app, &exit_code);
  app.add_subcommand("worker", "the process in which candidates live and die; started by a server");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (app.exit(e) == 0) return niche::cli::printed(0);
    if (const std::string near = niche::cli::suggestion(app, argc, argv); !near.empty())
      std::fprintf(stderr, "niche: %s\n", near.c_str());
    return 2;
  }
  return niche::cli::printed(exit_code);
}
