// The `niche` program.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "evolve/proposer/proposer_process.h"
#include "runtime/cli/common.h"
#include "runtime/cli/replay/replay_command.h"
#include "runtime/torch/worker.h"
#ifdef NICHE_WITH_CUDA
#include "evolve/probe/probe_main.h"
#endif

int main(int argc, char** argv) {
  // First: a worker forks, and must not have a thread by then.
  if (niche::is_worker(argc, argv)) return niche::worker_main(argc, argv);

  // The process that asks a model; started by `niche evolve --proposer`.
  if (argc == 2 && std::string_view(argv[1]) == "proposer") return niche::evolve::proposer::proposer_main();

#ifdef NICHE_WITH_CUDA
  // The process in which candidates for a GPU run; started by a DeviceProbe. `niche probe 1`: on device 1.
  if (argc >= 2 && std::string_view(argv[1]) == "probe")
    return niche::evolve::probe_main([] { return niche::dispatch::CudaDriver::load(); },
                                     argc > 2 ? std::atoi(argv[2]) : 0);
#endif

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
  CLI11_PARSE(app, argc, argv);
  return exit_code;
}
