#include "dispatch/devices/cuda/cuda_device.h"

namespace niche::dispatch {

Result<std::shared_ptr<const CudaDevice>> CudaDevice::open(std::shared_ptr<const CudaDriver> driver,
                                                           const CudaInfo& info) {
  const std::string what = "device " + std::to_string(info.ordinal) + " (" + info.name + ")";
  auto d = std::shared_ptr<CudaDevice>(new CudaDevice(std::move(driver), info));
  const CudaDriver& call = *d->driver_;
  NICHE_RETURN_IF_ERROR(call.check(call.cuDeviceGet(&d->device_, info.ordinal), "cuDeviceGet", what));
  NICHE_RETURN_IF_ERROR(
      call.check(call.cuDevicePrimaryCtxRetain(&d->context_, d->device_), "cuDevicePrimaryCtxRetain", what));
  const Scope scope(*d);
  if (!scope.status().ok()) return scope.status();
  // Lowest priority (0): what runs on it must not delay the server's streams.
  NICHE_RETURN_IF_ERROR(call.check(call.cuStreamCreateWithPriority(&d->stream_, CU_STREAM_NON_BLOCKING, 0),
                                   "cuStreamCreateWithPriority", what));
  return std::shared_ptr<const CudaDevice>(std::move(d));
}

CudaDevice::~CudaDevice() {
  if (stream_ != nullptr) {
    const Scope scope(*this);
    if (scope.status().ok()) driver_->cuStreamDestroy(stream_);
  }
  if (context_ != nullptr && !pinned_.load(std::memory_order_relaxed))
    driver_->cuDevicePrimaryCtxRelease(device_);
}

bool loses_context(CUresult result) {
  switch (result) {
    case CUDA_SUCCESS:
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_OUT_OF_MEMORY:
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_NOT_FOUND:
    case CUDA_ERROR_NOT_READY:
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
    case CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE:
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_INVALID_CLUSTER_SIZE:
      return false;
    default:  // breaking a capture ends the capture alone
      return result < CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ||
             result > CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
}

void CudaDevice::report_error(CUresult result, uint64_t kernel_id) const {
  if (!loses_context(result)) {
    refused_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a count
    return;
  }
  uint64_t none = 0;
  // relaxed: the word carries everything that it says.
  first_error_.compare_exchange_strong(none, kernel_id << 16 | (static_cast<uint64_t>(result) & 0xffff),
                                       std::memory_order_relaxed);
}

Status CudaDevice::health() const {
  const uint64_t word = first_error_.load(std::memory_order_relaxed);
  if (word == 0) return {};
  const Status s = driver_->check(static_cast<CUresult>(word & 0xffff), "launch",
                                  "device " + std::to_string(info_.ordinal) + " (" + info_.name +
                                      "), kernel id " + std::to_string(word >> 16));
  return device_error(s.message());
}

CudaDevice::Scope::Scope(const CudaDevice& device) : driver_(*device.driver_) {
  const std::string what = "device " + std::to_string(device.info_.ordinal);
  status_ = driver_.check(driver_.cuCtxPushCurrent(device.context_), "cuCtxPushCurrent", what);
  if (!status_.ok()) return;
  pushed_ = true;
  status_ = driver_.check(driver_.cuThreadExchangeStreamCaptureMode(&mode_),
                          "cuThreadExchangeStreamCaptureMode", what);
  exchanged_ = status_.ok();
}

CudaDevice::Scope::~Scope() {
  if (exchanged_) driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  CUcontext previous = nullptr;
  if (pushed_) driver_.cuCtxPopCurrent(&previous);
}

}  // namespace niche::dispatch
