// ShadowArena: copies of live calls' arguments that wait to be compared, in one preallocated ring of stated
// size.
//
// Roles: a serving thread whose call was sampled reserves a job, copies its inputs before the kernel runs and
// the answer after it, and commits; one background thread takes jobs in order, runs the other kernel on the
// copies and compares.
// Invariants: (1) memory is the ring, nothing grows; (2) a caller never waits: ring full, budget spent or
// another caller reserving means skipped and counted; (3) jobs leave in the order they came.
// Progress: reserve is try-lock; copying is outside it. Reclamation: a slot returns with release().
// Cost: a caller pays for the copies alone (a 1 MB call: about 100 µs, one call in shadow_one_in), bounded by
// bytes_per_second.
// Why not simpler: holding references needs a version counter that proves the inputs unchanged; inference
// tensors have none.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "dispatch/dispatcher.h"

namespace niche::core {

class HandleState;

struct ShadowJob {
  std::weak_ptr<HandleState> handle;  // weak: a job must not keep a closed Runtime alive
  uint64_t answered_by = 0;           // Kernel::id of who gave the live answer
  uint64_t shadow = 0;                // Kernel::id of who is to be compared
  dispatch::Rung rung = dispatch::Rung::kFallback;
  uint32_t route = 0;  // Route::index()
  int64_t axes[dispatch::kMaxAxes] = {};
  // Inputs and in-outs as they were before the call, constants that are bound by reference.
  std::array<void*, dispatch::kMaxArgs> before{};
  // What the live call left in in-outs and outputs; null for pure inputs.
  std::array<void*, dispatch::kMaxArgs> after{};
  std::array<std::shared_ptr<const void>, dispatch::kMaxArgs> keep;  // owners of constants held by reference
};

struct ShadowCounters {
  uint64_t taken = 0, abandoned = 0;
  uint64_t skipped_busy = 0, skipped_full = 0, skipped_budget = 0;
};

class ShadowArena {
 public:
  static constexpr int kSlots = 64;

  // 0 bytes: every reserve is skipped.
  ShadowArena(int64_t bytes, int64_t bytes_per_second);
  ShadowArena(const ShadowArena&) = delete;
  ShadowArena& operator=(const ShadowArena&) = delete;
  ~ShadowArena();

  // ---- serving threads
  struct Slot {
    ShadowJob job;
    std::atomic<int> state{0};  // kFree, kFilling, kReady, kAbandoned
    int64_t end = 0;            // ring position after this job's bytes
    char* memory = nullptr;
  };
  // A slot with `bytes` of 64-byte aligned memory, or null (counted).
  Slot* reserve(int64_t bytes);
  // release: pairs with next()'s acquire: the copies are complete.
  void commit(Slot* slot) { slot->state.store(kReady, std::memory_order_release); }
  void abandon(Slot* slot) { slot->state.store(kAbandoned, std::memory_order_release); }

  // ---- the background thread
  // The oldest finished job, or null. Abandoned ones are dropped on the way.
  Slot* next();
  void release(Slot* slot);

  // ---- the aggregator: `elapsed_ns` since the last call refills the byte budget.
  void refill(int64_t elapsed_ns);
  ShadowCounters counters() const;
  int64_t bytes() const { return bytes_; }

 private:
  enum State : int { kFree = 0, kFilling, kReady, kAbandoned };

  const int64_t bytes_, bytes_per_second_;
  char* memory_ = nullptr;
  std::unique_ptr<Slot[]> slots_;
  std::atomic_flag reserving_ = ATOMIC_FLAG_INIT;
  // Positions grow without bound; memory is position modulo bytes_. head_ under reserving_, tail_ by the
  // consumer.
  int64_t head_ = 0;
  std::atomic<int64_t> tail_{0};
  uint64_t head_slot_ = 0;
  std::atomic<uint64_t> tail_slot_{0};
  std::atomic<int64_t> budget_;
  std::atomic<uint64_t> taken_{0}, abandoned_{0}, busy_{0}, full_{0}, spent_{0};
};

}  // namespace niche::core
