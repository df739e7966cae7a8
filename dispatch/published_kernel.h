// Kernel: something that can answer a call, in this process: an evolved kernel with its code loaded and
// symbols resolved, or a library fallback in the same clothes.
//
// Roles: built by whoever loads artefacts (devices/cpu/cpu_kernel.h) or defines operators
// (Dispatcher::define); read by
//   every thread that serves.
// Invariants: (1) immutable once a Route holds it; (2) `launch` and everything it touches live as long as the
// Kernel:
//   the module is held here; (3) code is not unloaded in normal operation, whoever lets go of the Kernel.
// Progress: launch runs the kernel; nothing waits.
// Reclamation: shared_ptr off the hot path; on it, the epoch of the Call that decided for it.
// Cost: `launch` is a plain indirect call (about 1 ns) plus the kernel.
// Why not simpler: a std::function or a virtual call would do for one device; the plain pointer lets devices
// share one
//   hot path and keeps the pointer that the CPU jumps through on the first line of the object.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/fallback_reason.h"
#include "dispatch/kernel.h"
#include "dispatch/op_spec.h"
#include "dispatch/problem_key.h"

namespace niche::dispatch {

class Kernel;
// Runs a kernel on one call. frame.args->packed must be what Kernel::pack_slot asks for; frame.workspace must
// hold plan.workspace_bytes (both are checked by Call::decide and the runtime before). Fallbacks may throw
// the library's exceptions; evolved kernels never throw.
using LaunchFn = void (*)(const Kernel& kernel, CallFrame& frame, const Executor& executor);

// A Phase with its symbol resolved and its task count ready to compute.
struct BoundPhase {
  static constexpr int kFactorsMax = 4;
  struct Factor {
    int32_t axis = 0;
    int32_t shift = -1;  // log2 of a divisor that is a power of two; -1: divide (7-18 cycles)
    int64_t divisor = 1;
  };
  NicheKernelFn entry = nullptr;
  int64_t parallel_min_tasks = 2;
  int32_t factor_count = 0;
  Factor factors[kFactorsMax];

  int64_t tasks(const long* axes) const {
    int64_t n = 1;
    for (int i = 0; i < factor_count; ++i) {
      const Factor& f = factors[i];
      const int64_t up = axes[f.axis] + f.divisor - 1;
      n *= f.shift >= 0 ? up >> f.shift : up / f.divisor;
    }
    return n;
  }
};

class alignas(64) Kernel : public std::enable_shared_from_this<Kernel> {
 public:
  static constexpr int kPhasesMax = 3;
  static constexpr int kNoPackSlot = -1;

  Kernel() = default;

  // What the hot path touches, on one line.
  LaunchFn launch = nullptr;
  int32_t phase_count = 0;
  int32_t pack_slot = kNoPackSlot;  // index into a binding's packed buffers; kNoPackSlot: wants none
  uint32_t workspace_units = 0;     // 64-byte units of workspace a call needs
  KernelKind kind = KernelKind::kFallback;
  int16_t fallback_form = 0;   // kFallback: which form of `op`
  const OpSpec* op = nullptr;  // kFallback: who runs it

  BoundPhase phases[kPhasesMax];  // CPU kernels

  // Identity and description.
  uint64_t id = 0;  // unique in this process, never reused
  std::string name;
  std::shared_ptr<const Definition> definition;
  Guard guard;
  LaunchPlan plan;
  KernelProperties properties;
  Provenance provenance;
  NichePackFn pack = nullptr;
  std::shared_ptr<void> module;          // keeps the code loaded
  std::shared_ptr<const OpSpec> op_ref;  // keeps `op`

  bool is_fallback() const { return kind == KernelKind::kFallback; }
  // May it serve calls with these demands, this layout and these variable axes? kNone: yes; else what stands
  // against it. A fallback serves everything. Some 3 ns.
  FallbackReason refuses(ConstraintSet demands, LayoutClass layout, const int64_t* var_axes) const {
    if (is_fallback()) return FallbackReason::kNone;
    if (!layout.fits(guard)) return FallbackReason::kLayout;
    if (!demands.met_by(properties, plan.workspace_bytes)) return FallbackReason::kConstraint;
    return guard.holds_var(var_axes) ? FallbackReason::kNone : FallbackReason::kGuard;
  }
};

// A library form of an operator as a Kernel. Requires: op->fallback_applies(form, *definition).
std::shared_ptr<const Kernel> make_fallback_kernel(std::shared_ptr<const OpSpec> op,
                                                   std::shared_ptr<const Definition> definition, int form);
// The next Kernel::id.
uint64_t next_kernel_id();

}  // namespace niche::dispatch
