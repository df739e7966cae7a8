#include "dispatch/epoch.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace niche::dispatch {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif
#else
constexpr bool kThreadSanitizer = false;
#endif

long membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0); }

}  // namespace

bool RealPlatform::asymmetric_available() {
  if (kThreadSanitizer) return false;
  const long supported = membarrier(MEMBARRIER_CMD_QUERY);
  if (supported < 0 || !(supported & MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return false;
  // Registering again is harmless; a child of fork() inherits the registration.
  return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
}

void RealPlatform::heavy_fence() {
  // Cannot fail once registered. Also a full fence for the calling thread.
  (void)membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}

}  // namespace niche::dispatch
