// DevicePlane: what the control plane needs of this process's GPUs: their environment, loading of kernels, and
// device times of calls. runtime/cuda has the one for CUDA; a RuntimeConfig without any serves host memory, or
// library forms on devices.
//
// Thread-safety: all members may be called from any thread. begin_time and end_time are on a call's path:
// no lock, no allocation; the rest is the control plane's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/base/status.h"
#include "dispatch/published_kernel.h"
#include "evolve/probe/permit_gate.h"
#include "kernels_cache/environment.h"
#include "kernels_cache/record.h"

namespace niche {

class DevicePlane {
 public:
  virtual ~DevicePlane() = default;
  virtual int count() const = 0;

  // The environment key of kernels for device `ordinal`, as the worker computes it. `with_compiler`: false
  // leaves the compiler open. kUnsupported: no compiler where one is asked for.
  virtual dispatch::Result<kernels_cache::Environment> environment(
      int ordinal, const std::vector<std::string>& libraries, const std::vector<std::string>& op_libraries,
      bool with_compiler) const = 0;

  // Loads a record's artefact and makes it resident: a launch loads nothing afterwards. Its workspace is
  // reserved. kInvalid, kUnsupported, kCorrupt, kBusy (memory), kDevice.
  virtual dispatch::Result<std::shared_ptr<const dispatch::Kernel>> load(
      int ordinal, std::shared_ptr<const dispatch::Definition> definition,
      const kernels_cache::KernelRecord& record) = 0;

  // Workspace of at least `bytes` for calls on `stream`, reserved before; null: none.
  virtual void* workspace(int ordinal, void* stream, int64_t bytes) = 0;

  // Device time of a call: between two events on its stream. A tag below 0: not timed (no event is free, or
  // the stream is being captured).
  virtual int64_t begin_time(int ordinal, void* stream) = 0;
  virtual void end_time(int ordinal, int64_t tag, void* stream) = 0;
  // Times that are there by now, each once; a negative time: it was lost, and the tag is free again.
  virtual void harvest(int ordinal, const std::function<void(int64_t tag, double ns)>& sample) = 0;
  // Tags are below this.
  virtual int64_t tags() const = 0;

  // The gate for sessions that run on this process's devices.
  virtual std::unique_ptr<evolve::PermitSource> make_permits(
      const dispatch::Clock& clock, std::function<evolve::Traffic()> traffic) const = 0;

  // kDevice: the context is lost; names the kernel.
  virtual dispatch::Status health(int ordinal) const = 0;
};

}  // namespace niche
