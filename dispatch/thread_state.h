// ThreadState: what one thread owns of one dispatcher: its epoch stamp, request scope, call-site cache,
// counters, event rings and workspace. ThreadRegistry: all of them.
//
//
// Roles: the owner thread reads and writes its state; the publisher reads the stamp and sets workspace and
// counter chunks; the aggregator reads counters and rings.
// Invariants: (1) a state belongs to at most one living thread; (2) it is recycled, never freed, while the
// registry lives, so that counts outlive threads; (3) a chunk or workspace that a thread may need exists before
// the route that needs it is published.
//
// Progress: found by one compare of a thread-local word; a thread's first call takes a lock and allocates
// (some 20 µs). Reclamation: a thread's last destructors give its states back; the registry lives as long as
// its dispatcher or any thread that still holds a state. In a child of fork() the parent's dispatchers hand out
// no states at all.
// Cost: 1 ns to find; about 200 KiB a thread, plus 48 KiB for each 1,024 routes.
// Why not simpler: a plain thread_local member of each dispatcher does not exist in C++; a map look-up costs
// 10 ns a call.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "dispatch/base/status.h"
#include "dispatch/counters.h"
#include "dispatch/epoch.h"
#include "dispatch/hit_log.h"
#include "dispatch/request_scope.h"
#include "dispatch/table.h"

namespace niche::dispatch {

using EpochDomain = BasicEpochDomain<RealPlatform, Snapshot>;

inline constexpr uint32_t kChunkRoutes = 1024;
inline constexpr uint32_t kChunksMax = 1024;  // 1,048,576 routes
inline constexpr uint32_t kRoutesMax = kChunkRoutes * kChunksMax;

// How much of the traffic is looked at.
struct SamplingRates {
  uint32_t time_every = 64;               // one call in N is timed; 0: none
  uint32_t shadow_every = 1024;           // one evolved call in M also runs the fallback; 0: none
  uint32_t challenger_shadow_every = 64;  // of a route in kShadow
  uint32_t region_shadow_every = 16;  // of calls answered by a region: unseen shapes are watched more closely
  uint32_t request_every = 16;        // one RequestScope in K is timed
};

// Per-route counters of one thread: one dense row a rung, so that routes served alike share lines.
struct CounterChunk {
  OwnCounter<uint64_t> by_rung[kRungCount][kChunkRoutes];
};

// The workspace of one thread: a block that grows, and how much of it may be used.
//
// Roles: the registry sets, under its lock; the owner lends. Invariant: never more units than the block has
// that is lent with them. The block before goes to the publisher's retire list.
struct LentOrders {
  static constexpr auto kSetBlock =
      std::memory_order_release;  // before the units, and before its contents are used
  static constexpr auto kSetUnits = std::memory_order_release;   // pairs with kLendUnits: the block is there
  static constexpr auto kLendUnits = std::memory_order_acquire;  // before the block: that one or a larger
  static constexpr auto kLendBlock = std::memory_order_acquire;  // pairs with kSetBlock
};
struct LentPlatform {
  template <typename T>
  using Atomic = std::atomic<T>;
  using Orders = LentOrders;
};
template <typename P>
struct BasicLentBlock {
  using O = typename P::Orders;
  typename P::template Atomic<uint32_t> units{0};
  typename P::template Atomic<char*> block{nullptr};

  void set(char* larger, uint32_t its_units) {
    block.store(larger, O::kSetBlock);
    units.store(its_units, O::kSetUnits);
  }
  struct Loan {
    uint32_t units;
    char* block;
  };
  Loan lend() const {
    const uint32_t u = units.load(O::kLendUnits);
    return {u, block.load(O::kLendBlock)};
  }
  // For decisions: what was promised before the table that counts on it was published.
  uint32_t promised() const { return units.load(std::memory_order_relaxed); }
};

class ThreadState {
 public:
  static constexpr uint32_t kSites = 64;
  static constexpr uint32_t kEvents = 512;
  // What a call site's last calls found. A site that gives one answer twice in a row is armed: the next call is
  // answered by comparing its raw axes with these, before anything is packed or hashed. A site that changes its
  // shape on each call compares one word and remembers one.
  struct alignas(16) SiteEntry {
    uint64_t version = 0;  // armed for this Snapshot::version; 0: not armed
    const TableSlot* slot = nullptr;
    // Of the armed call:
    uint64_t tag = 0;  // CallSite::tag() and its layout
    int64_t axes[kMaxVarAxes] = {};
  };

  // The line that every call touches.
  alignas(64) EpochDomain::Slot epoch;
  const Snapshot* pinned = nullptr;  // what calls in the open RequestScope see
  uint64_t demands = 0;  // under capture: what the open RequestScope adds to each key (PackedPrefix::bits_of)
  RequestInfo request;   // of the open RequestScope; id 0: none

  alignas(64) HitLog hits;  // exact ones; the other rungs' calls are counted at once

  // The line that opening and closing a RequestScope touches besides.
  alignas(64) OwnCounter<uint64_t> requests_opened;
  OwnCounter<uint64_t> requests_closed;
  std::atomic<uint32_t> request_below{0};
  uint64_t request_start_ticks = 0;  // 0: the open one is not timed
  // Of the scopes outside the open one; seldom any.
  struct OuterScope {
    RequestInfo request;
    const Snapshot* table;
  };
  std::vector<OuterScope> outer_scopes;
  const Snapshot* captured = nullptr;  // under capture: the table; `pinned` is capturing_snapshot() then

