// CudaEventPool: device times of sampled calls: a fixed number of event pairs, begun and ended by callers,
// harvested later by a background thread.
//
// Roles: callers begin() and end() on their own streams; one harvester.
// Invariants: (1) a slot goes free -> held (caller) -> pending -> free (harvester); (2) no allocation, lock
//   or wait after make(): a full pool gives no slot and the sample is counted as skipped; (3) never used
//   under capture (the caller checks).
// Progress: begin/end lock-free with a bounded number of tries; harvest does not wait for the device.
// Cost: begin and end one cuEventRecord each (about 0.5 µs on the host and 1-2 µs on the stream): for one
//   call in N.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "dispatch/devices/cuda/cuda_device.h"

namespace niche::dispatch {

class CudaEventPool {
 public:
  static constexpr int kNoSlot = -1;

  static Result<std::unique_ptr<CudaEventPool>> make(std::shared_ptr<const CudaDevice> device, int slots);
  ~CudaEventPool();
  CudaEventPool(const CudaEventPool&) = delete;
  CudaEventPool& operator=(const CudaEventPool&) = delete;

  // Records the first event on `stream`; kNoSlot: the pool is full or the driver refused (counted).
  int begin(CUstream stream, uint64_t tag);
  // Records the second event and hands the slot to the harvester.
  void end(int slot, CUstream stream);

  // Calls back for each pair that the device has finished, then frees its slot. Returns how many are still
  // pending. An event that fails frees its slot and counts as skipped. One thread at a time.
  int harvest(const std::function<void(uint64_t tag, double us)>& sample);

  int64_t skipped() const { return skipped_.load(std::memory_order_relaxed); }

 private:
  enum State : uint32_t { kFree, kHeld, kPending };
  struct Slot {
    std::atomic<uint32_t> state{kFree};
    CUevent first = nullptr, second = nullptr;
    uint64_t tag = 0;
  };
  CudaEventPool(std::shared_ptr<const CudaDevice> device, int slots)
      : device_(std::move(device)), slots_(static_cast<size_t>(slots)) {}
  void skip(Slot& slot);
  std::shared_ptr<const CudaDevice> device_;
  std::vector<Slot> slots_;
  std::atomic<uint32_t> next_{0};
  std::atomic<int64_t> skipped_{0};
};

}  // namespace niche::dispatch
