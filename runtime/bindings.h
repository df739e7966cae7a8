// Bindings: the constants of one call site, and the packed copies of them that kernels asked for.
//
// Roles: the owner binds and rebinds (under a lock, excluding each other and the loader); serving threads
// read one immutable Snapshot; the aggregator checks contents.
// Invariants: (1) a Snapshot's packed buffers were made from exactly the tensors it names; (2) while contents
// are being replaced no Snapshot is published: calls that want packed constants take the fallback; (3)
// buffers of all bindings of a Runtime together stay below packed_bytes_max.
// Progress: readers are wait-free. Reclamation: a replaced Snapshot goes to Publisher::retire (epoch of the
// calls that hold it), and its tensors' owners with it.
// Cost: a call whose kernel wants packed constants: one load and one compare a bound argument. pack: the
// kernel's own pack entry, about a memory copy of the weights. check: 16 KiB read a binding.
// Why not simpler: a mutex a call, or buffers repacked under running calls.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dispatch/dispatcher.h"
#include "runtime/call_plan.h"

namespace niche::core {

// Bytes of packed constants that a Runtime may hold, shared by its call sites.
class PackedBudget {
 public:
  explicit PackedBudget(int64_t bytes_max) : left_(bytes_max), bytes_max_(bytes_max) {}
  bool take(int64_t bytes) {
    if (left_.fetch_sub(bytes) >= bytes) return true;
    left_.fetch_add(bytes);
    return false;
  }
  void give(int64_t bytes) { left_.fetch_add(bytes); }
  int64_t used() const { return bytes_max_ - left_.load(); }

 private:
  std::atomic<int64_t> left_;
  const int64_t bytes_max_;
};

// A tensor that the owner declared constant.
struct BoundTensor {
  const void* data = nullptr;
  int64_t bytes = 0;
  std::shared_ptr<const void> owner;
  std::function<uint64_t()> version;  // null: none exists
  uint64_t version_seen = 0;
  uint64_t sample = 0;  // hash of sampled contents
};

class Bindings {
 public:
  static constexpr int kPackSlots = 32;  // kernels of one Definition that want packed constants, at one time

  struct Snapshot {
    uint32_t mask = 0;  // arguments that are bound
    std::array<const void*, dispatch::kMaxArgs> pointer{};
    std::array<const void*, kPackSlots> packed{};
    std::array<std::shared_ptr<const void>, dispatch::kMaxArgs> owners;
    std::array<std::shared_ptr<const void>, kPackSlots> buffers;

    bool matches(void* const* p) const {
      for (uint32_t m = mask; m != 0; m &= m - 1) {
        const int i = __builtin_ctz(m);
        if (p[i] != pointer[static_cast<size_t>(i)]) return false;
      }
      return true;
    }
  };

  Bindings(std::shared_ptr<dispatch::Dispatcher> dispatcher,
           std::shared_ptr<const dispatch::Definition> definition, std::shared_ptr<PackedBudget> budget,
           uint32_t constant_mask);
  ~Bindings();

  // Hot path. Valid inside a Dispatcher::Call. Null: nothing bound, or being repacked.
  const void* packed(int slot, void* const* pointers) const {
    // acquire: pairs with publish()'s release: buffers and pointers are written.
    const Snapshot* s = current_.load(std::memory_order_acquire);
    if (s == nullptr || !s->matches(pointers)) [[unlikely]]
      return nullptr;
    return s->packed[static_cast<size_t>(slot)];
  }

  // Owners of the constants that a call uses as bound; none where the call's pointers differ. Valid inside a
  // Dispatcher::Call, like packed().
  class Held {
   public:
    explicit Held(const Snapshot* s) : s_(s) {}
    std::shared_ptr<const void> owner(int arg) const {
      return s_ != nullptr && (s_->mask >> arg & 1) ? s_->owners[static_cast<size_t>(arg)] : nullptr;
    }

   private:
    const Snapshot* s_;
  };
  Held held(void* const* pointers) const {
    const Snapshot* s = current_.load(std::memory_order_acquire);  // acquire: as in packed()
    return Held(s != nullptr && s->matches(pointers) ? s : nullptr);
  }

  // packed() for a thread that is not inside a Dispatcher::Call: holds the buffer. Takes the lock.
  std::shared_ptr<const void> hold_packed(int slot, void* const* pointers) const {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!held_ || !held_->matches(pointers)) return nullptr;
    return held_->buffers[static_cast<size_t>(slot)];
  }

  // Binds or rebinds, then packs again for every kernel given to pack() so far.
  dispatch::Status bind(int arg, BoundTensor tensor);
  dispatch::Status unbind(int arg);
  bool bound(int arg) const;

  // Packs for a kernel that is about to be published, when every constant is bound; else remembers it for
  // later binds. kBusy: packed_bytes_max. Idempotent.
  dispatch::Status pack(const std::shared_ptr<const dispatch::Kernel>& kernel);
  // The kernel left the table: its buffer goes.
  void drop(const dispatch::Kernel& kernel);

  // The aggregator's look: a changed version counter or changed sampled contents withdraw the packed copies
  // until the next bind. Returns what was found, for the log; empty: nothing.
  std::string check();
  bool stale() const { return stale_.load(std::memory_order_relaxed); }

 private:
  void withdraw_locked();
  void retire(const std::shared_ptr<const Snapshot>& old);
  dispatch::Status publish_locked();
  bool complete_locked() const;
  std::shared_ptr<const void> pack_locked(const dispatch::Kernel& kernel, dispatch::Status* status);

  const std::shared_ptr<dispatch::Dispatcher> dispatcher_;
  const std::shared_ptr<const dispatch::Definition> definition_;
  const std::shared_ptr<PackedBudget> budget_;
  const uint32_t constant_mask_;

  std::atomic<const Snapshot*> current_{nullptr};
  std::atomic<bool> stale_{false};
  mutable std::mutex mutex_;
  std::shared_ptr<const Snapshot> held_;  // what current_ points to
  std::array<BoundTensor, dispatch::kMaxArgs> tensors_;
  uint32_t bound_mask_ = 0;
  std::array<std::shared_ptr<const dispatch::Kernel>, kPackSlots> kernels_;
  std::array<std::shared_ptr<const void>, kPackSlots> buffers_;
};

// Hash over up to 256 cache lines spread evenly over the tensor. 5–30 µs.
uint64_t sample_contents(const void* data, int64_t bytes);

}  // namespace niche::core
