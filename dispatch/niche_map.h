// NicheMap: from measured winners at some points of a Definition's variable axes to regions with guards: what
// NicheIndex then serves unseen shapes by.
//
// Winners are not monotone in any axis (conv1d FP32 on one GPU: kernel A at batch 64, the library at 128 and
// 256, A again from 512, margins of 1-7 %), so no threshold is fitted. The unit of evidence is a *cell*: the
// box between neighbouring measured points. A candidate serves a cell only where it was measured at every
// point of it, was better than the best library form at each by more than the noise, and loses least against
// the best candidate over all of them. A cell wider than a factor of two needs a win that is larger than what
// can happen in between; nothing is said of one wider still, nor of anything beyond the outermost points.
//
// Hysteresis: who serves a cell now keeps it while it is not worse than the library by more than the margin
// minus the hysteresis, and not worse than the best candidate by more than the hysteresis. Ties between
// candidates go to the one that serves most cells: fewer regions, fewer kernels in the caches.
//
// Pure: no clock, no I/O; equal input gives equal output. Thread-safety: values. Cost: O(points^2 * points)
// in the worst case, 20 ms at 256 points of two axes; for the planner, never on a call's path.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "dispatch/base/status.h"
#include "dispatch/kernel.h"

namespace niche::dispatch {

struct MeasuredPoint {
  std::array<int64_t, kMaxVarAxes> axes{};  // Definition::var_axes() order, unused ones 0
  std::vector<double> ns;                   // one a candidate; 0: not measured here, or not able to run here
  double noise = 0;   // relative standard error of a ratio of two of these times: 0.01 is 1 %
  double weight = 1;  // calls a second, or any measure of how much this point matters
};

struct NicheCandidate {
  // A form of the library: the bar for every kernel. Candidate 0 must be one: it serves where no region is.
  bool library = false;
  Guard guard;  // of kernels: what it was verified on
};

struct NichePolicy {
  double margin = 0.03;      // how much faster than the library a kernel must be to take a cell
  double hysteresis = 0.02;  // how much of that it may lose again before it has to go; at most `margin`
  double noise_factor = 3;   // a point's margin is at least so many of its standard errors
  // Neighbouring points span a cell if no axis grows by more than this factor between them where every corner
  // of the cell was measured, and all axes together where some were not.
  double gap_max = 2;
  // Wider cells, up to this factor and measured at every corner, are taken by kernels that are faster by
  // `far_margin` at least. Between measured lengths of conv1d 1x96xL (six kernels, L 12 to 1535, 579 lengths) the
  // gain over the library fell below that of both ends by 7 % as a median and 31-45 % at worst, and no deeper
  // over four octaves than over one: what lies between are tile remainders, not a trend.
  double far_gap_max = 16;
  double far_margin = 0.3;
  int64_t gap_small = 8;  // axes that differ by no more than this are close, whatever their ratio
  // How far apart two values of an axis are: the log2 of their ratio, 0 where they are close. `lo` <= `hi`.
  double gap(int64_t lo, int64_t hi) const;
  // Further than gap_max.
  bool is_far(double gap) const;
  int points_max = 1024;
  int regions_max = 64;  // NicheIndex::kRegionsMax
  // Regions of candidate 0 too, last, for an index in which something else would serve where no region is: of
  // cells that no kernel wins at every corner. A wide cell that one wins by too little to carry across stays open.
  bool library_regions = false;
};

struct NicheRegion {
  Guard box;
  int candidate = 0;  // index into the candidates
  int priority = 0;   // RegionSpec::priority: higher first
  int evidence = 0;   // measured points inside
  double saved = 0;   // weight x ns saved against the library at those points
};

struct NicheMap {
  std::vector<NicheRegion> regions;  // in the order of their priority
  std::vector<int> winners;          // one a point: who should have its exact entry
  int cells = 0;                     // between neighbouring points
  int cells_too_wide = 0;            // of these: wider than any evidence carries
  int regions_dropped = 0;           // past regions_max, those that save least

  // Who serves a shape that has no exact entry; 0: the library.
  int at(const int64_t* axes) const;
};

// kInvalid names the point or candidate that breaks a rule (candidate 0 not a library form, a point without
// one time a candidate, a kernel measured outside its guard, two points at one place). kBusy: points_max.
// `before`: the map in force, over the same candidates; null: none.
Result<NicheMap> draw_niches(int var_axes, std::span<const MeasuredPoint> points,
                             std::span<const NicheCandidate> candidates, const NichePolicy& policy,
                             const NicheMap* before = nullptr);

}  // namespace niche::dispatch
