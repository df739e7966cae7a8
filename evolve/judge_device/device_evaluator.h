// DeviceEvaluator: the Evaluator of a session on a CUDA device. Candidates are compiled here by NVRTC, run in
// the process of a DeviceProbe under permits of whoever serves, compared with the fp64 reference that the
// oracle computes on the host, and timed in turns with the best library form, which runs in that same process
// on that same stream.
//
// What a time is: device time of a call while the queue is full (race.h), in the problem's cache state.
// Gates are the CPU judge's (verdict.h): parse, duplicate, compile, smoke, correctness on the Guard's corners,
// tiles and seeded interior, determinism (a second run on some cases), timing by the e-process, the other
// cache state, confirmation on fresh inputs.
// The yardstick of the error bound is the library form's error on the host, for the same element type.
//
// While the device runs a case, other processes make the next ones and compare the last ones (case_lanes.h).
// Order of life: the oracles are forked first; the probe's threads come after them. Thread-safety: one owner
// thread. Progress: each step is bounded by DeviceProbe's limits.
#pragma once

#include <memory>
#include <string>

#include "evolve/evaluator.h"
#include "evolve/judge_device/device_digest.h"
#include "evolve/judge_device/profiler.h"
#include "evolve/probe/device_probe.h"

namespace niche::evolve {

struct DeviceEvaluatorOptions {
  ProbeOptions probe;
  PermitSource* permits = nullptr;         // required; outlives the evaluator
  const dispatch::Clock* clock = nullptr;  // required; outlives it
  std::string nvrtc{};                     // CudaToolchain::Options::library
  std::string cubin_cache_dir{};           // empty: none
  std::string arch = "sm_90a";
  int64_t l2_bytes = int64_t{60} << 20;
  DevicePeaks peaks{};         // unknown: verdicts have no digest
  ProfilerOptions profiler{};  // without ncu: profile() is kUnsupported
  int host_threads = 4;        // for NVRTC and for the fp64 references
};

// kInvalid: what of the spec is wrong; kUnsupported: no NVRTC, or none that knows the architecture.
dispatch::Result<std::unique_ptr<Evaluator>> make_device_evaluator(EvaluatorSpec spec,
                                                                   EvaluatorOptions options,
                                                                   DeviceEvaluatorOptions device);

}  // namespace niche::evolve
