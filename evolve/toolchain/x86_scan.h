// Finds forbidden instructions in x86-64 machine code by a linear sweep with an instruction-length decoder
// (legacy, VEX, EVEX and XOP encodings).
//
// Compilers put no data into code, so a sweep from the start of a section meets every instruction the
// compiler wrote. Code that jumps into the middle of an instruction escapes it: seccomp is what holds such
// code (docs/evaluation.md). Thread-safety: pure. Cost: about 5 ns an instruction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace niche::evolve {

// Length of the instruction at the start of `code`, or 0 where it is unknown or cut off.
size_t instruction_length(std::span<const uint8_t> code);

struct ForbiddenInstruction {
  const char* name = nullptr;  // "syscall"; null: none found; "unknown": bytes the decoder does not know
  size_t offset = 0;
};
ForbiddenInstruction find_forbidden_instruction(std::span<const uint8_t> code);

}  // namespace niche::evolve
