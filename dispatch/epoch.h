// EpochDomain: one published pointer, read wait-free, with reclamation of what it used to point to.
//
// Roles: many readers, each with a Slot of its own; one writer at a time (the publisher, under its lock).
// Invariants:
//   (1) A reader between enter and leave has a stamp above kOutsideExchange in its Slot: an epoch not later
//   than
//       the one in which it loaded the pointer.
//   (2) What publish() replaced under tag t may be freed once oldest_active() > t.
//   (3) A Slot outlives its attachment; a stamp is written by its own thread alone.
// Progress: readers are wait-free: a load, a store to their own line, a load; no read-modify-write where the
// asymmetric fence
//   works. The writer never waits for readers: oldest_active() says how far reclamation may go, and the
//   caller bounds the rest.
// Reclamation: epoch-based (Fraser 2004), with the reader's store-load fence moved to the writer
// (membarrier(2), as in liburcu):
//   a reader is either seen by the scan after the writer's heavy fence, or its load of the pointer comes
//   after that fence and sees the new one.
// Cost: enter + leave 1–2 ns asymmetric; 8–20 ns with the exchange where membarrier is missing. Heavy fence
// 1–10 µs. Why not simpler: atomic<shared_ptr> costs 15–60 ns a call and two shared writes; a hazard pointer
// needs a second load and compare on
//   each call, and cannot span a request that may see many kernels of one version.
//
// The platform parameter brings atomics, fences and orders, so that tests/dispatch/epoch_model_test.cc runs
// this very code under a weak memory model and with each order weakened in turn.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "dispatch/base/hot_inline.h"

namespace niche::dispatch {

// The orders that the protocol needs, by place. Mutation tests weaken them one by one.
struct EpochOrders {
  static constexpr auto kEnterEpoch = std::memory_order_acquire;  // pairs with kAdvance
  // A scan that reads this stamp must also see the end of the section before it: C++20 no longer counts a
  // plain store after a release store as part of its release sequence. Found by the model; free on x86.
  static constexpr auto kEnterStamp = std::memory_order_release;  // pairs with kScan
  static constexpr auto kEnterExchange =
      std::memory_order_seq_cst;  // store-load against kScan, without membarrier
  static constexpr auto kLoadPointer =
      std::memory_order_seq_cst;  // acquire of kPublish; seq_cst for the exchange's sake
  static constexpr auto kLeave = std::memory_order_release;  // pairs with kScan: reads end before the free
  static constexpr auto kPublish =
      std::memory_order_seq_cst;  // release to kLoadPointer; seq_cst against kEnterExchange
  static constexpr auto kAdvance =
      std::memory_order_release;  // a reader of the new epoch sees the new pointer
  static constexpr auto kScan =
      std::memory_order_seq_cst;             // acquire of kLeave; seq_cst against kEnterExchange
  static constexpr bool kLightFence = true;  // compiler barrier between stamp and pointer
  static constexpr bool kHeavyFence = true;  // membarrier before the scan
};

struct RealPlatform {
  template <typename T>
  using Atomic = std::atomic<T>;
  using Mutex = std::mutex;
  using Orders = EpochOrders;
  // True once this process is registered for MEMBARRIER_CMD_PRIVATE_EXPEDITED. False under ThreadSanitizer,
  // which knows neither membarrier nor (under -Werror) atomic_thread_fence: the exchange is its twin.
  static bool asymmetric_available();
  static void light_fence() { std::atomic_signal_fence(std::memory_order_seq_cst); }
  // Zero that the compiler does not know to be some register's value already.
  static uint64_t fresh_zero() {
#if defined(__GNUC__) && defined(__x86_64__)
    uint64_t zero;
    asm("xorl %k0, %k0" : "=r"(zero) : : "cc");
    return zero;
#else
    return 0;
#endif
  }
  static void heavy_fence();
};

template <typename P, typename T>
class BasicEpochDomain {
  using O = typename P::Orders;

