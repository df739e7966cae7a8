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

  // Keeps the body of a response that carries features: a third of samples_max for those of the library alone, two
  // thirds for those with the largest shares of calls on evolved kernels, however late they come. Cheap: no parsing,
  // no arithmetic.
  void offer(const niche::replay::RequestSpec& request, const std::string& body);

  struct Outcome {
    int64_t checked = 0, checked_evolved = 0, wrong = 0;  // evolved: at least one call was
    double worst = 0;                                     // largest error in units of the bound
    std::string first_wrong;  // "request 7 (batch 4, length 181), feature 3 of candidate 1: 0.5 for 0.7"
  };
  // `threads` recompute side by side.
  Outcome check(uint64_t weights_seed, int threads);

 private:
  const size_t samples_max_;
  std::mutex mutex_;
  struct Kept {
    double share = 0;  // of its calls, on evolved kernels
    niche::replay::RequestSpec request;
    std::string body;
  };
  std::vector<Kept> library_, evolved_;
};

// Which requests carry features: about one in `one_in`, by id.
bool is_sampled(uint64_t id, uint64_t one_in);

}  // namespace ranker
