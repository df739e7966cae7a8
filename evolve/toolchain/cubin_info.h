// What a cubin says of its kernels: registers, stack, shared memory, spills: read from the ELF and from
// ptxas's report in the compile log, so that neither cuobjdump nor a GPU is needed.
//
// Thread-safety: pure. Cost: some µs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/base/status.h"

namespace niche::evolve {

struct CubinKernel {
  std::string symbol;
  int registers = 0;
  int stack_bytes = 0;         // a thread: spills, arrays with run-time indices, calls
  int spill_store_bytes = -1;  // from the log; -1: the log does not say
  int spill_load_bytes = -1;
  int static_shared_bytes = -1;

  // "registers 40, stack 0, spills 0/0, shared 1024": for a Verdict's diagnosis.
  std::string to_string() const;
};

struct CubinInfo {
  std::vector<CubinKernel> kernels;  // by symbol
  // Module variables that a kernel can write to, with their bytes: refused for candidates, since state in a
  // module outlives a call.
  int64_t writable_global_bytes = 0;
  std::vector<std::string> writable_globals;  // their names, as far as the symbol table has them

  const CubinKernel* find(std::string_view symbol) const;
};

// kCorrupt: not a whole 64-bit ELF for CUDA (what and where). `log`: of the compile, may be empty.
dispatch::Result<CubinInfo> read_cubin(std::span<const uint8_t> cubin, std::string_view log);

}  // namespace niche::evolve
