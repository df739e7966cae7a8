// One job on an open device: arguments between guard zones, outputs poisoned, one launch that is checked,
// then timed ones.
//
// Thread-safety: one thread. Everything that the device's multiprocessors do happens between Bursts::begin and
// end, but for the first call of a library form (device_race.h); copies to and from it need no permit.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "dispatch/devices/cuda/cuda_device.h"
#include "dispatch/devices/cuda/cuda_kernel.h"
#include "evolve/probe/library_forms.h"
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

// What a process keeps from one job to the next.
struct RunState {
  // The kernel that ran last: the next case of the same candidate loads nothing.
  std::string name;
  std::vector<uint8_t> cubin;
  size_t axes = 0, args = 0;
  std::shared_ptr<const dispatch::CudaKernel> kernel;
  std::set<std::string> warm_forms;  // whose code the library has loaded
};

// What a job runs with.
struct RunParts {
  std::shared_ptr<const dispatch::CudaDevice> device;
  const SharedMemory& memory;
  Bursts& bursts;
  LibraryForms* library;  // null: races have no library forms
  RunState& state;
};

// Fills result->end, text, launch_us and form_us, and writes outputs to where the job's arguments lie in the
// memory. An error: the other end is gone, so that there is nobody to tell.
dispatch::Status run_on_device(const RunParts& parts, const JobText& job, Message* result);

}  // namespace niche::evolve::probe
