#include "runtime/resident_kernel.h"

#include <algorithm>
#include <cmath>

#include "dispatch/niche_map.h"

namespace niche::core {
namespace {

// What is left of a gain where nothing was measured near by.
double far_from(double gain) { return gain / (1 + dispatch::NichePolicy{}.far_margin); }

bool is_far(int64_t a, int64_t b) {
  const dispatch::NichePolicy policy;
  const auto [lo, hi] = std::minmax(a, b);
  return policy.is_far(policy.gap(lo, hi));
}

}  // namespace

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
  const evolve::PointTiming* t = nearest(var_axes, count);
  if (t == nullptr) return record_gain();
  bool far = false;
  for (int i = 0; i < count; ++i) far |= is_far(var_axes[i], t->var_axes[static_cast<size_t>(i)]);
  return far ? far_from(t->speedup) : t->speedup;
}

double ResidentKernel::record_gain() const {
  return kernel_ns > 0 && fallback_ns > 0 ? fallback_ns / kernel_ns : 1.0;
}

bool ResidentKernel::reaches_far() const {
  if (timing.empty()) return far_from(record_gain()) > 1;
  return std::all_of(timing.begin(), timing.end(),
                     [](const evolve::PointTiming& t) { return far_from(t.speedup) > 1; });
}

bool ResidentKernel::measured_at(const int64_t* var_axes, int count) const {
  return std::any_of(timing.begin(), timing.end(), [&](const evolve::PointTiming& t) {
    return std::equal(t.var_axes.begin(), t.var_axes.end(), var_axes, var_axes + count);
  });
}

}  // namespace niche::core