 public:
  // Stamps of a thread that is outside: how it enters next is told by the word that it reads anyway, so that
  // the asymmetric way costs no test of its own.
  static constexpr uint64_t kOutside = 0, kOutsideExchange = 1;
  struct Slot {
    typename P::template Atomic<uint64_t> stamp{kOutside};
  };

  // `asymmetric`: as the platform allows, unless a test or a benchmark forces the exchange.
  explicit BasicEpochDomain(const T* first, bool asymmetric = P::asymmetric_available())
      : epoch_(kOutsideExchange + 1), current_(first), asymmetric_(asymmetric) {}
  BasicEpochDomain(const BasicEpochDomain&) = delete;
  BasicEpochDomain& operator=(const BasicEpochDomain&) = delete;

  // ---- readers ----

  // Returns what leave() wants back; nested() tells whether an outer guard is open. Nested guards cost no
  // fence: the outer stamp is older and protects at least as much.
  NICHE_HOT_INLINE uint64_t enter(Slot& slot) const {
    const uint64_t before = slot.stamp.load(std::memory_order_relaxed);  // own
    if (before == kOutside) [[likely]] {
      slot.stamp.store(epoch_.load(O::kEnterEpoch), O::kEnterStamp);  // made visible by the heavy fence
      if (O::kLightFence) P::light_fence();
    } else if (before == kOutsideExchange) {
      slot.stamp.exchange(epoch_.load(O::kEnterEpoch), O::kEnterExchange);
    }
    return before;
  }
  static bool nested(uint64_t entered) { return entered > kOutsideExchange; }
  // The outermost guard stores a constant, not what enter() read: else each section's first load would wait
  // for a store whose value is the load of the section before, and the calls of a thread would form one chain
  // of store forwardings (7 cycles each on Zen 3, twice a call).
  NICHE_HOT_INLINE static void leave(Slot& slot, uint64_t entered) {
    if (entered == kOutside) [[likely]] {
      static_assert(kOutside == 0);
      slot.stamp.store(P::fresh_zero(), O::kLeave);
    } else {
      slot.stamp.store(entered, O::kLeave);
    }
  }
  // Between enter and leave.
  const T* current() const { return current_.load(O::kLoadPointer); }

  // By the thread that owns the slot, outside.
  void attach(Slot* slot) {
    std::lock_guard<typename P::Mutex> lock(mutex_);
    if (!asymmetric_) slot->stamp.store(kOutsideExchange, std::memory_order_relaxed);  // own
    slots_.push_back(slot);
  }
  void detach(Slot* slot) {
    std::lock_guard<typename P::Mutex> lock(mutex_);
    slots_.erase(std::remove(slots_.begin(), slots_.end(), slot), slots_.end());
  }

  // ---- the writer ----

  // Returns the tag under which the pointer before may be retired.
  uint64_t publish(const T* next) {
    current_.store(next, O::kPublish);
    return advance();
  }
  // The tag for something that is no longer reachable for calls that begin after this.
  uint64_t advance() {
    const uint64_t tag = epoch_.load(std::memory_order_relaxed);  // own
    epoch_.store(tag + 1, O::kAdvance);
    return tag;
  }
  // Every tag below the result is free of readers.
  uint64_t oldest_active() {
    if (O::kHeavyFence && asymmetric_) P::heavy_fence();
    std::lock_guard<typename P::Mutex> lock(mutex_);
    uint64_t oldest = UINT64_MAX;
    for (Slot* s : slots_) {
      const uint64_t stamp = s->stamp.load(O::kScan);
      if (stamp > kOutsideExchange) oldest = std::min(oldest, stamp);
    }
    return oldest;
  }
  bool asymmetric() const { return asymmetric_; }

 private:
  // One line that readers share and the writer changes once a publication.
  alignas(64) typename P::template Atomic<uint64_t> epoch_;
  typename P::template Atomic<const T*> current_;
  const bool asymmetric_;
  alignas(64) typename P::Mutex mutex_;
  std::vector<Slot*> slots_;
};

}  // namespace niche::dispatch
