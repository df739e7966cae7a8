// probe_main: the process in which candidates for a GPU run: `niche probe`, or a server's own binary
// re-executed. It serves the jobs of one DeviceProbe and ends with it (PR_SET_PDEATHSIG; end of the socket).
//
// All host code is niche's: a candidate is a cubin, launched as the server would launch it. Single-threaded.
#pragma once

#include <functional>
#include <memory>

#include "dispatch/devices/cuda/cuda_driver.h"
#include "evolve/probe/library_forms.h"

namespace niche::evolve {

struct ProbeHooks {
  // CudaDriver::load, or a test's.
  std::function<dispatch::Result<std::shared_ptr<const dispatch::CudaDriver>>()> driver;
  // The library's forms on that device, made before the first job. Empty: races have none.
  std::function<dispatch::Result<std::unique_ptr<LibraryForms>>(int ordinal)> library{};
};

// Exit status: 0: the DeviceProbe ended; 64: not started by one; 65: it spoke nonsense.
int probe_main(const ProbeHooks& hooks, int ordinal = 0);

}  // namespace niche::evolve
