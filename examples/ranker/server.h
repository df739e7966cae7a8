// The example server: HTTP in front of the ranker on niche.
//
//   POST /rank {"id":7,"batch":4,"length":181}
//        -> {"id":7,"calls":19,"evolved":17,"tuning":0,"logits":[...],"features":[[...],...]}
//        calls: operator calls of this request, and how many of them ran on evolved kernels; tuning: a
//        session ran meanwhile; features: for one request in twelve, by id, so that answers can be recomputed
//   GET  /status, /metrics, /health             -> the Runtime's own
//   POST /force?kernel=fallback                 -> Runtime::force ("" ends it)
//   POST /evolution?paused=1                    -> Runtime::pause_evolution
//   GET  /profile?requests=40                   -> {"seconds":{"conv1d":...},"total":...}: time by operator
//
// Errors: 400 names the field that is missing or out of range; 503 when more than 1,024 requests wait.
#pragma once

#include <memory>
#include <string>

#include "runtime/runtime.h"

namespace ranker {

struct ServerOptions {
  int port = 8080;             // 0: any free one, printed
  int threads = 2;             // inference threads, one intra-op thread each
  std::string port_file;       // written with the port once the server listens
  bool paused = false;         // start with evolution paused
  double tuning_duty = 0.02;   // share of a device's time for sessions, between requests
  std::string device = "cpu";  // or "cuda:0"
  int parent = 0;              // end when this process, which started the server, does; 0: no such one
};

// Serves until SIGINT or SIGTERM; a second one leaves at once, with code 128 + its number. Returns the process's exit
// code.
int serve(niche::RuntimeConfig config, const ServerOptions& options);

}  // namespace ranker
