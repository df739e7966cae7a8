// What the demo shows while it runs: one line a second, and the samples behind the report's plots.
//
// Thread-safety: add() from any client thread; the rest from the demo's thread. Bounds: one sample a second;
// latencies of at most a million requests.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "examples/ranker/report.h"
#include "examples/ranker/server_process.h"
#include "runtime/cli/replay/load.h"

namespace ranker {

// Did a session run when this answer of the server was given?
bool was_tuning(const std::string& body);

class LiveView {
 public:
  ~LiveView() { finish(); }

  void add(const niche::replay::ResponseSample& sample);

  // Starts the once-a-second line. `server` must outlive finish().
  void start(const ServerProcess* server, std::chrono::steady_clock::time_point zero);
  void finish();

  // Seconds since a session ran, a kernel was swapped or a rollout was under way; 0 before the first one
  // ended.
  double seconds_quiet() const { return quiet_s_.load(); }
  // Share of operator calls on evolved kernels since the last reset.
  double evolved_share() const;
  void reset_share();

  std::vector<Sample> samples() const;
  std::vector<std::pair<double, std::string>> events() const;
  // Latencies of requests that overlapped a running session.
  std::vector<double> latencies_during_sessions() const;

 private:
  void tick();
  void loop();

  mutable std::mutex mutex_;
  std::vector<double> second_latency_ms_, during_ms_;
  int64_t calls_ = 0, evolved_ = 0, second_calls_ = 0, second_evolved_ = 0;
  std::vector<Sample> samples_;
  std::vector<std::pair<double, std::string>> events_;
  size_t events_seen_ = 0;
  std::atomic<double> quiet_s_{0};
  double last_busy_s_ = -1;

  const ServerProcess* server_ = nullptr;
  std::chrono::steady_clock::time_point zero_;
  std::condition_variable wake_;
  std::mutex wake_mutex_;
  bool finishing_ = false;
  std::thread thread_;
};

}  // namespace ranker
