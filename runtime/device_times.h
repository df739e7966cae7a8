// DeviceTimes: the sampled calls on devices whose times the device still owes: what each of them was, until
// its events have passed.
//
// Roles: callers begin() and end(); the control thread harvests. Invariant: a tag is one caller's from begin()
// to end(), then the plane's, then the harvester's. Thread-safety: as the roles say. Cost: two event records a
// sampled call; no lock, no allocation.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "dispatch/counters.h"
#include "runtime/device_plane.h"

namespace niche::core {

class DeviceTimes {
 public:
  // `plane` may be null: nothing is timed.
  explicit DeviceTimes(std::shared_ptr<DevicePlane> plane);

  // `device`: CallFrame's, 1 for CUDA device 0. A negative tag: this call is not timed.
  int64_t begin(int device, void* stream);
  // Requires a tag of begin(). `record`: all but the ticks.
  void end(int device, int64_t tag, void* stream, const dispatch::EventRecord& record);
  void harvest(const std::function<void(const dispatch::EventRecord& record, double ns)>& sample);

 private:
  const std::shared_ptr<DevicePlane> plane_;
  std::vector<std::vector<dispatch::EventRecord>> records_;  // by device, by tag
};

}  // namespace niche::core
