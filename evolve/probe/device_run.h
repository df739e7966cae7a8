// A batch of jobs on an open device. Of each: arguments between guard zones, outputs poisoned, one launch that is
// checked, then timed ones; then one race of all that are right so far (device_race.h).
//
// Everything that the device's multiprocessors do happens between Bursts::begin and end, but for the first call of a
// library form (device_race.h); copies to and from it need no permit. So all jobs' copies come first, then all launches,
// as many under one permit as fit, then all checks.
// Thread-safety: one thread.
#pragma once

#include <list>
#include <memory>
#include <set>
#include <string>
#include <string_view>
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
  // A step of job `job` that is expected to take `needs_ns`; the nanoseconds that are left of the permit which it runs
  // under, fewer only where none is as long. An error: the other end is gone.
  virtual dispatch::Result<int64_t> begin(size_t job, std::string_view step, int64_t needs_ns) = 0;
  // The device is idle again. The permit stays for the next step.
  virtual void end() = 0;
  // No step comes for a while.
  virtual void give_back() = 0;
  // Of the permit that is held.
  virtual int64_t left_ns() const = 0;
};

inline constexpr int64_t kBurstNs = 300'000;

// On either side of each argument: an index that is off by a row must not land in the next one unseen.
inline constexpr int64_t kGuardBytes = 64 << 10;

// A kernel that was loaded, and what its last launch took.
struct KeptKernel {
  std::string name;
  std::vector<uint8_t> cubin;
  size_t axes = 0, args = 0;
  dispatch::CudaLaunchPlan plan;
  std::shared_ptr<const dispatch::CudaKernel> kernel;
  double launch_ns = 0, launch_bytes = 0;
};

// The pacer with what it reads, made once a process.
struct PacerState {
  std::shared_ptr<const dispatch::CudaModule> module;
  CUfunction function = nullptr;
  CUdeviceptr scratch = 0;
  int64_t scratch_bytes = 0;
  CUevent events[2] = {};
};

// What a process keeps from one batch to the next.
struct RunState {
  static constexpr size_t kKernelsMax = 32;
  std::list<KeptKernel> kernels;     // the last used first
  std::set<std::string> warm_forms;  // whose code the library has loaded
  PacerState pacer;
};

// What a batch runs with.
struct RunParts {
  std::shared_ptr<const dispatch::CudaDevice> device;
  const SharedMemory& memory;
  Bursts& bursts;
  LibraryForms* library;  // null: races have no library forms
  RunState& state;
};

// One result a job; outputs lie where the jobs' arguments say. A job that could not run because of another one is
// kUndecided. An error: the other end is gone, so that there is nobody to tell.
dispatch::Status run_on_device(const RunParts& parts, const std::vector<JobText>& jobs,
                               std::vector<JobResult>* results);

}  // namespace niche::evolve::probe
