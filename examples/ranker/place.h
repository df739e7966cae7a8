// Where the ranker runs: the host, or one CUDA device of a build that has them.
//
// Thread-safety: open() before Runtime::create, in one thread; the rest from any thread.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/StreamGuard.h>

#include <optional>
#include <string>

#include "dispatch/base/status.h"
#include "runtime/config.h"

namespace ranker {

class Place {
 public:
  // "cpu", or "cuda:N": opens libtorch's CUDA half and lets `config` serve and tune there. TF32 is off: answers are
  // compared with fp64. kInvalid: another name; kUnsupported: no such device, or a build without CUDA.
  // `tuning_duty`: enable_cuda's.
  static niche::dispatch::Result<Place> open(const std::string& name, double tuning_duty,
                                             niche::RuntimeConfig* config);
  // What `name` is, for reports: "NVIDIA H200, CUDA 13.0"; "" for the host. Opens no device.
  static niche::dispatch::Result<std::string> describe(const std::string& name);

  const at::Device& device() const { return device_; }
  bool on_host() const { return device_.is_cpu(); }
  // Returns once the thread's current stream there has nothing left to do.
  void wait() const;

 private:
  explicit Place(at::Device device) : device_(device) {}
  at::Device device_;
};

// A request's stream: one a thread, so that requests of different threads do not wait for each other.
class RequestStream {
 public:
  explicit RequestStream(const Place& place);

 private:
  std::optional<c10::StreamGuard> guard_;
};

}  // namespace ranker
