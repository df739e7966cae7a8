// Load on a ranking server over HTTP: closed loop for capacity, open loop for latency from the *scheduled*
// arrival (a late server does not get later requests: no coordinated omission).
//
// Thread-safety: one run at a time an object; on_response is called from the client threads.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "runtime/cli/replay/trace.h"

namespace niche::replay {

struct ResponseSample {
  RequestSpec request;
  int http_status = 0;     // 0: no answer
  double scheduled_s = 0;  // on the run's own clock
  double finished_s = 0;
  double latency_ms = 0;              // open loop: from the scheduled arrival; closed loop: from the send
  const std::string* body = nullptr;  // valid during the callback
};

struct LoadOptions {
  std::string host = "127.0.0.1";
  int port = 8080;
  std::string path = "/rank";
  int connections = 16;
  double timeout_s = 10;
  std::function<void(const ResponseSample&)> on_response;  // may be empty
  const std::atomic<bool>* stop = nullptr;                 // set: ends early, cleanly
};

struct LoadResult {
  int64_t sent = 0;
  int64_t failed = 0;         // no answer, or a status other than 200
  std::string first_failure;  // "request 12: status 503" or why there was no answer; empty for none
  double seconds = 0;
  std::vector<double> latency_ms;  // of the answered, unordered
  double rate_per_s() const { return seconds > 0 ? static_cast<double>(sent - failed) / seconds : 0; }
};

// The q-quantile (0..1) of `v` by nearest rank; 0 for none. Sorts a copy.
double quantile(std::vector<double> v, double q);

// Sends `requests` as fast as `connections` allow, in order.
LoadResult closed_loop(const std::vector<RequestSpec>& requests, const LoadOptions& options);
// Sends each request at its arrival_s.
LoadResult open_loop(const std::vector<RequestSpec>& requests, const LoadOptions& options);

// The JSON body of a request: {"id":7,"batch":4,"length":181}.
std::string request_body(const RequestSpec& request);

}  // namespace niche::replay
