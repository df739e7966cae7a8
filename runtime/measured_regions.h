// Measured regions: who answers unseen shapes of a Definition where the verdicts of its kernels say so: from
// the problems that each was measured at, to boxes of the variable axes (dispatch/niche_map.h).
//
// Pure: no clock, no I/O. Thread-safety: values. Cost: some ms at kPointsMax points; for the control plane.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/resident_kernel.h"

namespace niche::core {

struct MeasuredRegion {
  dispatch::Guard box;
  std::shared_ptr<const ResidentKernel> kernel;  // null: the library was better, or not clearly worse
};

inline constexpr int kMeasuredRegionsMax = 12;    // of a Definition's NicheIndex::kRegionsMax
inline constexpr size_t kMeasuredPointsMax = 96;  // those of the first kernels

// In the order to try them. `serving`: verified kernels of one Definition with `axes` variable axes, the
// better ones first. Shapes in none of the boxes: nothing was measured near enough on all sides of them.
std::vector<MeasuredRegion> draw_measured_regions(
    std::span<const std::shared_ptr<const ResidentKernel>> serving, int axes);

}  // namespace niche::core
