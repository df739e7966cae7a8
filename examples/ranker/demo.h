// The demo: starts the example server on an empty cache, replays a trace, shows it getting faster while it
// serves, restarts it, and writes report.json and report.html.
//
// Phases: best library forms (capacity, then latency of one stretch of the trace at half of it) → the same
// stretch again and again while sessions run and kernels are swapped in → capacity in ABBA order, library and
// evolved, in the same process → latency of the same stretch → restart → sampled responses recomputed in
// fp64.
#pragma once

#include <atomic>
#include <string>

namespace ranker {

struct DemoOptions {
  std::string server_program;  // this binary
  std::string worker_program;  // the niche program
  std::string trace;
  std::string out = "out/demo";
  std::string device = "cpu";  // or "cuda:0"
  double tuning_duty = 0.02;   // of a device
  int batch_max = 8;
  int threads = 2;
  double tuning_seconds_max = 200;
  bool tuning_cost = false;  // sessions are paused half of the time, to see what they cost (tuning_cost.h)
};

// Returns the process's exit code. `stop` is set by Ctrl-C: ends cleanly at the next second.
int run_demo(const DemoOptions& options, const std::atomic<bool>& stop);

}  // namespace ranker
