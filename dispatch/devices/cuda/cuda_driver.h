// CudaDriver: the CUDA driver's entry points behind one table of function pointers: opened at run time, so
// that a build with CUDA on starts on a machine without a GPU, and replaceable, so that tests make every call
// fail.
//
// Thread-safety: immutable after load(). Cost: load() 20–60 ms (dlopen and cuInit), once a process; a call
// through the table costs what a call into the library costs.
#pragma once

#include <cuda.h>

#include <memory>
#include <string>

#include "dispatch/base/status.h"

namespace niche::dispatch {

// Every entry point that niche uses. The names are expanded first: cuda.h maps them to their versions
// (cuModuleUnload stays, cuEventElapsedTime becomes cuEventElapsedTime_v2), and the version is what is looked
// up.
#define NICHE_CUDA_ENTRY_POINTS(X)     \
  X(cuInit)                            \
  X(cuDriverGetVersion)                \
  X(cuGetErrorName)                    \
  X(cuGetErrorString)                  \
  X(cuDeviceGetCount)                  \
  X(cuDeviceGet)                       \
  X(cuDeviceGetName)                   \
  X(cuDeviceGetUuid)                   \
  X(cuDeviceGetAttribute)              \
  X(cuDeviceTotalMem)                  \
  X(cuDevicePrimaryCtxRetain)          \
  X(cuDevicePrimaryCtxRelease)         \
  X(cuCtxPushCurrent)                  \
  X(cuCtxPopCurrent)                   \
  X(cuModuleLoadData)                  \
  X(cuModuleUnload)                    \
  X(cuModuleGetFunction)               \
  X(cuFuncGetAttribute)                \
  X(cuFuncSetAttribute)                \
  X(cuStreamCreateWithPriority)        \
  X(cuStreamDestroy)                   \
  X(cuStreamSynchronize)               \
  X(cuStreamIsCapturing)               \
  X(cuThreadExchangeStreamCaptureMode) \
  X(cuEventCreate)                     \
  X(cuEventDestroy)                    \
  X(cuEventRecord)                     \
  X(cuEventQuery)                      \
  X(cuEventElapsedTime)                \
  X(cuLaunchKernel)                    \
  X(cuLaunchKernelEx)                  \
  X(cuOccupancyMaxActiveClusters)      \
  X(cuMemAlloc)                        \
  X(cuMemFree)                         \
  X(cuMemsetD8)                        \
  X(cuMemcpyHtoD)                      \
  X(cuMemcpyDtoH)                      \
  X(cuGraphGetNodes)                   \
  X(cuGraphNodeGetType)                \
  X(cuGraphKernelNodeGetParams)        \
  X(cuGraphExecKernelNodeSetParams)

struct CudaDriver {
#define NICHE_CUDA_FIELD(name) decltype(&::name) name = nullptr;
  // Fields carry the versioned names, as calls do: `driver.cuEventElapsedTime` is cuda.h's macro on both
  // sides.
  NICHE_CUDA_ENTRY_POINTS(NICHE_CUDA_FIELD)
#undef NICHE_CUDA_FIELD

  // Opens `library` and initialises the driver. kUnsupported: no such library (a machine without an NVIDIA
  // driver), a driver too old for an entry point (named), or no device that it can use; the message says
  // which.
  static Result<std::shared_ptr<const CudaDriver>> load(const std::string& library = "libcuda.so.1");

  // kOk, or a Status for a failed call: "cuModuleLoadData: CUDA_ERROR_INVALID_IMAGE: device kernel image is
  // invalid; module x". kBusy for memory that ran out, kInvalid for arguments and images that are wrong,
  // kUnsupported for what the device cannot do, kDevice for the rest (a context that is lost included).
  Status check(CUresult result, const char* call, const std::string& what) const;
};

}  // namespace niche::dispatch
