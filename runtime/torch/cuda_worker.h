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
// argv[1] is "probe"; argv[2] the device's number, 0 when it is absent.
int cuda_probe_main(int argc, char** argv);

}  // namespace niche
