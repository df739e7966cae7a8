// Digest: why a candidate for a GPU takes the time it takes: shares of the device's peaks, occupancy and what limits it,
// spills, its place under the roofline; and, where a profiler ran, its counters.
//
// Computed for every candidate that is timed (judge_device/device_digest.h) from the binary, the launch plan, the
// operator's least bytes and flops, and the measured device time: no profiler is needed. A share is therefore of what
// the operator needs, not of what the kernel moved: one that reads its input twice shows half. Thread-safety: values and
// pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/base/status.h"

namespace niche::evolve {

// What Nsight Compute counted (judge_device/ncu_report.h). Shares of the peak, 0 to 1; negative: this device or set of
// metrics does not have it.
struct ProfilerCounters {
  double us = -1, dram = -1, l2 = -1, l1 = -1, tensor = -1, issue = -1, occupancy = -1;
  double load_sectors = -1,
         store_sectors = -1;  // bytes that were asked for, of those in the sectors that were moved
  std::string occupancy_limiter;
  // What warps waited for, the most first, as shares of all waits; at most five.
  std::vector<std::pair<std::string, double>> stalls;
};

struct Digest {
  // Where: the heaviest problem that was timed, in Definition::var_axes() order.
  std::vector<int64_t> var_axes;
  double kernel_us = 0;

  // Shares of the device's peaks at the clocks that its driver states, 0 to 1; negative: not known, or not used.
  double dram = -1;    // absent where the judged cache state keeps the arguments in the L2
  double l2 = -1;      // of what the multiprocessors could take from it
  double tensor = -1;  // of a kernel with matrix instructions
  double fma = -1;     // of one without

  // Roofline: left of the ridge memory is the roof, right of it arithmetic. `roof`: the least time over the time.
  double flops_per_byte = 0, ridge = 0, roof = -1;

  // Of the launch with the most threads.
  std::string symbol;
  int registers = 0, threads = 0, shared_bytes = 0;  // a thread, a block, a block
  int64_t blocks = 0;
  int blocks_per_sm = 0;  // that fit at once
  double occupancy = 0;   // warps that fit, of those that a multiprocessor holds
  std::string limiter;    // "registers", "shared memory", "threads", "blocks", "its own grid"
  double waves = 0;       // blocks over what the device holds at once
  int spill_bytes = 0;    // stores and loads of a thread, or its stack where the compiler's log does not say
  int multiprocessors = 0;  // of the device

  std::optional<ProfilerCounters> counters;
};

// The one thing to change, and why: the first of these that holds.
struct Diagnosis {
  // "spills", "launch", "grid", "roof", "occupancy", "memory", "compute", "latency".
  std::string bottleneck;
  std::string because;  // its numbers
  // The knowledge base's word for it (kb/document.h): "memory", "compute", "latency", "occupancy", "spills".
  std::string topic;
};
Diagnosis diagnose(const Digest& digest);

// One line: shares, roofline, occupancy, spills, counters. Without the diagnosis.
std::string digest_text(const Digest& digest);
// "spills: 96 bytes a thread ..."
std::string diagnosis_text(const Diagnosis& diagnosis);

std::string digest_to_json(const Digest& digest);
// kCorrupt: not what digest_to_json writes. Fields that are not there keep their defaults.
dispatch::Result<Digest> digest_from_json(const std::string& text);

}  // namespace niche::evolve
