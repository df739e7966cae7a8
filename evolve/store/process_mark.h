// ProcessMark: which process works on a session, so that a reader can tell one that runs from one that was killed.
//
// "<pid> <start, clock ticks since boot> <boot id> <pid namespace>": a number that is used again has another start, and
// one of another container or boot says nothing. Thread-safety: free functions. Cost: some reads of /proc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace niche::evolve::store {

std::string own_process_mark();

enum class Liveness : uint8_t {
  kRuns,
  kGone,     // ended, or the machine was started again since
  kUnknown,  // of another pid namespace on this boot, or no mark
};
Liveness liveness(std::string_view mark);

}  // namespace niche::evolve::store
