// Counters and event records of the hot path: written by one thread each, without read-modify-write
// instructions, gathered by one aggregator.
//
// Roles: each serving thread writes its own; the aggregator (Dispatcher::drain) reads all.
// Invariants: (1) a counter only grows, but for a decision that is taken back; (2) a ring's reader frees what
// it has read. Progress: wait-free on the serving side; a full ring drops and counts. Reclamation: belong to
// the thread's state, which is recycled and never freed while its dispatcher lives: counts survive
//   the thread that made them.
// Cost: a count 1 ns (load, add, store on an own line); an event record 3–5 ns.
// Why not simpler: shared atomics cost 20 ns a count at two threads, and more with each core.
#pragma once

#include <atomic>
#include <cstdint>

#include "dispatch/fallback_reason.h"
#include "dispatch/problem_key.h"

namespace niche::dispatch {

// One writer, any readers. A plain add on the writer's side.
template <typename T>
class OwnCounter {
 public:
  // relaxed: a statistic; its readers need no order with anything else.
  // Returns the new value.
  T add(T by = 1) {
    const T next = static_cast<T>(v_.load(std::memory_order_relaxed) + by);
    v_.store(next, std::memory_order_relaxed);
    return next;
  }
  T get() const { return v_.load(std::memory_order_relaxed); }
  // For HitLog, which adds to it with an order.
  std::atomic<T>& word() { return v_; }
  const std::atomic<T>& word() const { return v_; }

 private:
  std::atomic<T> v_{0};
};

// What one call left behind for the control plane.
struct EventRecord {
  enum class Kind : uint8_t {
    kMiss,     // no exact entry: answered by a region (rung kRegion) or by the fallback
    kTiming,   // a timed call: `ticks`
    kRequest,  // a timed RequestScope: `ticks`; key, kernel and route mean nothing
  };
  ProblemKey key;
  int64_t axes[kMaxVarAxes] = {};  // var_axes order: what a wide key does not tell
  uint64_t kernel_id = 0;          // which kernel answered
  uint64_t ticks = 0;              // cycle counter (devices/cpu/cycle_clock.h)
  uint64_t request_id = 0;         // 0: none
  uint32_t route = 0;              // Route::index(); kNoRoute: none
  Kind kind = Kind::kMiss;
  Rung rung = Rung::kFallback;
  FallbackReason reason = FallbackReason::kNone;
};
inline constexpr uint32_t kNoRoute =
    0;  // index 0 belongs to no Route: calls outside the table are counted there

// The orders that the ring needs, by place. Mutation tests weaken them one by one.
struct RingOrders {
  static constexpr auto kPushTail = std::memory_order_acquire;  // pairs with kPopTail: the slot was read
  static constexpr auto kCommit = std::memory_order_release;    // pairs with kPopHead: the record is written
  static constexpr auto kPopHead = std::memory_order_acquire;   // pairs with kCommit
  static constexpr auto kPopTail = std::memory_order_release;   // pairs with kPushTail
};
struct RingPlatform {
  template <typename T>
  using Atomic = std::atomic<T>;
  using Orders = RingOrders;
};

// Single producer, single consumer, bounded.
template <typename T, uint32_t kCapacity, typename P = RingPlatform>
class SpscRing {
  static_assert((kCapacity & (kCapacity - 1)) == 0, "a power of two");
  using O = typename P::Orders;

 public:
  // Where to write the next record; null: full, and counted as dropped. Follow with commit().
  T* begin_push() {
    const uint32_t head = head_.load(std::memory_order_relaxed);  // own
    if (head - cached_tail_ == kCapacity) {
      cached_tail_ = tail_.load(O::kPushTail);
      if (head - cached_tail_ == kCapacity) {
        dropped_.add();
        return nullptr;
      }
    }
    return &slots_[head & (kCapacity - 1)];
  }
  void commit() { head_.store(head_.load(std::memory_order_relaxed) + 1, O::kCommit); }
  bool pop(T& out) {
    const uint32_t tail = tail_.load(std::memory_order_relaxed);  // own
    if (tail == head_.load(O::kPopHead)) return false;
    out = slots_[tail & (kCapacity - 1)];
    tail_.store(tail + 1, O::kPopTail);
    return true;
  }
  uint64_t dropped() const { return dropped_.get(); }

 private:
  alignas(64) typename P::template Atomic<uint32_t> head_{0};
  uint32_t cached_tail_ = 0;
  OwnCounter<uint64_t> dropped_;
  alignas(64) typename P::template Atomic<uint32_t> tail_{0};
  alignas(64) T slots_[kCapacity];
};

// Sums over all threads since the dispatcher was made.
struct CounterTotals {
  uint64_t by_rung[kRungCount] = {};
  uint64_t by_reason[kFallbackReasonCount] = {};
  uint64_t events_dropped = 0;  // ring full
  uint64_t requests_opened = 0, requests_closed = 0;
  uint64_t threads_attached = 0;  // now
  uint64_t calls() const {
    uint64_t n = 0;
    for (const uint64_t c : by_rung) n += c;
    return n;
  }
};

// One Route's calls by rung.
struct RouteCounts {
  uint64_t by_rung[kRungCount] = {};
};

}  // namespace niche::dispatch
