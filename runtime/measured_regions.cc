#include "runtime/measured_regions.h"

#include <algorithm>
#include <map>

#include "dispatch/niche_map.h"

namespace niche::core {
namespace {

using dispatch::MeasuredPoint;

// Relative standard error of the speedup: the verdict's interval covers 95 %.
double noise_of(const evolve::PointTiming& t) {
  constexpr double kHalfWidths = 2 * 1.96;
  return t.speedup > 0 ? std::max(0.0, t.ci_high - t.ci_low) / (kHalfWidths * t.speedup) : 0;
}

}  // namespace

std::vector<MeasuredRegion> draw_measured_regions(
    std::span<const std::shared_ptr<const ResidentKernel>> serving, int axes) {
  // Candidate 0 is the library; its time is 1 at every point. Verdicts of different sessions compare by their
  // ratios to the library alone: the machine may have been another speed.
  std::map<std::array<int64_t, dispatch::kMaxVarAxes>, MeasuredPoint> points;
  std::vector<dispatch::NicheCandidate> candidates(1 + serving.size());
  candidates[0].library = true;
  for (size_t k = 0; k < serving.size(); ++k) {
    candidates[k + 1].guard = serving[k]->kernel->guard;
    for (const evolve::PointTiming& t : serving[k]->timing) {
      std::array<int64_t, dispatch::kMaxVarAxes> at{};
      if (t.var_axes.size() != static_cast<size_t>(axes) || !(t.speedup > 0)) continue;
      std::copy(t.var_axes.begin(), t.var_axes.end(), at.begin());
      if (!candidates[k + 1].guard.holds_var(at.data())) continue;
      if (points.size() == kMeasuredPointsMax && points.count(at) == 0) continue;
      MeasuredPoint& p = points[at];
      p.axes = at;
      p.ns.resize(candidates.size());
      p.ns[0] = 1;
      p.ns[k + 1] = 1 / t.speedup;
      p.noise = std::max(p.noise, noise_of(t));
    }
  }
  std::vector<MeasuredPoint> list;
  for (auto& [at, p] : points) list.push_back(std::move(p));
  dispatch::NichePolicy policy;
  policy.regions_max = kMeasuredRegionsMax;
  policy.library_regions = true;
  // No map before: verdicts do not change, so that the same kernels always give the same regions.
  const auto map = dispatch::draw_niches(axes, list, candidates, policy);
  std::vector<MeasuredRegion> regions;
  if (!map.ok()) return regions;
  for (const dispatch::NicheRegion& r : map->regions)
    regions.push_back({r.box, r.candidate == 0 ? nullptr : serving[static_cast<size_t>(r.candidate) - 1]});
  return regions;
}

}  // namespace niche::core
