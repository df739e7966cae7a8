// CudaInfo: what one GPU (or MIG slice) is: detected, never assumed. For CudaTarget of evolve and for
// kernels_cache's environment key.
//
// Thread-safety: a value. Cost: discover() some 20 µs a device after the driver is loaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dispatch/devices/cuda/cuda_driver.h"

namespace niche::dispatch {

struct CudaInfo {
  int ordinal = 0;
  std::string name;  // "NVIDIA H200"; a MIG slice says "NVIDIA H200 MIG 1g.18gb"
  std::string uuid;  // 32 hex digits
  int major = 0, minor = 0;
  int driver_version = 0;  // 13000 for CUDA 13.0
  int sm_count = 0;
  int sm_clock_khz = 0, memory_clock_khz = 0, memory_bus_bits = 0;
  int threads_per_sm = 0, registers_per_sm = 0;
  int shared_bytes_per_block = 0;  // with the opt-in
  int shared_bytes_per_sm = 0;
  int64_t l2_bytes = 0;
  int64_t memory_bytes = 0;

  // What the toolchain compiles for: "sm_90a", "sm_100a", "sm_80".
  std::string arch() const;
  // "NVIDIA H200 sm_90 132 SM 1980 MHz memory 3201 MHz x 6144 bit 139 GiB": equal text means that timings and
  // verdicts of one hold on the other. MIG slices and SKUs differ in SM count or memory.
  std::string device_class() const;
  std::string driver() const;  // "CUDA 13.0"

  // Every device that the process may see (CUDA_VISIBLE_DEVICES counts). Empty: none.
  static Result<std::vector<CudaInfo>> discover(const CudaDriver& driver);
};

}  // namespace niche::dispatch
