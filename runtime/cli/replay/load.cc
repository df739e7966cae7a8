#include "runtime/cli/replay/load.h"

#include <httplib.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

namespace niche::replay {
namespace {

using Clock = std::chrono::steady_clock;

// A connection that was idle for longer is opened anew.
constexpr double kIdleSecondsMax = 1;

LoadResult run(const std::vector<RequestSpec>& requests, const LoadOptions& o, bool paced) {
  LoadResult result;
  result.latency_ms.reserve(requests.size());
  std::mutex mutex;
  std::atomic<size_t> next{0};
  const Clock::time_point start = Clock::now();
  const auto now_s = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const auto stopped = [&] { return o.stop && o.stop->load(std::memory_order_relaxed); };

  const auto client = [&] {
    httplib::Client http(o.host, o.port);
    http.set_keep_alive(true);
    http.set_tcp_nodelay(true);
    const auto timeout = static_cast<time_t>(std::ceil(o.timeout_s));
    http.set_connection_timeout(timeout);
    http.set_read_timeout(timeout);
    double used_s = now_s();
    for (;;) {
      const size_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= requests.size() || stopped()) return;
      const RequestSpec& q = requests[i];
      if (paced) {
        // Waits in slices so that a stop is honoured; the arrival itself is met to the scheduler's grain.
        while (!stopped() && now_s() < q.arrival_s)
          std::this_thread::sleep_for(std::chrono::duration<double>(std::min(0.05, q.arrival_s - now_s())));
        if (stopped()) return;
      }
      ResponseSample s;
      s.request = q;
      s.scheduled_s = paced ? q.arrival_s : now_s();
      // A server may give up an idle connection just as it is used again; that would look like a failed request.
      if (s.scheduled_s - used_s > kIdleSecondsMax) http.stop();
      const auto answer = http.Post(o.path, request_body(q), "application/json");
      s.finished_s = used_s = now_s();
      s.latency_ms = (s.finished_s - s.scheduled_s) * 1e3;
      s.http_status = answer ? answer->status : 0;
      static const std::string none;
      s.body = answer ? &answer->body : &none;
      if (o.on_response) o.on_response(s);
      const std::lock_guard lock(mutex);
      ++result.sent;
      if (s.http_status == 200)
        result.latency_ms.push_back(s.latency_ms);
      else if (result.failed++ == 0)
        result.first_failure = "request " + std::to_string(q.id) + " to " + o.host + ':' +
                               std::to_string(o.port) + o.path + ": " +
                               (answer ? "status " + std::to_string(answer->status)
                                       : "no answer (" + httplib::to_string(answer.error()) + ")");
    }
  };

  std::vector<std::thread> threads;
  for (int i = 0; i < o.connections; ++i) threads.emplace_back(client);
  for (std::thread& t : threads) t.join();
  result.seconds = now_s();
  return result;
}

}  // namespace

double quantile(std::vector<double> v, double q) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  const auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(v.size())));
  return v[std::clamp<size_t>(rank, 1, v.size()) - 1];
}

LoadResult closed_loop(const std::vector<RequestSpec>& requests, const LoadOptions& options) {
  return run(requests, options, false);
}

LoadResult open_loop(const std::vector<RequestSpec>& requests, const LoadOptions& options) {
  return run(requests, options, true);
}

std::string request_body(const RequestSpec& q) {
  return "{\"id\":" + std::to_string(q.id) + ",\"batch\":" + std::to_string(q.batch) +
         ",\"length\":" + std::to_string(q.length) + "}";
}

}  // namespace niche::replay
