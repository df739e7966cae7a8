// Nsight Compute on one candidate: the probe's kernel launches in a process of its own, under ncu, within limits.
//
// Nothing here serves: the device is the caller's for the time, no permit is asked for. Thread-safety: one call at a
// time. Cost: 5 to 60 s (ncu runs the kernel once a pass and saves its memory in between).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "evolve/digest.h"
#include "evolve/probe/probe_job.h"

namespace niche::evolve {

struct ProfilerOptions {
  std::string ncu;                // its path; empty: no profiler
  std::string program;            // absolute; its main calls probe_once (probe_once.h)
  std::vector<std::string> args;  // {"probe", "0"}; "--once DIRECTORY" is added
  double seconds_max = 120;
  std::string scratch_dir{};  // for the job's files; empty: TMPDIR
};

// On PATH, else where NVIDIA's packages put it. kNotFound lists where it looked.
dispatch::Result<std::string> find_ncu();

// Counters of the longest of the job's launches, warm. kUnsupported: no profiler; kDevice: ncu, the counters' permissions
// or the kernel failed: the message has its last lines; kIo: no room for the job's files; kBusy: keep_going ended it.
// `cold`: caches are flushed before each pass. `keep_going`: asked every 100 ms; empty: always.
dispatch::Result<ProfilerCounters> run_profiler(const ProfilerOptions& options, const ProbeJob& job,
                                                bool cold, const std::function<bool()>& keep_going);

}  // namespace niche::evolve
