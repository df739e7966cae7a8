// The demo's results: one struct, written as JSON (for machines) and as one HTML page without network (for
// people).
//
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dispatch/base/status.h"
#include "examples/ranker/tuning_cost.h"

namespace ranker {

struct OperatorRow {
  std::string op, problem, kernel;
  double share_before = 0;  // of the request's operator time, on the best library forms
  std::string fallback;     // the best library form here
  double fallback_us = 0, evolved_us = 0, speedup = 1, ci_low = 1, ci_high = 1;
  int tried = 0;
  std::map<std::string, int> rejected;  // gate -> candidates
  std::string note;                     // "stays on the library: not faster in 212 candidates"
};

// One second of the run: what the live progress showed.
struct Sample {
  double at_s = 0, requests_per_s = 0, p50_ms = 0, p99_ms = 0, evolved_share = 0;
  int sessions_running = 0, swaps = 0;
};

struct Report {
  std::string commit, machine, trace, date;
  int64_t requests = 0, failed = 0, wrong = 0, checked = 0, checked_evolved = 0;
  double throughput_before_rps = 0, throughput_after_rps = 0;
  std::vector<double> throughput_before_runs, throughput_after_runs;
  double p99_before_ms = 0, p99_during_ms = 0, p99_after_ms = 0;
  double p50_before_ms = 0, p50_during_ms = 0, p50_after_ms = 0;
  TuningCost tuning_cost;   // quads 0: not asked for
  double first_swap_s = 0;  // from an operator becoming hot to the first live call on its evolved kernel
  int sessions = 0, swaps = 0, rollbacks = 0;
  double evolved_call_share = 0, evolved_call_share_after_restart = 0;
  double seconds = 0;
  std::vector<OperatorRow> operators;
  std::vector<Sample> samples;
  std::vector<std::pair<double, std::string>> events;  // seconds, text
};

std::string to_json(const Report& report);
std::string to_table(const Report& report);  // for a terminal
std::string to_html(const Report& report);
// Writes report.json and report.html into `directory`, creating it. kIo names the file.
niche::dispatch::Status write_report(const Report& report, const std::string& directory);

}  // namespace ranker
