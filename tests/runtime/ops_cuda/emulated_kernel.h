// EmulatedKernel: a generated CUDA kernel compiled for the host (host_preamble.h) and run on host memory as
// its launch plan says.
//
// Thread-safety: one thread. Cost: about a second to compile, some 100 ns a barrier and thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dispatch/base/status.h"
#include "evolve/cuda_template_family.h"

namespace niche::ops_cuda_test {

class EmulatedKernel {
 public:
  static dispatch::Result<std::unique_ptr<EmulatedKernel>> compile(evolve::CudaKernelSource source);
  ~EmulatedKernel();
  EmulatedKernel(const EmulatedKernel&) = delete;
  EmulatedKernel& operator=(const EmulatedKernel&) = delete;

  // All phases; `falling`: a block's threads run in the other order. kInternal: threads wait for ever.
  dispatch::Status run(std::span<void* const> args, std::span<const int64_t> axes, void* workspace,
                       bool falling);

 private:
  EmulatedKernel() = default;
  evolve::CudaKernelSource source_;
  void* handle_ = nullptr;
};

}  // namespace niche::ops_cuda_test
