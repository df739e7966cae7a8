// What a DeviceProbe and its process say to each other: JSON objects with a "type", in frames
// (worker/frame_channel.h) over descriptor 3; the bytes of cubins and arguments lie in the shared memory at
// descriptor 4.
//
//   process -> probe   ready {device, error}        first; `error` not empty: no device
//   probe -> process   job {...}                    one at a time
//   process -> probe   ask {wanted_ns, step}        before everything that the device has to do
//   probe -> process   permit {burst_ns}            the burst starts now
//   process -> probe   returned {}                  the device is idle again
//   process -> probe   result {end, text, launch_us, form_us}
//
// Thread-safety: pure functions. Errors: kCorrupt says what the message was instead.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "evolve/probe/probe_job.h"

namespace niche::evolve::probe {

inline constexpr int kChannelFd = 3, kMemoryFd = 4;

// A job as it travels: offsets into the shared memory instead of bytes.
struct JobText {
  std::string name;
  dispatch::CudaLaunchPlan plan;
  std::vector<int64_t> axes;
  struct Arg {
    dispatch::ArgRole role = dispatch::ArgRole::kIn;
    int64_t bytes = 0, at = 0;
  };
  std::vector<Arg> args;
  int64_t cubin_at = 0, cubin_bytes = 0;
  int timed_launches = 0;
  ProbeJob::Race race;  // without the pacer's bytes
  int64_t pacer_at = 0, pacer_bytes = 0;
};

struct Message {
  enum class Type : uint8_t { kReady, kJob, kAsk, kPermit, kReturned, kResult };
  Type type = Type::kReady;
  std::string text;  // kReady: the device's class; kAsk: the step; kResult: why
  std::string error;
  int64_t ns = 0;  // kAsk: wanted; kPermit: granted
  ProbeEnd end = ProbeEnd::kUndecided;
  std::vector<double> launch_us;
  std::vector<std::vector<double>> form_us;
  JobText job;
};

std::string encode(const Message& message);
// Also checks that every offset and size of a job lies inside `memory_bytes`.
dispatch::Result<Message> decode(std::string_view text, int64_t memory_bytes);

}  // namespace niche::evolve::probe
