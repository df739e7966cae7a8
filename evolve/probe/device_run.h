// One job on an open device: arguments between guard zones, outputs poisoned, one launch that is checked,
// then timed ones.
//
// Thread-safety: one thread. Everything that the device does happens between Bursts::begin and end.
#pragma once

#include <string>

#include "dispatch/devices/cuda/cuda_device.h"
#include "evolve/probe/probe_protocol.h"
#include "evolve/probe/shared_memory.h"

namespace niche::evolve::probe {

// Permission to use the device, step by step.
class Bursts {
 public:
  virtual ~Bursts() = default;
  // Nanoseconds that the burst may take. An error: the other end is gone.
  virtual dispatch::Result<int64_t> begin(const std::string& step, int64_t wanted_ns) = 0;
  virtual void end() = 0;
};

// On either side of each argument: an index that is off by a row must not land in the next one unseen.
inline constexpr int64_t kGuardBytes = 64 << 10;

// Fills result->end, text and launch_us, and writes outputs to where the job's arguments lie in `memory`. An
// error: the other end is gone, so that there is nobody to tell.
dispatch::Status run_on_device(const std::shared_ptr<const dispatch::CudaDevice>& device, const JobText& job,
                               const SharedMemory& memory, Bursts& bursts, Message* result);

}  // namespace niche::evolve::probe
