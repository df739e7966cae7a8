// HitLog: the exact hits of one thread that are not in their routes' counters yet, and when to look at a call.
//
// A hit writes its route's number to the next place of a ring; when the ring is full, the owner adds them up. A
// counter that each hit added to by itself would be a store to an address that comes out of the table's slot, last of
// all that a call knows, among 8 KiB of them: 4.5 ns a call among 1,024 routes on Zen 3, of which its memory is one
// and the order of stores and of the loads behind them the rest. The place in the ring is known before the call
// begins, and every call writes to the same few lines.
//
// The same word tells which hits are sampled: the next one is drawn evenly from [1, 2N-1] hits away, so that one in N
// is looked at and a model's layers cannot lock on to it. That is known early too: a hit that is sampled costs a
// mispredicted branch, not the work begun for the calls behind it, as a decision by the route's own count does.
//
// Roles: the owner adds and settles; anybody reads. Invariants: (1) `logged` only grows; (2) the hits from `flushed`
// to `logged` are in the ring; (3) every other one is in its route's counter. Progress: the owner is wait-free;
// count_of() tries again while the owner adds up, at most kTries times, and may then be off by what the ring holds.
// Cost: a hit seven instructions; adding up and sampling 1.2 ns of one that repeats, 1.6 in random order (Zen 3).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "dispatch/base/hot_inline.h"

namespace niche::dispatch {

// The orders that count_of() needs to be exact, by place. Mutation tests weaken them one by one.
struct HitLogOrders {
  static constexpr auto kPlace = std::memory_order_release;    // pairs with kReadPlace: the place was flushed
  static constexpr auto kLogged = std::memory_order_release;   // pairs with kReadLogged: the place is written
  static constexpr auto kCounted = std::memory_order_release;  // pairs with kReadCounter: a flush has begun
  static constexpr auto kFlushed = std::memory_order_release;  // pairs with kReadFlushed: all are counted
  static constexpr auto kReadFlushed = std::memory_order_acquire;  // pairs with kFlushed
  static constexpr auto kReadCounter = std::memory_order_acquire;  // pairs with kCounted
  static constexpr auto kReadLogged = std::memory_order_acquire;   // pairs with kLogged
  static constexpr auto kReadPlace = std::memory_order_acquire;    // pairs with kPlace
};
struct HitLogPlatform {
  template <typename T>
  using Atomic = std::atomic<T>;
  using Orders = HitLogOrders;
};

template <typename P, uint32_t kPlaces>
class BasicHitLog {
  using O = typename P::Orders;
  template <typename T>
  using Atomic = typename P::template Atomic<T>;

 public:
  // The owner, once a hit. True: settle() is due.
  NICHE_HOT_INLINE bool add(uint32_t route) {
    const uint64_t n = logged_.load(std::memory_order_relaxed);  // own
    routes_[n % kPlaces].store(route, O::kPlace);
    logged_.store(n + 1, O::kLogged);
    return n + 1 == due_;
  }
  // The owner, when add() said so. If the ring is full, or will be before the next sample, adds each hit to
  // `counter(route)`, an Atomic<uint64_t>. `every`: one hit in so many is sampled, 0: none; below 2^31; a change of
  // it acts from here on. `random`: 32 bits. Returns whether the last hit is one of them.
  template <typename Counter, typename Random>
  bool settle(uint32_t every, Counter counter, Random random) {
    const uint64_t n = logged_.load(std::memory_order_relaxed);  // own
    if (every != every_) {
      every_ = every;
      sample_at_ = n - 1 + gap(random);
    }
    const bool sampled = n == sample_at_;
    if (sampled) sample_at_ = n + gap(random);
    // At a sampled hit where the ring is full before the next one: every settle() is a branch guessed wrong.
    if (n - from_ == kPlaces || (sampled && sample_at_ - from_ > kPlaces)) add_up(n, counter);
    due_ = std::min(from_ + kPlaces, sample_at_);
    return sampled;
  }

  // Anybody: hits since the thread was first attached.
  uint64_t hits() const { return logged_.load(std::memory_order_relaxed); }
  // Anybody: hits of one route, whose counter is `counter`.
  uint64_t count_of(uint32_t route, const Atomic<uint64_t>& counter) const {
    uint64_t sum = 0;
    for (int i = 0; i < kTries && !try_count(route, counter, &sum); ++i) {
    }
    return sum;
  }
  // False: the owner added up meanwhile; *sum may be off.
  bool try_count(uint32_t route, const Atomic<uint64_t>& counter, uint64_t* sum) const {
    const uint64_t flushed = flushed_.load(O::kReadFlushed);
    *sum = counter.load(O::kReadCounter);
    const uint64_t end = logged_.load(O::kReadLogged);
    const uint64_t begin = std::max(flushed >> 1, end < kPlaces ? 0 : end - kPlaces);
    for (uint64_t at = begin; at < end; ++at)
      *sum += routes_[at % kPlaces].load(O::kReadPlace) == route ? 1 : 0;
    return (flushed & 1) == 0 && flushed_.load(std::memory_order_relaxed) == flushed;
  }

 private:
  uint32_t place(uint64_t at) const { return routes_[at % kPlaces].load(std::memory_order_relaxed); }  // own
  // All hits up to the n-th.
  template <typename Counter>
  void add_up(uint64_t n, Counter counter) {
    flushed_.store(from_ << 1 | 1,
                   std::memory_order_relaxed);  // who reads a new counter sees this: kCounted
    if (const uint32_t route = place(n - 1); all_are(route, n)) {
      add_to(counter(route), n - from_);  // a site that repeats would wait for its own store at each
    } else {
      for (uint64_t at = from_; at < n; ++at) add_to(counter(place(at)), 1);
    }
    from_ = n;
    flushed_.store(n << 1, O::kFlushed);
  }
  bool all_are(uint32_t route, uint64_t n) const {
    if (place(from_) != route) return false;
    uint32_t differ = 0;  // without a branch a place
    for (uint64_t at = from_; at < n; ++at) differ |= place(at) ^ route;
    return differ == 0;
  }
  static void add_to(Atomic<uint64_t>& counter, uint64_t n) {
    counter.store(counter.load(std::memory_order_relaxed) + n, O::kCounted);
  }
  static constexpr int kTries = 1000;
  template <typename Random>
  uint64_t gap(Random random) const {
    // A product instead of a remainder: a division of 64 bits takes as long as a call.
    return every_ == 0 ? UINT64_MAX / 2 : 1 + (random() * (uint64_t{2} * every_ - 1) >> 32);
  }

  Atomic<uint32_t> routes_[kPlaces] = {};  // first: a place is then one addressing mode away
  Atomic<uint64_t> logged_{0};
  uint64_t due_ = 1;  // the value of `logged_` at which settle() is next wanted
  uint64_t sample_at_ = UINT64_MAX, from_ = 0;
  uint32_t every_ = 0;
  Atomic<uint64_t> flushed_{0};  // hits that are in their counters, times two; odd: more are being added
};

using HitLog = BasicHitLog<HitLogPlatform, 256>;

}  // namespace niche::dispatch
