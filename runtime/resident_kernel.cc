#include "runtime/resident_kernel.h"

#include <cmath>

namespace niche::core {

const evolve::PointTiming* ResidentKernel::nearest(const int64_t* var_axes, int count) const {
  const evolve::PointTiming* best = nullptr;
  double best_distance = INFINITY;
  for (const evolve::PointTiming& t : timing) {
    if (t.var_axes.size() != static_cast<size_t>(count)) continue;
    double distance = 0;
    for (int i = 0; i < count; ++i) {
      const double d = std::log2(static_cast<double>(var_axes[i]) + 1) -
                       std::log2(static_cast<double>(t.var_axes[static_cast<size_t>(i)]) + 1);
      distance += d * d;
    }
    if (distance < best_distance) best_distance = distance, best = &t;
  }
  return best;
}

double ResidentKernel::gain(const int64_t* var_axes, int count) const {
  if (const evolve::PointTiming* t = nearest(var_axes, count)) return t->speedup;
  return kernel_ns > 0 && fallback_ns > 0 ? fallback_ns / kernel_ns : 1.0;
}

}  // namespace niche::core
