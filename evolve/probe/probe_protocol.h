// What a DeviceProbe and its process say to each other: JSON objects with a "type", in frames
// (worker/frame_channel.h) over descriptor 3; the bytes of cubins and arguments lie in the shared memory at
// descriptor 4.
//
//   process -> probe   ready {device, error}        first; `error` not empty: no device
//   probe -> process   jobs [{...}]                 a batch, one at a time
//   process -> probe   ask {wanted_ns}              before everything that the device has to do and no permit is left for
//   probe -> process   permit {burst_ns}            the burst starts now
//   process -> probe   returned {used_ns}           the device is idle again
//   process -> probe   results [{end, text, launch_us, form_us}] {error}   one a job; `error`: its context is lost
//
// What the process is about is in the shared memory's first page (StepNote), for the day that it does not come back.
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
    int64_t bytes = 0, at = 0;  // at: of what it holds before; kOut: unused
    int64_t out_at = 0;         // of what it holds afterwards; kIn: unused
  };
  std::vector<Arg> args;
  int64_t cubin_at = 0, cubin_bytes = 0;
  int timed_launches = 0;
  ProbeJob::Race race;  // without the pacer's bytes
  int64_t pacer_at = 0, pacer_bytes = 0;
};

// What became of one job.
struct JobResult {
  ProbeEnd end = ProbeEnd::kUndecided;
  std::string text;  // why
  std::vector<double> launch_us;
  std::vector<std::vector<double>> form_us;
};

struct Message {
  enum class Type : uint8_t { kReady, kJobs, kAsk, kPermit, kReturned, kResults };
  Type type = Type::kReady;
  std::string text;   // kReady: the device's class
  std::string error;  // kReady: no device; kResults: the context is lost, whoever did it
  int64_t ns = 0;     // kAsk: wanted; kPermit: granted; kReturned: used
  std::vector<JobText> jobs;
  std::vector<JobResult> results;
};

inline constexpr int kJobsMax = 64;

// The step that the device works on: written by the process before each one. Candidates do not reach it: it is not
// mapped on the device.
struct StepNote {
  static constexpr int64_t kBytes = 4096;  // at the memory's beginning
  static constexpr size_t kTextMax = 120;
  uint32_t job;
  char text[kTextMax];
};
void write_note(uint8_t* memory, size_t job, std::string_view step);
struct Step {
  size_t job = 0;
  std::string text;
};
// What was written last; a job that is none of `jobs` is taken for the first.
Step read_note(const uint8_t* memory, size_t jobs);

std::string encode(const Message& message);
// Also checks that every offset and size of a job lies inside `memory_bytes`.
dispatch::Result<Message> decode(std::string_view text, int64_t memory_bytes);

}  // namespace niche::evolve::probe
