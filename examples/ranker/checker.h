// Recomputes sampled live responses in fp64 from the same request and compares: the demo's count of wrong
// answers.
//
// Thread-safety: offer() from any thread; check() by one, afterwards. Bound: `samples_max` bodies are kept.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "examples/ranker/model.h"
#include "runtime/cli/replay/load.h"

namespace ranker {

class Checker {
 public:
  explicit Checker(size_t samples_max) : samples_max_(samples_max) {}

  // Keeps the body of a response that carries features: two thirds of samples_max for those made by
  // evolved kernels in at least half of their calls, a third for others. Cheap: no parsing, no arithmetic.
  void offer(const niche::replay::RequestSpec& request, const std::string& body);

  struct Outcome {
    int64_t checked = 0, checked_evolved = 0, wrong = 0;
    double worst = 0;         // largest error in units of the bound
    std::string first_wrong;  // "request 7 (batch 4, length 181), feature 3 of candidate 1: 0.5 for 0.7"
  };
  // `threads` recompute side by side.
  Outcome check(uint64_t weights_seed, int threads);

 private:
  const size_t samples_max_;
  std::mutex mutex_;
  size_t kept_evolved_ = 0, kept_library_ = 0;
  std::vector<std::pair<niche::replay::RequestSpec, std::string>> kept_;
};

// Which requests carry features: about one in `one_in`, by id.
bool is_sampled(uint64_t id, uint64_t one_in);

}  // namespace ranker
