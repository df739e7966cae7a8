#include "runtime/cli/session_device.h"

#include <cstdio>

#ifdef NICHE_WITH_CUDA
#include "evolve/judge_device/profiler.h"
#include "runtime/torch/cuda_worker.h"
#endif

namespace niche::cli {

using dispatch::Result;

#ifdef NICHE_WITH_CUDA
Result<std::unique_ptr<SessionDevice>> SessionDevice::open(const evolve::SessionRequest& request,
                                                           bool profile) {
  std::unique_ptr<SessionDevice> device(new SessionDevice());
  std::string ncu;
  if (profile) {
    auto found = evolve::find_ncu();
    if (!found.ok())
      std::fprintf(stderr, "niche: %s; going on without a profile\n", found.status().message().c_str());
    if (found.ok()) ncu = std::move(*found);
  }
  auto made = profiled_cuda_session(request, device->gate_, device->clock_, ncu);
  if (!made.ok()) return made.status();
  device->session_ = std::move(*made);
  device->profiles_ = !ncu.empty();
  return device;
}
#else
Result<std::unique_ptr<SessionDevice>> SessionDevice::open(const evolve::SessionRequest& request, bool) {
  return dispatch::unsupported("device '" + request.device + "': this build has no CUDA (./dev build cuda)");
}
#endif

}  // namespace niche::cli
