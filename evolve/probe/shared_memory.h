// SharedMemory: one anonymous file that two processes map: what is too large for a message.
//
// Pages cost memory only once touched. Thread-safety: one owner thread a process.
#pragma once

#include <cstdint>
#include <memory>

#include "dispatch/base/status.h"

namespace niche::evolve::probe {

class SharedMemory {
 public:
  static dispatch::Result<std::unique_ptr<SharedMemory>> make(int64_t bytes);
  // Maps what descriptor `fd` holds, and owns it.
  static dispatch::Result<std::unique_ptr<SharedMemory>> open(int fd);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  uint8_t* at(int64_t offset) const { return base_ + offset; }
  int64_t bytes() const { return bytes_; }
  int fd() const { return fd_; }

 private:
  SharedMemory() = default;
  uint8_t* base_ = nullptr;
  int64_t bytes_ = 0;
  int fd_ = -1;
};

}  // namespace niche::evolve::probe
