// The computed part of a Digest: occupancy from what the cubin and the launch plan say, shares of the peaks and the
// roofline from the operator's counts and the measured device time.
//
// Thread-safety: pure functions. Cost: below a microsecond.
#pragma once

#include "dispatch/devices/cuda/cuda_info.h"
#include "dispatch/devices/cuda/cuda_plan.h"
#include "dispatch/op_spec.h"
#include "evolve/digest.h"
#include "evolve/toolchain/cubin_info.h"

namespace niche::evolve {

// What a device could do at the clocks that its driver states. Zeros: not known, and no digest is computed.
struct DevicePeaks {
  int multiprocessors = 0;
  int threads_per_sm = 0, registers_per_sm = 0, shared_bytes_per_sm = 0, blocks_per_sm = 0;
  int64_t l2_bytes = 0;
  // Bytes and flops a nanosecond. The L2's is what all multiprocessors together could take: 48 bytes a clock each, the
  // A100's 5,120 a clock over its 108 (NVIDIA A100 whitepaper); no figure is published for later ones.
  double dram = 0, l2 = 0;
  double tensor16 = 0;  // fp16 and bf16 products, dense
  double fma32 = 0;

  bool known() const { return multiprocessors > 0 && dram > 0; }
  static DevicePeaks of(const dispatch::CudaInfo& info);
};

struct Occupancy {
  int blocks_per_sm = 0;  // 0: not even one fits
  double warps = 0;       // of those that a multiprocessor holds
  std::string limiter;
};
// As NVIDIA's occupancy calculator has it: registers are given to warps in units of 256 and to four parts of a
// multiprocessor, shared memory in units of 128 bytes with 1 KiB a block of the system's own (capability 8.0 and later).
Occupancy occupancy_of(const DevicePeaks& peaks, int registers, int threads, int shared_bytes);

// What a kernel was measured at.
struct Measured {
  const dispatch::Problem& problem;
  dispatch::Cost cost;       // of the problem, by its operator
  double kernel_ns = 0;      // device time of a call
  bool from_dram = true;     // else the arguments stay in the L2 from call to call
  bool matrix_pipe = false;  // the text has matrix instructions
};
Digest compute_digest(const DevicePeaks& peaks, const CubinInfo& cubin, const dispatch::CudaLaunchPlan& plan,
                      const Measured& measured);

// Has a CUDA text, beyond the preamble, matrix instructions (mma, wgmma, tcgen05)?
bool uses_matrix_pipe(std::string_view text);

}  // namespace niche::evolve
