// CudaDevice: one GPU opened by this process: its primary context (the one libtorch uses), a stream of
// niche's own for loading and first launches, and its health.
//
// Roles: opened and closed by runtime's threads; health is written by whichever thread meets an error and
// read by every caller. Invariants: (1) the context is retained as long as the object lives,
// and for ever once pinned; (2) the first
// error recorded stays. Progress: report_error and failed() are wait-free.
// Cost: open() 0.1–0.5 s for the first context of a process on a device.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "dispatch/devices/cuda/cuda_info.h"

namespace niche::dispatch {

class CudaDevice {
 public:
  static Result<std::shared_ptr<const CudaDevice>> open(std::shared_ptr<const CudaDriver> driver,
                                                        const CudaInfo& info);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const CudaDriver& driver() const { return *driver_; }
  const CudaInfo& info() const { return info_; }
  CUstream own_stream() const { return stream_; }

  // A launch failed: where the context is lost, remembered with the kernel's id; where the driver merely
  // refused this launch, counted. Without a lock or an allocation (hot path).
  void report_error(CUresult result, uint64_t kernel_id) const;
  bool failed() const { return first_error_.load(std::memory_order_relaxed) != 0; }
  uint64_t launches_refused() const { return refused_.load(std::memory_order_relaxed); }
  // kOk, or kDevice with the first error and the kernel's id: what health shows.
  Status health() const;

  // From now on the context stays for the life of the process: code that was launched in it may be held by
  // captured graphs.
  void pin() const { pinned_.store(true, std::memory_order_relaxed); }

  // Makes the device's context current on this thread for a scope, in relaxed capture mode, so that loading a
  // module does not break a capture that another thread runs.
  class Scope {
   public:
    explicit Scope(const CudaDevice& device);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    const Status& status() const { return status_; }

   private:
    const CudaDriver& driver_;
    Status status_;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool pushed_ = false, exchanged_ = false;
  };

 private:
  CudaDevice(std::shared_ptr<const CudaDriver> driver, const CudaInfo& info)
      : driver_(std::move(driver)), info_(info) {}
  std::shared_ptr<const CudaDriver> driver_;
  CudaInfo info_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  mutable std::atomic<uint64_t> first_error_{0};  // kernel id << 16 | CUresult
  mutable std::atomic<uint64_t> refused_{0};
  mutable std::atomic<bool> pinned_{false};
};

// Does this error end the context (every later call fails until the process is gone)? What is not known to
// leave it intact counts as such.
bool loses_context(CUresult result);

}  // namespace niche::dispatch
