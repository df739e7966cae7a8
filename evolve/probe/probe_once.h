// One kernel launched a few times by a process that nobody talks to: what a profiler is pointed at. The job comes in a
// directory, since a profiler passes no descriptors on, and needs no permits: whoever starts a profiler has said that the
// device is his.
//
// In order: each phase once without a problem (residence), each once on poisoned outputs, each once more. Thread-safety:
// single-threaded program; files have one owner.
#pragma once

#include <string>

#include "evolve/probe/probe_job.h"
#include "evolve/probe/probe_main.h"

namespace niche::evolve {

// How many kernel launches precede the last ones, which are the ones to look at: the plan's phases, warm.
int launches_before_last(const dispatch::CudaLaunchPlan& plan);

// Writes `job` (without a race) into an existing directory. kIo; kInvalid: an input without its bytes.
dispatch::Status write_once_job(const ProbeJob& job, const std::string& directory);

// What follows "--once" on a probe's command line; empty: it is not there.
std::string once_directory(int argc, const char* const* argv);

// Runs it. Exit status: 0: right so far; 1: the kernel or the device failed, which is said on stderr; 65: no such job.
int probe_once(const ProbeHooks& hooks, int ordinal, const std::string& directory);

}  // namespace niche::evolve
