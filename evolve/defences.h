// Defences: what stands between a cheat and a FASTER, one bit each, so that a test can switch one off and show
// that it, and not luck, catches the cheats that are named after it (tests/cheats). Everywhere but in such a
// test all of them hold: no program and no request can say otherwise.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace niche::evolve {

enum class Defence : uint32_t {
  kErrorBound,         // outputs are compared with the fp64 reference
  kTwoRuns,            // a case runs twice, between other contents and ranges of tasks, with equal bits
  kUnseenPoints,       // correctness beyond the problems that traffic showed
  kDistributions,      // inputs that are not normal
  kReadOnlyInputs,     // inputs cannot be written, and are compared afterwards
  kArgumentPrint,      // the argument struct is the same after a call
  kMxcsr,              // so is the floating-point control word
  kTimedOutputs,       // one output of every timed batch is checked
  kOwnSets,            // each side of a pair, and each call, has values of its own
  kOutputsErased,      // outputs are overwritten before their memory is free
  kWorkspaceErased,    // the workspace is overwritten before each call
  kReadOnlyConstants,  // packed constants cannot be written
  kDeadStack,          // the stack below the caller is cleared
  kClock,              // reported times stand against the CPU clock of the system
  kSource,             // the text is read by a lexer before the compiler sees it
  kData,               // no writable globals, thread-locals, constructors or indirect functions
  kSymbols,            // undefined symbols are on the allow-list
  kInstructions,       // no instruction enters the kernel, reads clocks or changes control words
  kWalls,              // Landlock, seccomp and limits around the cell
};
inline constexpr int kDefenceCount = static_cast<int>(Defence::kWalls) + 1;

class DefencesOff {
 public:
  constexpr DefencesOff() = default;
  constexpr DefencesOff(std::initializer_list<Defence> off) {
    for (const Defence d : off) bits_ |= uint32_t{1} << static_cast<uint32_t>(d);
  }
  constexpr bool has(Defence d) const { return (bits_ >> static_cast<uint32_t>(d) & 1) != 0; }
  constexpr bool none() const { return bits_ == 0; }

 private:
  uint32_t bits_ = 0;
};

}  // namespace niche::evolve
