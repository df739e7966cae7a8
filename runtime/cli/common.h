// What the commands of `niche` share: flags for an operator's Definition and for the cache directory.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "evolve/template_family.h"
#include "kernels_cache/kernel_cache.h"
#include "runtime/cli/number_flags.h"
#include "runtime/runtime.h"

namespace niche::cli {

// --op, --dtype, --const N=4096, --attr eps=1e-6, or --definition FILE.json; --op-library, --python.
struct DefinitionFlags {
  std::string op, dtype = "f32", file, python;
  std::vector<std::string> const_axes, attrs, op_libraries;
  void add_to(CLI::App& app);
};

// Everything that a command may need of operators; loads what --op-library names, and a --definition whose operator
// nobody else has.
struct Workbench {
  dispatch::OpRegistry ops;
  evolve::FamilyRegistry families;
  // What a server must load to know the same: --op-library, and --definition's file where its operator is its own.
  std::vector<std::string> op_libraries;
  // `references`: will references be run? Only then does a Definition whose reference is Python need an interpreter.
  static dispatch::Result<std::unique_ptr<Workbench>> make(const DefinitionFlags& flags, bool references);
  dispatch::Result<std::shared_ptr<const dispatch::Definition>> definition(
      const DefinitionFlags& flags) const;
};

// "cpu" or "cuda:N".
CLI::Validator device_name();
// Threads of a call: from 1 to the processors of this machine. More wait for each other: no time means anything, and a
// judge of thousands brings the machine down.
CLI::Validator thread_count();

// "N=4096" to {"N", 4096}. kInvalid names the text.
dispatch::Result<Axes> parse_axes(const std::vector<std::string>& texts);
// "B=4,L=200": the extents of `definition`'s variable axes, in its order. kInvalid names the axis that is missing, given
// twice or not variable.
dispatch::Result<std::vector<int64_t>> parse_problem(const std::string& text,
                                                     const dispatch::Definition& definition);
dispatch::Result<Attrs> parse_attrs(const std::vector<std::string>& texts);

// --cache DIR (default: NICHE_CACHE_DIR), --op-library.
struct CacheFlags {
  std::string dir;
  std::vector<std::string> op_libraries;
  void add_to(CLI::App& app);
  dispatch::Result<std::unique_ptr<kernels_cache::KernelCache>> open(kernels_cache::Access access) const;
  // Of another environment than this host's: a device's.
  dispatch::Result<std::unique_ptr<kernels_cache::KernelCache>> open(
      kernels_cache::Access access, const kernels_cache::Environment& environment) const;
  // To write to a cache that must be there; kNotFound: it is not, or only other environments' are, and what makes them
  // others. open() would make one.
  dispatch::Result<std::unique_ptr<kernels_cache::KernelCache>> open_existing() const;
  // The same, but other environments' suffice: to tend those.
  dispatch::Result<std::unique_ptr<kernels_cache::KernelCache>> open_root() const;
};

// Writes a file, or standard output where `path` is empty. kIo: what could not be written, and why.
dispatch::Status write_out(const std::string& path, std::string_view text);
// At a program's end: `exit_code`, or that of a failure where something that was printed did not reach standard output (a
// full disk), which is then said.
int printed(int exit_code);

// Prints "niche: <message>" to stderr; the exit code that a failed command gives.
int fail(const dispatch::Status& status);

// Each adds a subcommand whose callback sets *exit_code.
void add_evolve_command(CLI::App& app, int* exit_code);
void add_evaluate_command(CLI::App& app, int* exit_code);
// sessions, tree, export
void add_history_commands(CLI::App& app, int* exit_code);
void add_kb_command(CLI::App& app, int* exit_code);
void add_cache_command(CLI::App& app, int* exit_code);
void add_explain_command(CLI::App& app, int* exit_code);
void add_config_command(CLI::App& app, int* exit_code);

}  // namespace niche::cli
