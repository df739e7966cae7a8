// Environment: everything that must be equal for a verified kernel to stay trusted without verifying it
// again.
//
// It names the directory that a cache lives in. Two halves: what the kernel runs on (device, driver,
// libraries, operators, ABI) and what built it (the compiler). A server without a compiler leaves `compiler`
// empty and reads whichever directory of the same running half was used last (home.h). Inputs are
// plain strings; dispatch/devices/*_info.h provides them. Thread-safety: a value.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dispatch/base/status.h"
#include "dispatch/kernel_abi.h"

namespace niche::kernels_cache {

struct Environment {
  std::string device_class;  // "cpu", "cuda.sm90": also the directory name's first part
  std::string device_model;  // "AMD EPYC 7R13 (family 25, model 1)"
  // Instruction sets that code may depend on; order and repeats do not matter.
  std::vector<std::string> isa_flags;
  std::string driver;  // empty on CPU
  // "torch 2.11.0", "oneDNN 3.7": what fallbacks and references come from.
  std::vector<std::string> libraries;
  std::vector<std::string> op_libraries;  // "<file name> <SHA-256 hex>" of each user-operator library loaded
  int kernel_abi = NICHE_KERNEL_ABI_VERSION;
  std::string compiler;  // "g++ 12.2.0"; empty: none here (a server that only reads)

  // One "key: value" a line, sorted where order has no meaning; control characters become spaces, so that no
  // value can pretend to be another line. Equal texts mean equal environments. Stored in the directory for
  // people to read.
  std::string canonical_text() const;
  // "<device class>-<16 hex of the running half>-<8 hex of the compiler>"; "...-any" without a compiler.
  std::string directory_name() const;
  std::string running_prefix() const;  // the same up to and including the second dash
};

// Lines that differ, "device_model: A != B; ...": for a refusal's message.
std::string describe_difference(std::string_view canonical_a, std::string_view canonical_b);

}  // namespace niche::kernels_cache
