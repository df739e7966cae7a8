#include "dispatch/devices/cuda/cuda_capture.h"

namespace niche::dispatch {

StreamCapture capture_state(const CudaDriver& driver, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  // Fails on the legacy stream while another stream captures in global mode: unknown.
  if (driver.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS) return StreamCapture::kUnknown;
  return status == CU_STREAM_CAPTURE_STATUS_NONE ? StreamCapture::kNone : StreamCapture::kCapturing;
}

Status relax_capture_mode(const CudaDriver& driver) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  return driver.check(driver.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode",
                      "a thread of niche");
}

}  // namespace niche::dispatch
