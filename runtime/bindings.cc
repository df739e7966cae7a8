#include "runtime/bindings.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "dispatch/base/hash.h"

namespace niche::core {

using dispatch::Status;

uint64_t sample_contents(const void* data, int64_t bytes) {
  constexpr int64_t kLine = 64, kLines = 256;
  const char* base = static_cast<const char*>(data);
  const int64_t lines = bytes / kLine;
  const int64_t step = lines > kLines ? lines / kLines : 1;
  uint64_t h = dispatch::mix64(static_cast<uint64_t>(bytes));
  const auto fold = [&h](const char* p, int64_t n) {
    uint64_t w[8] = {};
    std::memcpy(w, p, static_cast<size_t>(n));
    for (uint64_t x : w) h = dispatch::mix64(h ^ x) + 0x9e3779b97f4a7c15ULL;
  };
  for (int64_t line = 0; line < lines; line += step) fold(base + line * kLine, kLine);
  if (bytes % kLine != 0) fold(base + lines * kLine, bytes % kLine);
  return h;
}

Bindings::Bindings(std::shared_ptr<dispatch::Dispatcher> dispatcher,
                   std::shared_ptr<const dispatch::Definition> definition,
                   std::shared_ptr<PackedBudget> budget, uint32_t constant_mask)
    : dispatcher_(std::move(dispatcher)),
      definition_(std::move(definition)),
      budget_(std::move(budget)),
      constant_mask_(constant_mask) {}

Bindings::~Bindings() {
  std::lock_guard<std::mutex> lock(mutex_);
  withdraw_locked();
}

void Bindings::retire(const std::shared_ptr<const Snapshot>& old) {
  if (old) dispatcher_->publisher().retire(std::const_pointer_cast<Snapshot>(old), sizeof(Snapshot));
}

void Bindings::withdraw_locked() {
  current_.store(nullptr, std::memory_order_release);  // publishes nothing: readers stop at null
  retire(std::exchange(held_, nullptr));
}

bool Bindings::complete_locked() const { return (bound_mask_ & constant_mask_) == constant_mask_; }

std::shared_ptr<const void> Bindings::pack_locked(const dispatch::Kernel& kernel, Status* status) {
  const int64_t bytes = kernel.plan.packed_bytes;
  if (!budget_->take(bytes)) {
    *status = dispatch::busy("packed constants of kernel '" + kernel.name + "' (" + std::to_string(bytes) +
                             " bytes) exceed packed_bytes_max; " + std::to_string(budget_->used()) +
                             " bytes in use");
    return nullptr;
  }
  const size_t rounded = (static_cast<size_t>(bytes) + 63) / 64 * 64;
  void* raw = std::aligned_alloc(64, rounded == 0 ? 64 : rounded);
  if (raw == nullptr) {
    budget_->give(bytes);
    *status = dispatch::busy("no memory for packed constants of kernel '" + kernel.name + "'");
    return nullptr;
  }
  std::shared_ptr<void> buffer(raw, [budget = budget_, bytes](void* p) {
    std::free(p);
    budget->give(bytes);
  });
  std::array<void*, dispatch::kMaxArgs> p{};
  for (uint32_t m = bound_mask_; m != 0; m &= m - 1) {
    const size_t i = static_cast<size_t>(__builtin_ctz(m));
    p[i] = const_cast<void*>(tensors_[i].data);
  }
  std::array<long, dispatch::kMaxAxes> n{};
  const auto extents = definition_->const_extents();
  for (size_t i = 0; i < extents.size(); ++i) n[i] = static_cast<long>(extents[i]);
  const NicheKernelArgs args{p.data(), n.data(), definition_->attrs().data(), nullptr, nullptr};
  kernel.pack(&args, raw);
  return buffer;
}

Status Bindings::publish_locked() {
  Status status;
  auto next = std::make_shared<Snapshot>();
  next->mask = bound_mask_;
  for (uint32_t m = bound_mask_; m != 0; m &= m - 1) {
    const size_t i = static_cast<size_t>(__builtin_ctz(m));
    next->pointer[i] = tensors_[i].data;
    next->owners[i] = tensors_[i].owner;
  }
  for (size_t s = 0; s < kPackSlots; ++s) {
    if (!kernels_[s] || !complete_locked()) continue;
    if (!buffers_[s]) buffers_[s] = pack_locked(*kernels_[s], &status);
    next->buffers[s] = buffers_[s];
    next->packed[s] = buffers_[s].get();
  }
  const std::shared_ptr<const Snapshot> old = std::exchange(held_, next);
  current_.store(next.get(), std::memory_order_release);  // release: pairs with packed()'s acquire
  retire(old);
  return status;
}

Status Bindings::bind(int arg, BoundTensor tensor) {
  std::lock_guard<std::mutex> lock(mutex_);
  withdraw_locked();
  for (auto& b : buffers_) b.reset();
  tensor.version_seen = tensor.version ? tensor.version() : 0;
  tensor.sample = sample_contents(tensor.data, tensor.bytes);
  tensors_[static_cast<size_t>(arg)] = std::move(tensor);
  bound_mask_ |= 1u << arg;
  stale_.store(false, std::memory_order_relaxed);
  return publish_locked();
}

Status Bindings::unbind(int arg) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!(bound_mask_ >> arg & 1))
    return dispatch::not_found("argument '" + definition_->schema().args[static_cast<size_t>(arg)].name +
                               "' of " + definition_->name() + " is not bound");
  withdraw_locked();
  for (auto& b : buffers_) b.reset();
  tensors_[static_cast<size_t>(arg)] = {};
  bound_mask_ &= ~(1u << arg);
  return publish_locked();
}

bool Bindings::bound(int arg) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return bound_mask_ >> arg & 1;
}

Status Bindings::pack(const std::shared_ptr<const dispatch::Kernel>& kernel) {
  if (kernel->pack_slot < 0) return {};
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t s = static_cast<size_t>(kernel->pack_slot);
  if (kernels_[s] == kernel && (buffers_[s] || !complete_locked())) return {};
  kernels_[s] = kernel;
  buffers_[s].reset();
  if (stale_.load(std::memory_order_relaxed)) return {};
  return publish_locked();
}

void Bindings::drop(const dispatch::Kernel& kernel) {
  if (kernel.pack_slot < 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t s = static_cast<size_t>(kernel.pack_slot);
  if (kernels_[s].get() != &kernel) return;
  kernels_[s].reset();
  buffers_[s].reset();
  if (held_) (void)publish_locked();
}

std::string Bindings::check() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!held_ || bound_mask_ == 0) return {};
  for (uint32_t m = bound_mask_; m != 0; m &= m - 1) {
    const size_t i = static_cast<size_t>(__builtin_ctz(m));
    const BoundTensor& t = tensors_[i];
    const bool counter = t.version && t.version() != t.version_seen;
    if (!counter && sample_contents(t.data, t.bytes) == t.sample) continue;
    withdraw_locked();
    stale_.store(true, std::memory_order_relaxed);
    return "argument '" + definition_->schema().args[i].name + "' of " + definition_->name() +
           " changed without rebind (" +
           (counter ? "its version counter moved" : "its sampled contents differ") +
           "); calls take the fallback where a kernel wants it packed, until rebind()";
  }
  return {};
}

}  // namespace niche::core
