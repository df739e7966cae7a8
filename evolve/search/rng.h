// Rng: the only source of chance in the search. Its stream depends on the seed alone, on every compiler and
// library (the distributions of <random> do not promise that), so that a recorded session replays byte for
// byte.
//
// Source: splitmix64 (Steele, Lea, Flood, 2014). Not for secrets. Thread-safety: one owner. About 1 ns a
// number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "dispatch/base/hash.h"

namespace niche::evolve::search {

class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}

  uint64_t next() { return dispatch::mix64(state_ += 0x9e3779b97f4a7c15ULL); }
  // Uniform in [0, n). Requires n > 0. The bias of the multiply-shift is below n / 2^32.
  size_t below(size_t n) { return static_cast<size_t>(((next() >> 32) * static_cast<uint64_t>(n)) >> 32); }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  double uniform(double lo, double hi) { return lo + (hi - lo) * uniform(); }
  bool chance(double p) { return uniform() < p; }

  template <typename T>
  void shuffle(std::vector<T>& v) {
    for (size_t i = v.size(); i > 1; --i) std::swap(v[i - 1], v[below(i)]);
  }

 private:
  uint64_t state_;
};

}  // namespace niche::evolve::search
