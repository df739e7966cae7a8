#include "runtime/shadow_arena.h"

#include <sys/mman.h>

#include <algorithm>

#include "runtime/handle_state.h"

namespace niche::core {

ShadowArena::ShadowArena(int64_t bytes, int64_t bytes_per_second)
    : bytes_(bytes / 64 * 64),
      bytes_per_second_(bytes_per_second),
      slots_(std::make_unique<Slot[]>(kSlots)),
      budget_(bytes_per_second) {
  if (bytes_ == 0) return;
  // Reserved, and touched by use alone: an arena that is never needed costs no memory.
  void* p = mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p != MAP_FAILED) memory_ = static_cast<char*>(p);
}

ShadowArena::~ShadowArena() {
  if (memory_ != nullptr) munmap(memory_, static_cast<size_t>(bytes_));
}

ShadowArena::Slot* ShadowArena::reserve(int64_t bytes) {
  const auto skipped = [](std::atomic<uint64_t>& counter) -> Slot* {
    counter.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  };
  bytes = (bytes + 63) / 64 * 64;
  if (memory_ == nullptr || bytes > bytes_) return skipped(full_);
  if (budget_.load(std::memory_order_relaxed) <= 0) return skipped(spent_);
  // acquire: pairs with the clear() below: head_ and head_slot_ of the last reservation.
  if (reserving_.test_and_set(std::memory_order_acquire)) return skipped(busy_);
  Slot* slot = nullptr;
  int64_t begin = head_;
  // A job's memory is one piece: what is left before the ring's end is skipped when it is too short.
  if (begin % bytes_ + bytes > bytes_) begin += bytes_ - begin % bytes_;
  // acquire: pairs with release(): the job that had this memory is done.
  const bool room = begin + bytes - tail_.load(std::memory_order_acquire) <= bytes_ &&
                    head_slot_ - tail_slot_.load(std::memory_order_acquire) < kSlots;
  if (room) {
    slot = &slots_[head_slot_ % kSlots];
    slot->memory = memory_ + begin % bytes_;
    slot->end = begin + bytes;
    slot->state.store(kFilling, std::memory_order_relaxed);
    head_ = begin + bytes;
    ++head_slot_;
  }
  reserving_.clear(std::memory_order_release);
  if (slot == nullptr) return skipped(full_);
  budget_.fetch_sub(bytes, std::memory_order_relaxed);
  taken_.fetch_add(1, std::memory_order_relaxed);
  return slot;
}

ShadowArena::Slot* ShadowArena::next() {
  for (;;) {
    const uint64_t t = tail_slot_.load(std::memory_order_relaxed);  // own
    Slot* slot = &slots_[t % kSlots];
    switch (slot->state.load(std::memory_order_acquire)) {  // acquire: pairs with commit and abandon
      case kReady:
        return slot;
      case kAbandoned:
        abandoned_.fetch_add(1, std::memory_order_relaxed);
        release(slot);
        break;
      default:
        return nullptr;
    }
  }
}

void ShadowArena::release(Slot* slot) {
  slot->job = ShadowJob();
  const int64_t end = slot->end;
  slot->state.store(kFree, std::memory_order_relaxed);
  // release, both: pair with reserve()'s acquire: nobody reads this job any more.
  tail_.store(end, std::memory_order_release);
  tail_slot_.store(tail_slot_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

void ShadowArena::refill(int64_t elapsed_ns) {
  const double add = static_cast<double>(bytes_per_second_) * static_cast<double>(elapsed_ns) / 1e9;
  const int64_t now = budget_.load(std::memory_order_relaxed);
  const int64_t next = std::min(bytes_per_second_, now + static_cast<int64_t>(add));
  budget_.fetch_add(next - now, std::memory_order_relaxed);
}

ShadowCounters ShadowArena::counters() const {
  const auto get = [](const std::atomic<uint64_t>& c) { return c.load(std::memory_order_relaxed); };
  return {get(taken_), get(abandoned_), get(busy_), get(full_), get(spent_)};
}

}  // namespace niche::core
