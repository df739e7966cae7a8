#include "dispatch/devices/cuda/cuda_driver.h"

#include <dlfcn.h>

namespace niche::dispatch {
namespace {

#define NICHE_CUDA_TEXT_OF(name) #name
#define NICHE_CUDA_TEXT(name) NICHE_CUDA_TEXT_OF(name)

Status resolve(void* library, CudaDriver* driver, const std::string& path) {
#define NICHE_CUDA_RESOLVE(name)                                                                  \
  driver->name = reinterpret_cast<decltype(driver->name)>(dlsym(library, NICHE_CUDA_TEXT(name))); \
  if (driver->name == nullptr)                                                                    \
    return unsupported(path + " has no " NICHE_CUDA_TEXT(name) ": the driver is older than CUDA 12.8");
  NICHE_CUDA_ENTRY_POINTS(NICHE_CUDA_RESOLVE)
#undef NICHE_CUDA_RESOLVE
  return {};
}

Code code_of(CUresult result) {
  switch (result) {
    case CUDA_SUCCESS:
      return Code::kOk;
    case CUDA_ERROR_OUT_OF_MEMORY:
    case CUDA_ERROR_NOT_READY:
      return Code::kBusy;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_INVALID_SOURCE:
    case CUDA_ERROR_INVALID_PTX:
      return Code::kInvalid;
    case CUDA_ERROR_NOT_FOUND:
      return Code::kNotFound;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
      return Code::kUnsupported;
    default:
      return Code::kDevice;
  }
}

}  // namespace

Status CudaDriver::check(CUresult result, const char* call, const std::string& what) const {
  if (result == CUDA_SUCCESS) return {};
  const char *name = nullptr, *text = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS) name = nullptr;
  if (cuGetErrorString(result, &text) != CUDA_SUCCESS) text = nullptr;
  std::string message = std::string(call) + ": " +
                        (name != nullptr ? name : "error " + std::to_string(static_cast<int>(result)));
  if (text != nullptr) message += std::string(": ") + text;
  return {code_of(result), message + "; " + what};
}

Result<std::shared_ptr<const CudaDriver>> CudaDriver::load(const std::string& library) {
  dlerror();
  // Never closed: contexts, events and at-exit handlers of the driver live as long as the process.
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return unsupported("no CUDA driver here: " + std::string(why != nullptr ? why : library));
  }
  auto driver = std::make_shared<CudaDriver>();
  NICHE_RETURN_IF_ERROR(resolve(handle, driver.get(), library));
  const CUresult ready = driver->cuInit(0);
  if (ready != CUDA_SUCCESS)
    return unsupported("the CUDA driver does not start: " +
                       driver->check(ready, "cuInit", library).message());
  return std::shared_ptr<const CudaDriver>(std::move(driver));
}

}  // namespace niche::dispatch
