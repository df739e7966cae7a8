// SessionRunner: one evolution session seen from the control plane: a thread that owns the WorkerClient, so
// that spawning a worker (a second under load) and waiting for it never holds up the aggregator.
//
// Thread-safety: all members may be called from any thread. Progress: no member blocks but the destructor,
// which kills the worker and joins (some ms). Bounds: kEventsMax events wait; past that progress events give
// way.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "evolve/worker_client.h"

namespace niche::core {

class SessionRunner {
 public:
  static constexpr size_t kEventsMax = 256;

  SessionRunner(evolve::WorkerOptions worker, evolve::SessionRequest request);
  ~SessionRunner();
  SessionRunner(const SessionRunner&) = delete;
  SessionRunner& operator=(const SessionRunner&) = delete;

  // Acts within a few ms.
  void set_paused(bool paused) { want_paused_.store(paused); }
  bool paused() const { return want_paused_.load(); }
  void stop() { want_stop_.store(true); }

  // Events since the last call, in order. The last one of a session is kDone or kFailed.
  std::vector<evolve::SessionEvent> take_events();
  bool ended() const { return ended_.load(); }
  int pid() const { return pid_.load(); }  // 0: not started, or no worker was found

 private:
  void run();
  void push(evolve::SessionEvent event);
  void fail(const dispatch::Status& status);

  const evolve::WorkerOptions worker_;
  const evolve::SessionRequest request_;
  std::atomic<bool> want_paused_{false}, want_stop_{false}, kill_{false}, ended_{false};
  std::atomic<int> pid_{0};
  std::mutex mutex_;
  std::vector<evolve::SessionEvent> events_;
  std::thread thread_;
};

}  // namespace niche::core
