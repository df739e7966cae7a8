// CudaLaunchPlan: how a cubin's kernels are launched for a problem, and the one parameter they take.
//
// Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dispatch/kernel.h"

namespace niche::dispatch {

// The parameter of every generated kernel: `extern "C" __global__ void k(const __grid_constant__
// NicheCudaArgs a)`. Sources repeat it (evolve/cuda_preamble.cc): a change raises
// kCudaKernelAbiVersion. Where an extent of the output is 0, a kernel touches no memory: so it can be
// launched once to make it resident, before there is a problem.
inline constexpr int kCudaKernelAbiVersion = 1;
struct NicheCudaArgs {
  void* p[12];         // one a schema argument; null: absent
  long long n[12];     // one extent a schema axis
  void* ws;            // workspace of this call, 256-byte aligned; contents undefined
  const void* packed;  // constants packed for this kernel; null when it has none
  unsigned blocks[4];  // grid of each phase of this call: a later phase adds up what an earlier one left
};

struct CudaPhase {
  std::string symbol;
  std::vector<TaskFactor> factors;  // blocks: the product of ceil(extent / divisor)
  int threads = 256;
  int shared_bytes = 0;   // dynamic
  int blocks_per_sm = 0;  // > 0: a persistent grid, at most this many blocks a multiprocessor
  int cluster = 1;        // blocks a cluster (x); the grid is rounded up to it
  bool overlap = false;   // programmatic dependent launch on the phase before it
};

struct CudaLaunchPlan {
  static constexpr int kPhasesMax = 4;
  std::vector<CudaPhase> phases;  // in order on one stream
  int64_t workspace_bytes = 0;    // per call, the maximum over the Guard
  // Multiprocessors that persistent grids, and the workspace of those that leave something a block, were
  // sized for: on a larger device the grids stay at this size. 0: nothing depends on it.
  int sm_count = 0;
};

}  // namespace niche::dispatch
