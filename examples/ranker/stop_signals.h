// StopSignals: SIGINT and SIGTERM for a program that takes time to end. The first asks it to, the second ends it at once.
//
// Made before any other thread: all threads inherit that the signals are blocked, and a thread of its own takes them.
// Thread-safety: make, destroy and on_stop() from one thread; the callback runs on another.
#pragma once

#include <functional>
#include <mutex>
#include <thread>

namespace ranker {

class StopSignals {
 public:
  StopSignals();
  // From now on signals are taken and dropped. Joins.
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // What the first signal does; at once where it has come already. It runs on a thread of its own and may block: the
  // second signal does not wait for it. Null takes it back, and waits for one that runs.
  void on_stop(std::function<void()> stop);

 private:
  void wait();

  std::mutex mutex_;
  std::function<void()> stop_;
  bool asked_ = false, ended_ = false;
  std::thread stopper_, waiter_;
};

}  // namespace ranker
