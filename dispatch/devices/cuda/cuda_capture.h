// Is a stream under graph capture? Unknown counts as captured: a capture must never meet an event query, an
// allocation or a kernel that needs a workspace.
//
// Thread-safety: free functions. Cost: about 50 ns (cuStreamIsCapturing); a caller that knows says so instead
// (RequestScope).
#pragma once

#include "dispatch/devices/cuda/cuda_driver.h"

namespace niche::dispatch {

enum class StreamCapture : uint8_t { kNone, kCapturing, kUnknown };

StreamCapture capture_state(const CudaDriver& driver, CUstream stream);
inline bool counts_as_captured(StreamCapture s) { return s != StreamCapture::kNone; }

// For threads of niche's own, once at their start: their driver calls neither break nor join a capture of
// another thread.
Status relax_capture_mode(const CudaDriver& driver);

}  // namespace niche::dispatch
