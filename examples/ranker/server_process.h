// A child process that runs the example server, for the demo and the served benchmark.
//
// Thread-safety: one owner thread. The destructor ends the child: SIGTERM, then SIGKILL after ten seconds.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "dispatch/base/status.h"

namespace ranker {

class ServerProcess {
 public:
  // Starts `program` with `args` plus --port 0 --port-file, its output in `log_file`, and waits until it
  // listens. kIo: cannot be started; kInternal: it ended or did not listen within 60 s (the message ends with
  // its log's tail).
  static niche::dispatch::Result<std::unique_ptr<ServerProcess>> start(const std::string& program,
                                                                       std::vector<std::string> args,
                                                                       const std::string& directory);
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  int port() const { return port_; }
  bool alive();
  // GET or POST on the server; kIo when there is no answer or a status other than 200.
  niche::dispatch::Result<std::string> get(const std::string& path) const;
  niche::dispatch::Status post(const std::string& path) const;
  // SIGTERM and wait; kInternal when it did not end with code 0.
  niche::dispatch::Status stop();

 private:
  ServerProcess() = default;
  pid_t pid_ = -1;
  int port_ = 0;
  std::string log_file_;
};

// The last `lines` lines of a file, for messages.
std::string tail_of(const std::string& path, size_t lines);

}  // namespace ranker
