// What supervisor, oracle and cells say to each other: plain structs in the arena's mailbox. One command at a
// time a child; a byte on its socket says "go", one back says "done".
//
// Invariant: the supervisor believes nothing that a cell wrote here but the times, and those it cross-checks:
// outputs are compared by the oracle, crashes are seen from the outside.
#pragma once

#include <array>
#include <cstdint>

#include "dispatch/definition.h"
#include "evolve/judge/arena.h"

namespace niche::evolve::judge {

using ArgPlacements = std::array<Placement, dispatch::kMaxArgs>;
using Axes = std::array<int64_t, dispatch::kMaxAxes>;

inline constexpr int kSetsMax = 64;  // sets of inputs that a timing rotates through
inline constexpr int kPairsInCommand = 512;
inline constexpr int kCallsMax = 16;  // calls an observation
inline constexpr int kFormsMax = 16;
inline constexpr int kTextBytes = 2048;

// What a cell is doing, for the report of a crash. Written by its harness and signal handlers.
enum class Stage : uint32_t { kIdle = 0, kLoading, kFallback, kPack, kKernel, kHarness };
struct CrashPage {
  volatile uint32_t stage;
  volatile uint32_t phase;    // of the launch plan
  volatile int32_t signal;    // 0: no signal handler ran
  volatile int32_t syscall;   // of SIGSYS
  volatile uint64_t address;  // si_addr
};

// --- oracle ---
struct CaseId {
  Axes axes{};
  int32_t distribution = 0;
  uint64_t seed = 0;
  uint64_t constant_seed =
      0;  // not 0: constant arguments come from this seed, so that many cases share one weight
  bool operator==(const CaseId&) const = default;
};
// One run's buffers. `poison` selects the pattern that outputs and slack are filled with.
struct RunBuffers {
  ArgPlacements arg{};
  uint32_t poison = 0;
};
struct OracleCommand {
  enum Kind : uint32_t { kPrepare, kRefer, kCheck, kQuit } kind;
  CaseId id;
  int32_t form;            // fallback whose error is the yardstick
  int32_t runs;            // 1 or 2
  uint32_t deterministic;  // kCheck: both runs must agree in every bit
  RunBuffers run[2];
};
struct OracleReply {
  uint32_t failed;              // the operator's own inputs, reference or fallback failed: `text`
  uint32_t wrong;               // the outputs were wrong: `text`, `gate`
  uint32_t gate;                // evolve::Gate
  double max_error, rms_error;  // in units of the bound
  char text[kTextBytes];
};

// --- cells ---
enum class Split : uint32_t { kWhole, kShuffled, kThreads };
struct TestCommand {
  int32_t kernel;
  Axes axes;
  ArgPlacements arg;
  Placement workspace, packed;
  Split split;
  uint64_t seed;
};
struct TestReply {
  uint32_t arguments_changed;  // the struct it was called with, not the buffers
  uint32_t mxcsr_before, mxcsr_after;
};

inline constexpr int32_t kForms = -1;
inline constexpr int32_t kSelf = -2;
struct TimeCommand {
  int32_t kernel;  // -1: fallback forms against each other
  int32_t forms;   // number of entries in `form`; with a kernel: 1
  int32_t form[kFormsMax];
  Axes axes;
  int32_t sets;
  int32_t pairs;  // attempts; dropped ones count
  int32_t calls;  // calls an observation
  uint32_t cold;
  double self_delay;  // kSelf: the second side takes this share longer
  uint64_t seed;
  int64_t packed_bytes, workspace_bytes;
  int32_t verify_pair;          // copies the kernel's outputs of this pair out; -1: none
  ArgPlacements verify;         // kOut and kInOut arguments
  ArgPlacements set[kSetsMax];  // inputs; kInOut: the pristine contents
  ArgPlacements work;           // kInOut: where a call may write
};
struct PairTime {
  double ticks[kFormsMax];  // with a kernel: [0] fallback, [1] kernel; of one call
  uint32_t dropped;         // a context switch or a page fault hit it
};
struct TimeReply {
  int32_t pairs;
  int32_t verified_set;  // -1: none
  uint32_t arguments_changed;
  PairTime pair[kPairsInCommand];
};
// Kernel calls in a row that the supervisor times by the child's CPU clock.
struct BlockCommand {
  int32_t side;  // 0: fallback, 1: kernel
  int32_t calls;
  int32_t verify_call;  // copies the outputs of this call out, of either side, to time.verify; -1: none
};

struct CellCommand {
  enum Kind : uint32_t { kTest, kTime, kBlock, kQuit } kind;
  union {
    TestCommand test;
    TimeCommand time;
    BlockCommand block;
  };
};
struct CellReply {
  uint32_t failed;  // the harness or the fallback failed: `text`
  char text[kTextBytes];
  union {
    TestReply test;
    TimeReply time;
  };
};

// Mailbox layout: children never run commands at the same time as the supervisor writes theirs.
inline constexpr int64_t kCrashAt = 0;
inline constexpr int64_t kOracleCommandAt = 4096;
inline constexpr int64_t kOracleReplyAt = 16384;
inline constexpr int64_t kCellReplyAt = 32768;
inline constexpr int64_t kCellCommandAt = 512 << 10;
static_assert(kOracleCommandAt + sizeof(OracleCommand) <= kOracleReplyAt);
static_assert(kOracleReplyAt + sizeof(OracleReply) <= kCellReplyAt);
static_assert(kCellReplyAt + sizeof(CellReply) <= kCellCommandAt);
static_assert(kCellCommandAt + sizeof(CellCommand) <= kMailboxBytes);

}  // namespace niche::evolve::judge
