// http_post: one POST over libcurl, its answer handed on as it arrives. No redirects, certificates verified,
// http and https only; the one file that knows libcurl.
//
// Blocks until the answer ends or a limit is reached; asks keep_going every 100 ms. Thread-safety: safe from
// several threads. libcurl may resolve names in a thread of its own, so this never runs in a process that
// forks evaluators.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/base/status.h"

namespace niche::evolve::proposer {

struct HttpRequest {
  std::string url;
  std::vector<std::string> headers;  // "name: value"
  std::string body;
  double connect_seconds = 15;
  double stall_seconds = 300;  // without a byte: reasoning models are silent for minutes
  double seconds_max = 600;
  size_t bytes_max = size_t{8} << 20;              // of the whole answer
  std::function<bool(std::string_view)> on_bytes;  // of an answer with status 200; false: stop
  std::function<bool()> keep_going;                // empty: always
  bool* sent = nullptr;                            // learns whether the whole request went out
};

struct HttpAnswer {
  int status = 0;          // HTTP's
  double retry_after = 0;  // seconds the service asked to wait; 0: not said
  std::string error_body;  // of a status other than 200, at most 16 KiB
  bool stopped = false;    // on_bytes said so
};

// kIo: no connection, or it broke; kBusy: a time limit, or keep_going; kCorrupt: more than bytes_max. The
// message never holds a header or the body.
dispatch::Result<HttpAnswer> http_post(const HttpRequest& request);

}  // namespace niche::evolve::proposer
