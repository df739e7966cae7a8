// ShadowChecker: compares a live answer, or what a challenger would have answered, with the fp64 reference of
// the operator, under the same bound that the evaluator used. Off the answer's path, on copies: a live tensor
// is never updated twice.
//
// Thread-safety: one owner thread. Cost: reference, library form and kernel once each: some 10× the call.
// Bound: memory for one job, at most six times the job's arguments.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "dispatch/published_kernel.h"
#include "runtime/core.h"
#include "runtime/shadow_arena.h"

namespace niche::core {

struct ShadowFinding {
  enum class Kind : uint8_t {
    kMatched,
    kMismatched,
    kSkipped,  // could not be judged: the library form threw, constants were rebound, a kernel is gone
  };
  Kind kind = Kind::kSkipped;
  uint64_t kernel = 0;  // Kernel::id of the evolved kernel that was judged
  uint32_t route = 0;
  double max_error = 0;  // in units of the bound
  std::string reason;
};

class ShadowChecker {
 public:
  // Finds a Kernel by its id; null when it left the process's tables.
  using Resolve = std::function<std::shared_ptr<const dispatch::Kernel>(uint64_t id)>;

  ShadowChecker(RuntimeCore& core, Resolve resolve) : core_(core), resolve_(std::move(resolve)) {}
  // One finding for the live answer or for the shadow, whichever is evolved; both when both are.
  void check(const ShadowJob& job, const std::function<void(const ShadowFinding&)>& found);

 private:
  RuntimeCore& core_;
  Resolve resolve_;
};

}  // namespace niche::core
