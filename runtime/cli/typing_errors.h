// What `niche` says to a command line that it does not understand.
//
// Thread-safety: none: at the program's start.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace niche::cli {

// "did you mean '--op'?" for the first subcommand or option that is not known; empty: nothing is near.
std::string suggestion(const CLI::App& app, int argc, char** argv);

}  // namespace niche::cli
