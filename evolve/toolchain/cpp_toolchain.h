// CppToolchain: the system's C++ compiler as a function from kernel sources to a shared object, with flags
// and limits chosen here, not by the source.
//
// A source is untrusted text: it is read by a lexer before the compiler sees it (source_check.h), compiled in
// a process with an empty environment, CPU, memory, file-size and wall limits, read access to the compiler's
// own directories alone (Landlock, where the kernel has it), and the result is checked as a binary
// (binary_check.h).
//
// Thread-safety: const methods may run in several threads. Cost: 50–100 ms for one kernel without headers,
// 10–20 ms more for each further kernel in the same unit (build machine).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/base/status.h"

namespace niche::evolve {

struct CompileLimits {
  double cpu_seconds = 20;
  double wall_seconds = 120;  // a worker under SCHED_IDLE may wait long for its CPU
  int64_t memory_bytes = int64_t{2} << 30;
  int64_t output_bytes = int64_t{16} << 20;
  int64_t source_bytes = int64_t{1} << 20;
  bool read_source = true;           // by source_check.h; false: tests of the defences alone
  std::function<bool()> keep_going;  // asked every 100 ms of a compile: false ends it. Empty: always
};

// One of the sources that share a compile.
struct SourceUnit {
  std::string name;  // for diagnostics
  std::string_view text;
  std::vector<std::string> exports;  // symbols to export; every other one stays local
};

struct CompiledObject {
  std::vector<uint8_t> bytes;  // an ELF shared object, linked without start files and libraries
  double ms = 0;
};

class CppToolchain {
 public:
  // `compiler` empty: c++, g++, clang++ on PATH. `scratch_dir` must exist and belong to this process alone.
  // kNotFound lists where it looked; kUnsupported: it does not compile a trivial kernel (with its message).
  static dispatch::Result<std::unique_ptr<CppToolchain>> find(const std::string& compiler,
                                                              const std::string& scratch_dir,
                                                              const CompileLimits& limits = {});

  // "g++ 12.2.0 -O3 -march=native ...": part of the environment key and of a kernel's provenance.
  const std::string& version() const { return version_; }
  const std::string& program() const { return program_; }
  // "landlock+rlimits": what holds a compile in.
  const std::string& confinement() const { return confinement_; }

  // Is `flag` one that a source may ask for (beyond the toolchain's own)?
  static bool flag_allowed(std::string_view flag);

  // Compiles all units as one translation unit, each inside its own namespace, after `shared`, text that
  // every unit may use (line numbers of diagnostics count from each unit's own first line). kInvalid: a
  // unit's text or flag is refused (named), or the compiler found an error: the message starts at the first
  // error line, at most 4 KiB. kBusy: a limit was hit (named). kIo: the machinery failed, or
  // gave the compiler no CPU, or keep_going ended it.
  dispatch::Result<CompiledObject> compile(std::span<const SourceUnit> units,
                                           std::span<const std::string> flags,
                                           std::string_view shared = {}) const;

 private:
  CppToolchain() = default;
  std::string program_, version_, confinement_, scratch_dir_;
  CompileLimits limits_;
};

}  // namespace niche::evolve
