// CUDA kernels: from a loaded module and a CudaLaunchPlan to a Kernel that can be published, and the launch
// itself on the caller's stream.
//
// Thread-safety: a Kernel is immutable; launches may run at once on many threads and streams.
// Requires: the device's context is current on the calling thread, as libtorch leaves it.
// Cost: a launch adds some 15 ns to cuLaunchKernel: block counts from the axes and one 224-byte parameter
// (measure: bench/cuda). A refused launch is the caller's to answer (CallFrame::refusal); nothing is thrown.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "dispatch/base/status.h"
#include "dispatch/devices/cuda/cuda_module.h"
#include "dispatch/devices/cuda/cuda_plan.h"
#include "dispatch/published_kernel.h"

namespace niche::dispatch {

// A CudaPhase with everything computed that does not depend on the call.
struct BoundCudaPhase {
  CUfunction function = nullptr;
  int factor_count = 0;
  std::array<BoundPhase::Factor, BoundPhase::kFactorsMax> factors{};
  unsigned blocks_max = 0;  // of a persistent grid; 0: no bound
  unsigned threads = 0, shared_bytes = 0, cluster = 1;
  bool overlap = false;
};

class CudaKernel : public Kernel {
 public:
  // What a launch touches.
  const CudaDriver* driver = nullptr;
  const CudaDevice* device = nullptr;
  uint32_t arg_bytes = 0, axis_bytes = 0;  // of the schema, in NicheKernelArgs
  std::array<BoundCudaPhase, CudaLaunchPlan::kPhasesMax> cuda_phases{};
  int cuda_phase_count = 0;
  CudaLaunchPlan cuda_plan;
  std::shared_ptr<const CudaModule> cuda_module;
  std::array<CudaFunction, CudaLaunchPlan::kPhasesMax> functions;

  // Blocks of phase `phase` for these axes; 0: more than a grid can have.
  unsigned blocks(int phase, const long* axes) const;
};

struct CudaKernelSpec {
  std::string name;
  std::shared_ptr<const Definition> definition;
  Guard guard;
  CudaLaunchPlan plan;
  KernelProperties properties;
  Provenance provenance;
};

// Resolves the plan's functions, sets their attributes, and launches each once on the device's own stream
// with all extents 0: after this, a launch loads nothing. kNotFound, kInvalid, kUnsupported as CudaModule and
// load_cpu_kernel; kDevice: the first launch failed (the context may be lost).
Result<std::shared_ptr<const CudaKernel>> load_cuda_kernel(CudaKernelSpec spec,
                                                           std::shared_ptr<const CudaModule> module);

// What became of a launch; converts to true when all phases are on the stream.
struct CudaLaunch {
  CallFrame::Refusal refusal = CallFrame::Refusal::kNone;
  CUresult error = CUDA_SUCCESS;
  explicit operator bool() const { return refusal == CallFrame::Refusal::kNone; }
};

// Launches on `stream`. What Kernel::launch calls with the frame's stream (the answer goes to
// CallFrame::refusal); for callers that hold the stream themselves. A refusal by the driver is recorded in
// the device: its health where the context is lost, else a count. A grid that no launch can hold is refused
// without a call.
CudaLaunch launch_cuda(const CudaKernel& kernel, const NicheKernelArgs& args, void* workspace,
                       CUstream stream);

}  // namespace niche::dispatch
