// DeviceProbe: runs candidate kernels on a GPU in a process of its own. A candidate that hangs, faults or
// corrupts the context costs that process, never the one that serves, and not the session either.
//
// Each step that the device's multiprocessors take part in happens under a permit (permit_gate.h), several of them under
// one where they fit. Who is not done 50 ms after the end of its permit is killed with SIGKILL; run() then waits until the process is gone, since the driver
// takes a hung context apart while it ends, and the next run() starts another one.
// Thread-safety: one owner thread. Progress: run() is bounded by the limits in Options.
// Cost: a process with a CUDA context starts in some 0.3 s; then a run is some ten messages.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/base/clock.h"
#include "evolve/probe/permit_gate.h"
#include "evolve/probe/probe_job.h"

namespace niche::evolve {

namespace probe {
struct JobResult;
}

struct ProbeOptions {
  std::string program;                               // whose main calls probe_main (probe_main.h)
  std::vector<std::string> args;                     // usually {"probe"}
  int64_t memory_bytes = int64_t{256} << 20;         // cubin and arguments of one job
  int64_t grace_ns = 50'000'000;                     // past a permit, then SIGKILL
  int64_t start_ns = int64_t{60'000'000'000};        // for a process to open the device
  int64_t quiet_ns = int64_t{30'000'000'000};        // between two messages outside a permit
  int64_t permit_wait_ns = int64_t{60'000'000'000};  // for one permit, then the run is undecided
  int64_t end_wait_ns = int64_t{30'000'000'000};     // for a killed process to be gone
};

class DeviceProbe {
 public:
  struct Counts {
    int started = 0, hung = 0, faulted = 0, died = 0, out_of_bounds = 0;
    int stuck = 0;  // killed and still there: the device is not used again
    double kill_ms_max = 0;
    // Waiting for a process to open the device, and for permits; what permits were out for.
    int64_t start_ns = 0, waited_ns = 0, burst_ns = 0;
    int64_t bursts = 0;
  };

  // `permits` and `clock` outlive it. Starts nothing.
  DeviceProbe(ProbeOptions options, PermitSource& permits, const dispatch::Clock& clock);
  ~DeviceProbe();
  DeviceProbe(const DeviceProbe&) = delete;
  DeviceProbe& operator=(const DeviceProbe&) = delete;

  // Starts the process that the first run() will wait for: opening a device takes seconds.
  void begin();
  // Never fails as a whole: what went wrong is the outcome's end and text.
  ProbeOutcome run(const ProbeJob& job) { return std::move(run_all({&job, 1})[0]); }
  // As many at once as memory_bytes holds: their launches share permits, and library forms are timed once beside all of
  // them. One outcome a job, as if each had run alone: where a job hangs or ends the context, the others run again; where
  // one wrote out of bounds, all of its batch run once more, each alone, since what another's memory holds then tells
  // nothing about that other one.
  std::vector<ProbeOutcome> run_all(std::span<const ProbeJob> jobs);
  const Counts& counts() const { return counts_; }
  // Class of the device that the last process opened; empty before the first run.
  const std::string& device() const { return device_; }
  int pid() const;  // of the process that stands ready; 0: none

 private:
  class Process;
  dispatch::Status spawn();
  int64_t since(int64_t from_ns) const;
  dispatch::Status await_ready();
  struct Batch;
  // The first of `waiting` that fit together; kBusy: not even one.
  dispatch::Status place(Batch* batch, std::span<const size_t> waiting, std::string* message);
  void run_batch(Batch* batch);
  void converse(Batch* batch);
  void take_results(Batch* batch, std::vector<probe::JobResult> results, bool lost);
  // The process is gone afterwards. `batch`'s job at which it was is at fault, or all are undecided.
  ProbeOutcome kill(ProbeEnd end, std::string text);
  Permit wait_for_permit(int64_t wanted_ns);

  const ProbeOptions options_;
  PermitSource& permits_;
  const dispatch::Clock& clock_;
  std::unique_ptr<Process> process_;
  Counts counts_;
  std::string device_;
  bool ready_ = false;  // the process said so
};

}  // namespace niche::evolve
