// Guard, LaunchPlan, Kernel: one compiled implementation of a Definition and what it may be used for.
//
// Thread-safety: plain values; a published Kernel is immutable but for what route.h says of its state words.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/definition.h"
#include "dispatch/kernel_abi.h"

namespace niche::dispatch {

// The problems a Kernel can run: a box over the variable axes, clipped to what was verified. All arguments
// are contiguous, no output overlaps another argument, and every pointer is aligned to `alignment_bytes`.
struct Guard {
  struct Range {
    int64_t lo = 1, hi = 0;  // inclusive; lo > hi holds nothing
    int64_t multiple_of = 1;
    bool holds(int64_t v) const { return v >= lo && v <= hi && v % multiple_of == 0; }
  };
  std::array<Range, kMaxVarAxes> var{};  // in Definition::var_axes() order
  int var_count = 0;
  int alignment_bytes = 1;

  // Does the Guard hold for a Problem's axes (one value an axis of the schema)? Some 2 ns; no allocation.
  bool holds(const Definition& d, const int64_t* axes) const {
    const auto vars = d.var_axes();
    for (int i = 0; i < var_count; ++i)
      if (!var[static_cast<size_t>(i)].holds(axes[vars[static_cast<size_t>(i)]])) return false;
    return true;
  }
  // The same for the variable axes alone, in Definition::var_axes() order.
  bool holds_var(const int64_t* var_axes) const {
    for (int i = 0; i < var_count; ++i)
      if (!var[static_cast<size_t>(i)].holds(var_axes[i])) return false;
    return true;
  }
};

// How many tasks a phase has: the product over `factors` of ceil(extent(axis) / divisor). No factor: one
// task.
struct TaskFactor {
  int axis = 0;  // index into the schema's axes
  int64_t divisor = 1;
};
struct Phase {
  std::string symbol;  // the entry in the artefact
  std::vector<TaskFactor> factors;
  // Split over threads only when there are at least this many tasks; below, the caller's thread runs them
  // all. A threaded region costs 0.5–2 µs (see docs/operators.md), so small problems stay serial.
  int64_t parallel_min_tasks = 2;

  int64_t tasks(const int64_t* axes) const {
    int64_t n = 1;
    for (const TaskFactor& f : factors) n *= (axes[f.axis] + f.divisor - 1) / f.divisor;
    return n;
  }
};

struct LaunchPlan {
  std::vector<Phase> phases;    // run in order; at most 3
  std::string pack_symbol;      // empty: no packed constants
  int64_t packed_bytes = 0;     // per binding
  int64_t workspace_bytes = 0;  // per call, the maximum over the Guard
};

// Properties a call can demand.
struct KernelProperties {
  bool deterministic = true;    // equal inputs give equal bits, whatever the thread count
  bool batch_invariant = true;  // a row's bits do not depend on the other rows or their number
  bool capturable = true;       // may run under device-graph capture
  bool f32_accumulate = true;   // sums are kept in fp32 or wider
};

// Where a kernel came from: enough to rebuild or to explain it.
struct Provenance {
  std::string family;       // template family or model
  std::string parameters;   // "rows=2 unroll=4 stream=0"
  std::string session;      // session id
  std::string compiler;     // "g++ 12.2.0 -O3 -march=native ..."
  std::string source_hash;  // SHA-256, hex
};

enum class KernelKind : uint8_t { kFallback = 0, kCpu = 1, kCuda = 2, kHip = 3 };

}  // namespace niche::dispatch
