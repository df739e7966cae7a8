// SharedArena: memory that supervisor, oracle and cells see at one address: argument buffers between guard
// pages, and a mailbox at its start.
//
// Made before any child is forked. Who may touch what is set by each process for itself: a cell closes
// everything but the buffers of the test that runs (cell.h). Pages cost memory only once touched.
// Thread-safety: one owner thread. Cost: allocate is some ns.
#pragma once

#include <cstdint>
#include <memory>

#include "dispatch/base/status.h"

namespace niche::evolve::judge {

inline constexpr int64_t kPage = 4096;
// Closed memory on either side of a buffer: an index that is off by a row must not land in the next argument.
inline constexpr int64_t kGuardBytes = 64 << 10;
inline constexpr int64_t kMailboxBytes = 1 << 20;

// Where one argument lies: whole pages with closed ones on either side, and the bytes in use inside them.
struct Placement {
  int64_t region = 0;        // offset of the first page
  int64_t region_bytes = 0;  // whole pages; 0: the argument is absent
  int64_t at = 0;            // offset of the first byte in use
  int64_t bytes = 0;
};

// Where in its region a buffer lies.
enum class Side : uint8_t {
  kEnd,      // its last byte is as near to the upper guard page as its alignment allows
  kStart,    // its first byte touches the lower guard page
  kShifted,  // behind the lower guard page by exactly the alignment: no better aligned than promised
};

class SharedArena {
 public:
  static dispatch::Result<std::unique_ptr<SharedArena>> make(int64_t bytes);
  ~SharedArena();
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  uint8_t* base() const { return base_; }
  uint8_t* at(int64_t offset) const { return base_ + offset; }
  int64_t bytes() const { return bytes_; }
  template <typename T>
  T* mailbox(int64_t offset = 0) const {
    return reinterpret_cast<T*>(base_ + offset);
  }

  // Room for `bytes` bytes, placed as `side` says; `alignment` is a power of two up to 4096. kBusy: the arena
  // is full (what was asked for and what is left are named).
  dispatch::Result<Placement> place(int64_t bytes, int64_t alignment, Side side);
  // Stack discipline: everything placed after mark() is given up by release(mark).
  int64_t mark() const { return top_; }
  void release(int64_t mark);

 private:
  SharedArena() = default;
  uint8_t* base_ = nullptr;
  int64_t bytes_ = 0, top_ = 0, high_ = 0;
};

}  // namespace niche::evolve::judge