  // At a byte offset, so that finding it costs no address arithmetic.
  alignas(64) SiteEntry sites[kSites];
  SiteEntry& site(uint32_t offset) {
    return *reinterpret_cast<SiteEntry*>(reinterpret_cast<char*>(sites) + offset);
  }
  alignas(64) std::atomic<CounterChunk*> chunks[kChunksMax] = {};

  uint64_t random = 0;  // xorshift state: assignment without a request id, sampling intervals
  OwnCounter<uint64_t> by_rung[kRungCount];  // calls but for logged hits, of all routes
  OwnCounter<uint64_t> by_reason[kFallbackReasonCount];
  // Rates, as the dispatcher set them. Calls that are no logged hits: one is looked at when the place of its route's
  // count is below sample_below. Of hits one in sample_every, the smaller of the other two.
  std::atomic<uint32_t> sample_below{0}, time_below{0}, shadow_below{0};
  std::atomic<uint32_t> sample_every{0}, time_every{0}, shadow_every{0};
  std::atomic<uint32_t> challenger_shadow_every{0}, region_shadow_every{0};
  BasicLentBlock<LentPlatform> workspace;
  SpscRing<EventRecord, kEvents> misses;
  SpscRing<EventRecord, kEvents> timings;

  // Multiples of 2^32 / golden ratio fall evenly into [0, 2^32): the calls of a route whose place is below
  // 2^32 / N are one in N, at distances that never settle into a period (Weyl, Knuth 6.4): a fixed stride
  // would lock on to a model's layers. 32 bits: the factor is part of the instruction.
  static constexpr uint32_t place_of(uint64_t count) { return static_cast<uint32_t>(count) * 0x9e3779b9u; }
  static constexpr uint32_t below(uint32_t every) { return every == 0 ? 0 : UINT32_MAX / every; }

  OwnCounter<uint64_t>& count(uint32_t route_index, Rung rung) {
    // relaxed: the chunk was stored before the table that names the route was published (invariant 3).
    CounterChunk* chunk = chunks[route_index / kChunkRoutes].load(std::memory_order_relaxed);
    return chunk->by_rung[static_cast<int>(rung)][route_index % kChunkRoutes];
  }
  // Any thread. Calls of one Route; nothing where no chunk is.
  void add_counts(uint32_t route_index, uint64_t* by_rung_sum) const;
  // Any thread. Calls of all Routes.
  void add_totals(uint64_t* by_rung_sum) const;
  // xorshift64*: good enough to split calls and to jitter intervals.
  uint64_t next_random() {
    uint64_t x = random;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    random = x;
    return x * 0x2545f4914f6cdd1dULL;
  }
};

// What a thread finds its state by. `dispatcher` is a number that is never reused, not an address.
struct ThreadFastPath {
  uint64_t dispatcher = 0;
  ThreadState* state = nullptr;
};
// initial-exec: a plain load through fs, also inside libniche.so (16 bytes of static TLS).
extern constinit thread_local ThreadFastPath thread_fast_path __attribute__((tls_model("initial-exec")));

// What stands in for the state of a thread that has none (a forked child, a dying thread, the thread limit),
// so that the hot path need not ask: it is inside an empty table of mode kDetached for ever, and never
// written but for its stamp, by its own value.
ThreadState* detached_thread();

// An empty table of mode kCapturing.
const Snapshot* capturing_snapshot();

class ThreadRegistry : public std::enable_shared_from_this<ThreadRegistry> {
 public:
  ThreadRegistry(uint64_t dispatcher, EpochDomain* domain, uint32_t threads_max);
  ~ThreadRegistry();

  struct Attached {
    ThreadState* state;  // never null; detached(): this thread cannot be attached
    FallbackReason why;  // then: why
  };
  // This thread's state, made or recycled at need.
  Attached attach();
  // Before the first route with such an index is published. kBusy: out of memory.
  Status ensure_chunks(uint32_t routes);
  // Gives every attached thread, and those to come, at least so much workspace. Old blocks go to `retired`,
  // to be freed once no call can hold them. kBusy: out of memory, and nothing changed for the threads not
  // reached.
  Status ensure_workspace(int64_t bytes, std::vector<std::shared_ptr<void>>* retired);
  // The dispatcher is going: its domain may not be touched any more.
  void close();

  template <typename F>
  void for_each(F f) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& s : states_) f(*s);
  }
  uint32_t attached() const;
  // What every attached thread has at least.
  uint32_t workspace_units() const;
  // Rates of every thread, and of those to come.
  void set_sampling(const SamplingRates& rates);

  // Number of forks between the first process and this one.
  static uint64_t fork_generation();
  bool forked() const { return generation_ != fork_generation(); }

 private:
  friend struct ThreadRecords;
  void release(ThreadState* state);

  const uint64_t dispatcher_;
  const uint64_t generation_;
  const uint32_t threads_max_;
  mutable std::mutex mutex_;
  EpochDomain* domain_;
  std::vector<std::unique_ptr<ThreadState>> states_;
  std::vector<ThreadState*> free_;
  uint32_t chunks_ = 0;
  int64_t workspace_bytes_ = 0;
  SamplingRates rates_;
};

}  // namespace niche::dispatch
