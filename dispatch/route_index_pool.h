// RouteIndexPool: numbers for Routes, and their state words in dense rows.
//
// Thread-safety: take and give lock; words are read without. Reclamation: rows live as long as the pool, and
// the pool as long as any Route. Cost: 4 bytes a Route.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "dispatch/base/status.h"
#include "dispatch/thread_state.h"

namespace niche::dispatch {

class RouteIndexPool {
 public:
  // `ensure(n)`: called before an index of n - 1 is handed out for the first time.
  RouteIndexPool(uint32_t routes_max, std::function<Status(uint32_t)> ensure)
      : max_(routes_max), ensure_(std::move(ensure)) {}

  // Never kNoRoute. kBusy: all are taken.
  Result<uint32_t> take();
  void give(uint32_t index);
  std::atomic<uint32_t>* word(uint32_t index);
  // The dispatcher closes: later Routes find no room for counters, and take() says kBusy.
  void close();

 private:
  struct Row {
    std::atomic<uint32_t> words[kChunkRoutes];
  };
  const uint32_t max_;
  std::mutex mutex_;
  std::function<Status(uint32_t)> ensure_;
  std::vector<std::unique_ptr<Row>> rows_;
  std::vector<uint32_t> free_;
  uint32_t next_ = kNoRoute + 1;
};

}  // namespace niche::dispatch
