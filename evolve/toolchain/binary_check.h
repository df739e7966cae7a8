// Checks a compiled kernel as a binary: what its text claims does not matter here.
//
// Refused: undefined symbols beyond mem* and libm's scalar functions; constructors, destructors, IFUNCs, TLS;
// writable data; a dynamic dependency; segments writable and executable; instructions that enter the kernel,
// read a clock or counter, or change the floating-point or segment state. Thread-safety: pure. Cost: some 100
// µs for 100 KiB of code.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dispatch/base/status.h"
#include "evolve/defences.h"

namespace niche::evolve {

// What a checked object holds.
struct BinaryFacts {
  std::vector<std::string> exports;  // defined global functions
  uint64_t code_hash = 0;  // of code and constants: equal ones are the same kernel under other names
  int64_t code_bytes = 0;
};

// kInvalid names the symbol, section or instruction (with its offset); kCorrupt: not a well-formed ELF
// object.
dispatch::Result<BinaryFacts> check_binary(std::span<const uint8_t> object,
                                           std::span<const std::string> required_exports,
                                           DefencesOff off = {});

}  // namespace niche::evolve
