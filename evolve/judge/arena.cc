#include "evolve/judge/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>

namespace niche::evolve::judge {
namespace {

int64_t round_up(int64_t v, int64_t to) { return (v + to - 1) / to * to; }
// Given back to the system when a release leaves more than this behind.
constexpr int64_t kKeepBytes = int64_t{64} << 20;
// Addresses for closed memory between buffers: never touched, so they cost nothing.
constexpr int64_t kGuardRoom = int64_t{1} << 30;

}  // namespace

dispatch::Result<std::unique_ptr<SharedArena>> SharedArena::make(int64_t bytes) {
  bytes = round_up(bytes, kPage) + kMailboxBytes + kGuardRoom;
  void* p = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return dispatch::errno_status("map " + std::to_string(bytes) + " bytes for the arena");
  auto a = std::unique_ptr<SharedArena>(new SharedArena());
  a->base_ = static_cast<uint8_t*>(p);
  a->bytes_ = bytes;
  a->top_ = a->high_ = kMailboxBytes + kGuardBytes;
  return a;
}

SharedArena::~SharedArena() { munmap(base_, static_cast<size_t>(bytes_)); }

dispatch::Result<Placement> SharedArena::place(int64_t bytes, int64_t alignment, Side side) {
  Placement p;
  const int64_t shift = side == Side::kShifted ? alignment : 0;
  p.region = top_;
  p.region_bytes = std::max(kPage, round_up(bytes + shift, kPage));
  p.bytes = bytes;
  if (p.region + p.region_bytes + kGuardBytes > bytes_)
    return dispatch::busy("argument buffers: " + std::to_string(bytes) + " bytes wanted, " +
                          std::to_string(bytes_ - top_) + " left (EvaluatorOptions::memory_bytes_max)");
  p.at = side == Side::kEnd ? (p.region + p.region_bytes - bytes) / alignment * alignment : p.region + shift;
  top_ = p.region + p.region_bytes + kGuardBytes;
  high_ = std::max(high_, top_);
  return p;
}

void SharedArena::release(int64_t mark) {
  top_ = mark;
  if (high_ - top_ <= kKeepBytes) return;
  const int64_t from = round_up(top_ + kKeepBytes, kPage);
  if (from < high_) madvise(base_ + from, static_cast<size_t>(high_ - from), MADV_REMOVE);
  high_ = from;
}

}  // namespace niche::evolve::judge
