// HttpServer: a listener for /metrics, /status and /health.
//
// Thread-safety: start and stop from one thread; replies are made on the listener's own threads. Bounds: GET only, one
// request a connection, 16 of them at a time, each given up after a second of silence; while all 16 are taken, those
// that have talked for five seconds are ended, so that nobody shuts a scraper out for longer. Not for the internet: bind
// it where a scraper can reach it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "dispatch/base/status.h"

namespace niche {

struct HttpReply {
  int code = 404;
  std::string type = "text/plain";
  std::string body = "not found: /metrics, /status and /health are here\n";
};

class HttpServer {
 public:
  using Handler = std::function<HttpReply(std::string_view path)>;
  // `address`: "<host>:<port>"; port 0 picks a free one. kIo: the address cannot be bound.
  static dispatch::Result<std::unique_ptr<HttpServer>> start(const std::string& address, Handler handler);
  ~HttpServer();  // joins
  int port() const;

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace niche
