// `niche replay TRACE`: drives a server with a trace and prints what its users would have seen.
#pragma once

#include <CLI/CLI.hpp>

namespace niche::replay {

// Adds the subcommand. Its callback sets *exit_code: 0, 1 when a request failed, 2 for a trace that cannot be
// read.
void add_replay_command(CLI::App& app, int* exit_code);

}  // namespace niche::replay
