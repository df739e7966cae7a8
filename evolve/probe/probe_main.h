// probe_main: the process in which candidates for a GPU run: `niche probe`, or a server's own binary
// re-executed. It serves the jobs of one DeviceProbe and ends with it (PR_SET_PDEATHSIG; end of the socket).
//
// All host code is niche's: a candidate is a cubin, launched as the server would launch it. Single-threaded.
#pragma once

#include <functional>
#include <memory>

#include "dispatch/devices/cuda/cuda_device.h"
#include "dispatch/devices/cuda/cuda_driver.h"
#include "evolve/probe/library_forms.h"

namespace niche::evolve {

struct ProbeHooks {
  // CudaDriver::load, or a test's.
  std::function<dispatch::Result<std::shared_ptr<const dispatch::CudaDriver>>()> driver;
  // The library's forms on that device, made before the first job. Empty: races have none.
  std::function<dispatch::Result<std::unique_ptr<LibraryForms>>(int ordinal)> library{};
};

// Device `ordinal` of the hooks' driver, opened. kNotFound: there is none; kUnsupported: no driver.
dispatch::Result<std::shared_ptr<const dispatch::CudaDevice>> open_probed_device(const ProbeHooks& hooks,
                                                                                 int ordinal);

// Exit status: 0: the DeviceProbe ended; 64: not started by one; 65: it spoke nonsense.
int probe_main(const ProbeHooks& hooks, int ordinal = 0);

}  // namespace niche::evolve
