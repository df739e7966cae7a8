// A trace of requests in the Azure LLM inference trace's format: TIMESTAMP,ContextTokens,GeneratedTokens.
//
// Source of the format and of the shipped sample: AzurePublicDataset, "Azure LLM inference trace 2023"
// (CC-BY 4.0); P. Patel et al., "Splitwise", ISCA 2024.
//
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dispatch/base/status.h"

namespace niche::replay {

struct TraceRow {
  double arrival_s = 0;  // seconds after the first row
  int context_tokens = 0;
  int generated_tokens = 0;
};

// Reads at most `rows_max` rows. Rows must be in order of time. kIo: cannot be read; kCorrupt names file,
// line and field. Cost: some 0.2 µs a row.
dispatch::Result<std::vector<TraceRow>> read_trace(const std::string& path, size_t rows_max = 1'000'000);

// One request to a ranking server: what a trace row becomes.
struct RequestSpec {
  uint64_t id = 0;
  double arrival_s = 0;
  int batch = 1;    // candidates
  int length = 16;  // events of the user's history
};

struct SizeMap {
  int batch_max = 8;
  int length_min = 24;
  int length_max = 400;
  double tokens_per_event = 5;       // ContextTokens / this = length before clamping
  double tokens_per_candidate = 60;  // 1 + GeneratedTokens / this = batch before clamping
};

// Maps rows to requests: sizes by `map`; arrival times scaled so that the mean rate is `rate_per_s`. Ids
// count from `first_id`. Bursts and long tails of the trace are kept, since only the time axis is stretched.
std::vector<RequestSpec> to_requests(const std::vector<TraceRow>& rows, const SizeMap& map, double rate_per_s,
                                     uint64_t first_id);

}  // namespace niche::replay
