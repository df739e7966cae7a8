// Observation: what one exposed request (or call, where no RequestScope is open) says about its arm.
//
// Thread-safety: a value.
#pragma once

#include <cstdint>

namespace niche::rollout {

enum class Arm : uint8_t { kChallenger, kControl };

struct Observation {
  Arm arm = Arm::kControl;
  // log(time / predicted time of those shapes). The prediction is the same for both arms (shape_predictor.h),
  // so that calls of different shapes can stand in one pair: assignment to the arms is random, whatever the
  // shape.
  double log_ratio = 0;
};

}  // namespace niche::rollout
