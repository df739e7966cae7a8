// CPU kernels: from a loaded module and a LaunchPlan to a Kernel that can be published, and the launch
// itself.
//
// Thread-safety: a Kernel is immutable; launches may run at once on many threads.
// Cost: a launch adds about 5 ns a phase to the kernel: task count from the axes (a product of divisions),
// one indirect call; a phase with enough tasks goes through the Executor (0.5–2 µs for a threaded region).
#pragma once

#include <memory>
#include <string>

#include "dispatch/base/status.h"
#include "dispatch/devices/cpu/cpu_module.h"
#include "dispatch/published_kernel.h"

namespace niche::dispatch {

struct CpuKernelSpec {
  std::string name;
  std::shared_ptr<const Definition> definition;
  Guard guard;
  LaunchPlan plan;
  KernelProperties properties;
  Provenance provenance;
  int pack_slot =
      Kernel::kNoPackSlot;  // required (>= 0) where plan.pack_symbol is set: index into a binding's buffers
};

// kNotFound: a symbol is missing (which, in which module). kInvalid: no phase, more than Kernel::kPhasesMax,
// a factor whose axis the schema does not have, a Guard of another arity.
Result<std::shared_ptr<const Kernel>> load_cpu_kernel(CpuKernelSpec spec,
                                                      std::shared_ptr<const CpuModule> module);

// Runs the caller's thread alone. For tests and for servers without a pool.
Executor serial_executor();

}  // namespace niche::dispatch
