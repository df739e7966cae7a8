// The shape stream of a trace in the form of the Azure LLM inference trace 2023: its prompt lengths, in
// order.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "dispatch/base/status.h"

namespace niche::bench {

// Column ContextTokens. kIo: cannot be read; kCorrupt names the line.
inline dispatch::Result<std::vector<int64_t>> read_prompt_lengths(const std::string& file) {
  std::ifstream in(file);
  if (!in) return dispatch::io_error("cannot read " + file);
  std::vector<int64_t> lengths;
  std::string line;
  for (int n = 1; std::getline(in, line); ++n) {
    if (n == 1 && line.rfind("TIMESTAMP,ContextTokens", 0) == 0) continue;
    const size_t comma = line.find(',');
    const int64_t l = comma == std::string::npos ? 0 : std::atoll(line.c_str() + comma + 1);
    if (l <= 0) return dispatch::corrupt(file + ": line " + std::to_string(n) + " has no prompt length");
    lengths.push_back(l);
  }
  return lengths;
}

}  // namespace niche::bench
