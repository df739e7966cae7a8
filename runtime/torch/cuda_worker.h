// What `niche worker` needs for a session on a CUDA device, and the process in which its candidates run.
//
// Thread-safety: as worker.h.
#pragma once

#include "evolve/worker/worker_main.h"

namespace niche {

// WorkerHooks::device.
dispatch::Result<evolve::DeviceSession> cuda_session(const evolve::SessionRequest& request,
                                                     evolve::PermitSource& permits,
                                                     const dispatch::Clock& clock);
// The same with a profiler (evolve/judge_device/profiler.h) at `ncu`: for a device that nobody serves on.
dispatch::Result<evolve::DeviceSession> profiled_cuda_session(const evolve::SessionRequest& request,
                                                              evolve::PermitSource& permits,
                                                              const dispatch::Clock& clock,
                                                              const std::string& ncu);
// argv[1] is "probe"; argv[2] the device's number, 0 when it is absent; with --once DIR one job
// (evolve/probe/probe_once.h).
int cuda_probe_main(int argc, char** argv);

}  // namespace niche
