// Why a call was not answered by an evolved kernel, and which rung of the ladder answered it. Every rung has
// a name and a counter.
#pragma once

#include <cstdint>

namespace niche::dispatch {

// Who answers a call.
enum class Rung : uint8_t {
  kExact = 0,  // the incumbent of this exact problem
  kRegion,     // an unseen shape inside a niche: the region's incumbent
  kCanary,     // the challenger, on its share
  kControl,    // the incumbent on the control arm: an equally rare share, paired with the canary's
  kFallback,   // the library; the reason says why
  kForced,     // a kernel that was forced for this Definition
};
inline constexpr int kRungCount = 6;
const char* rung_name(Rung rung);  // "exact", "region", ...

// Why the fallback answered.
enum class FallbackReason : uint8_t {
  kNone = 0,        // it did not
  kMiss,            // no route and no region for this problem yet
  kNoKernel,        // a route without a kernel: the library is the winner here so far
  kGuard,           // a region was hit, but the kernel's Guard does not hold for this shape
  kConstraint,      // no kernel has what this call demands
  kLayout,          // strides, overlap or alignment that no kernel takes
  kNoWorkspace,     // this thread or stream has no workspace reserved that is large enough
  kNotPacked,       // the kernel wants packed constants, and none are bound
  kDisabled,        // NICHE_DISABLE, or the dispatcher was told to
  kRolledBack,      // the route's kernel was rolled back or quarantined
  kCaptureUnknown,  // capture state not known, and no kernel may be captured
  kForked,          // a child of fork(): fallbacks alone
  kShutdown,        // the runtime is closing or closed
  kThreadExiting,   // called from a thread's last destructors
  kThreadLimit,     // more threads than the dispatcher's bound
  kRequiresGrad,    // foreign tensors: to ATen untouched
  kSubclass,
  kFunctorch,
  kSparse,
  kQuantized,
  kConjugate,
  kForeignDevice,  // a device or mix of devices that no kernel is for
  kDtype,          // an element type outside the schema
  kForced,         // the fallback was forced
  kProbation,      // kernels are held back after an unclean end
  kGraphFull,      // the captured graph holds as many uses as it may (GraphOptions::uses_max)
  kDeviceRefused,  // the device's driver refused the kernel's launch; nothing had run
};
inline constexpr int kFallbackReasonCount = 27;
const char* fallback_reason_name(FallbackReason reason);  // "miss", "no_kernel", ...

}  // namespace niche::dispatch
