// seconds_of: wall time of one call, for bounds that are an order of magnitude away from what is expected.
#pragma once

#include <chrono>

namespace niche::evolve {

template <class F>
double seconds_of(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace niche::evolve
