#include "dispatch/devices/cuda/cuda_event_pool.h"

namespace niche::dispatch {

Result<std::unique_ptr<CudaEventPool>> CudaEventPool::make(std::shared_ptr<const CudaDevice> device,
                                                           int slots) {
  if (slots < 1 || slots > 65536) return invalid("event pool of " + std::to_string(slots) + " slots");
  auto pool = std::unique_ptr<CudaEventPool>(new CudaEventPool(std::move(device), slots));
  const CudaDriver& call = pool->device_->driver();
  const CudaDevice::Scope scope(*pool->device_);
  if (!scope.status().ok()) return scope.status();
  for (Slot& s : pool->slots_)
    for (CUevent* e : {&s.first, &s.second})
      NICHE_RETURN_IF_ERROR(
          call.check(call.cuEventCreate(e, CU_EVENT_DEFAULT), "cuEventCreate", "event pool"));
  return pool;
}

CudaEventPool::~CudaEventPool() {
  const CudaDevice::Scope scope(*device_);
  if (!scope.status().ok()) return;
  for (Slot& s : slots_)
    for (CUevent e : {s.first, s.second})
      if (e != nullptr) device_->driver().cuEventDestroy(e);
}

void CudaEventPool::skip(Slot& slot) {
  skipped_.fetch_add(1, std::memory_order_relaxed);
  slot.state.store(kFree, std::memory_order_release);  // pairs with the acquire in begin()
}

int CudaEventPool::begin(CUstream stream, uint64_t tag) {
  constexpr int kTries = 4;
  for (int i = 0; i < kTries; ++i) {
    const auto at = next_.fetch_add(1, std::memory_order_relaxed) % slots_.size();
    Slot& s = slots_[at];
    uint32_t expected = kFree;
    // acquire: pairs with the release that freed the slot, so that its tag may be overwritten.
    if (!s.state.compare_exchange_strong(expected, kHeld, std::memory_order_acquire,
                                         std::memory_order_relaxed))
      continue;
    if (device_->driver().cuEventRecord(s.first, stream) != CUDA_SUCCESS) {
      skip(s);
      return kNoSlot;
    }
    s.tag = tag;
    return static_cast<int>(at);
  }
  skipped_.fetch_add(1, std::memory_order_relaxed);
  return kNoSlot;
}

void CudaEventPool::end(int slot, CUstream stream) {
  Slot& s = slots_[static_cast<size_t>(slot)];
  if (device_->driver().cuEventRecord(s.second, stream) != CUDA_SUCCESS) return skip(s);
  s.state.store(kPending, std::memory_order_release);  // pairs with the acquire in harvest()
}

int CudaEventPool::harvest(const std::function<void(uint64_t tag, double us)>& sample) {
  const CudaDriver& call = device_->driver();
  int pending = 0;
  for (Slot& s : slots_) {
    if (s.state.load(std::memory_order_acquire) != kPending) continue;
    const CUresult done = call.cuEventQuery(s.second);
    if (done == CUDA_ERROR_NOT_READY) {
      ++pending;
      continue;
    }
    float ms = 0;
    if (done != CUDA_SUCCESS || call.cuEventElapsedTime(&ms, s.first, s.second) != CUDA_SUCCESS) {
      skip(s);
      continue;
    }
    const uint64_t tag = s.tag;
    s.state.store(kFree, std::memory_order_release);
    sample(tag, static_cast<double>(ms) * 1e3);
  }
  return pending;
}

}  // namespace niche::dispatch
