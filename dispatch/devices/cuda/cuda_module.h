// CudaModule: a cubin loaded into a device's context, and its functions, ready to launch.
//
// Thread-safety: immutable. Reclamation: the code stays loaded for the life of the process, whoever lets go
// of the module: a captured graph may hold it, and the driver does not say so (a graph whose module was
// unloaded replays without an error). Resident code is bounded at admission. Only a module none of whose
// functions was ever launched is unloaded.
// Cost: load 0.1–1 ms for a cubin of some 10 KB.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "dispatch/devices/cuda/cuda_device.h"

namespace niche::dispatch {

// What the loaded function says of itself.
struct CudaFunction {
  CUfunction handle = nullptr;
  std::string symbol;
  int registers = 0;
  int local_bytes = 0;  // per thread: spills and arrays that did not fit
  int static_shared_bytes = 0;
  int threads_max = 0;
};

class CudaModule {
 public:
  // `cubin`: an ELF for the device's architecture. kInvalid: the driver refuses the image; kUnsupported: it
  // is for another architecture.
  static Result<std::shared_ptr<const CudaModule>> load(std::shared_ptr<const CudaDevice> device,
                                                        std::span<const uint8_t> cubin,
                                                        const std::string& name);
  ~CudaModule();
  CudaModule(const CudaModule&) = delete;
  CudaModule& operator=(const CudaModule&) = delete;

  // Looks `symbol` up and allows it `dynamic_shared_bytes`. kNotFound names symbol and module; kUnsupported:
  // the device has not that much shared memory a block, or `threads` are more than its registers allow.
  Result<CudaFunction> function(const std::string& symbol, int threads, int dynamic_shared_bytes,
                                int cluster) const;

  const CudaDevice& device() const { return *device_; }
  const std::string& name() const { return name_; }
  // From the first launch on, the module stays loaded for ever.
  void mark_launched() const {
    launched_.store(true, std::memory_order_relaxed);
    device_->pin();
  }
  // Modules loaded by this process and not unloaded: what admission bounds.
  static int64_t resident_modules();

 private:
  CudaModule(std::shared_ptr<const CudaDevice> device, std::string name)
      : device_(std::move(device)), name_(std::move(name)) {}
  std::shared_ptr<const CudaDevice> device_;
  std::string name_;
  CUmodule module_ = nullptr;
  mutable std::atomic<bool> launched_{false};
};

}  // namespace niche::dispatch
