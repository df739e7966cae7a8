// niche on CUDA devices.
//
//   niche::RuntimeConfig config = niche::torch_config();
//   if (auto s = niche::enable_cuda(&config); !s.ok()) puts(s.message().c_str());  // serves without, then
//
// After it, calls may carry tensors of any of this process's CUDA devices; sessions are opened for what is hot
// there, and what they find is rolled out as on the CPU, but for the shadow stage: comparisons on a device are
// not made yet, so a canary begins at once, with what the judge verified and a small share.
//
// Thread-safety: enable_cuda: before Runtime::create.
#pragma once

#include <memory>

#include "dispatch/devices/cuda/cuda_driver.h"
#include "dispatch/devices/cuda/cuda_info.h"
#include "evolve/cuda_template_family.h"
#include "evolve/probe/permit_gate.h"
#include "kernels_cache/environment.h"
#include "runtime/config.h"
#include "runtime/device_plane.h"

namespace niche {

// Sets cuda_devices, devices and device_workspace. `driver`: null: this machine's. `tuning_duty`: the share of a serving
// device's time that sessions may have between its requests; it rises up to `tuning_duty_max` while requests' p99 stays
// within 3 % of what it is without sessions, and falls back at once (evolve/probe/duty_governor.h). kUnsupported: no driver
// or no device; the config is left alone.
dispatch::Status enable_cuda(RuntimeConfig* config,
                             std::shared_ptr<const dispatch::CudaDriver> driver = nullptr,
                             double tuning_duty = evolve::PermitLimits{}.duty, double tuning_duty_max = 0.1);

// The environment key of kernels for a device, computed alike by server, worker and command line. `compiler`:
// CudaToolchain::version(); empty: open.
dispatch::Result<kernels_cache::Environment> cuda_environment(const dispatch::CudaDriver& driver, int ordinal,
                                                              const std::vector<std::string>& libraries,
                                                              const std::vector<std::string>& op_libraries,
                                                              const std::string& compiler);
// What generated code runs on.
dispatch::Result<evolve::CudaTarget> cuda_target(const dispatch::CudaDriver& driver, int ordinal);
// The device itself: detected again at each call.
dispatch::Result<dispatch::CudaInfo> cuda_info(const dispatch::CudaDriver& driver, int ordinal);

}  // namespace niche
