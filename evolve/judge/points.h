// Which problems a Guard is verified on, and which box of them a Guard may be.
//
// Thread-safety: pure; deterministic in the seed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dispatch/kernel.h"
#include "dispatch/op_spec.h"
#include "evolve/verdict.h"

namespace niche::evolve::judge {

using VarAxes = std::vector<int64_t>;  // one value a variable axis, in Definition::var_axes() order

inline constexpr int kInteriorPoints = 32;

bool guard_holds(const dispatch::Guard& g, std::span<const int64_t> var_axes);

// The smallest box that holds all `points`, within `limits` (its multiples and bounds). Points outside of
// `limits` are left out; an axis without any point holds nothing.
dispatch::Guard hull(std::span<const VarAxes> points, const dispatch::Guard& limits);

// Corners, one below, at and above a tile on each axis (tiles from the plan's divisors, else 8 and 16), and
// seeded interior points, spread evenly over orders of magnitude; a box with fewer points than that gives all
// it has. What the operator does not accept as a problem is left out. Ordered by size, smallest first,
// without repeats.
std::vector<VarAxes> correctness_points(const dispatch::OpSpec& op,
                                        const std::shared_ptr<const dispatch::Definition>& definition,
                                        const dispatch::LaunchPlan& plan, const dispatch::Guard& box,
                                        uint64_t seed);

struct JudgedPoint {
  VarAxes var_axes;
  double weight = 1;
  VerdictStatus status = VerdictStatus::kAmbiguous;
};
// The box of largest weight that is the hull of kFaster points and holds no kNotFaster one. No kFaster point:
// a Guard that holds nothing. Cost: cubic in the points (at most 64).
dispatch::Guard best_box(std::span<const JudgedPoint> points, const dispatch::Guard& limits);

// What an earlier judgement of the same source adds (Candidate::earlier): its Guard's corners, to the points whose hull
// is verified; and its decided timings inside `verified`, to what best_box() chooses by. There they weigh 1 together, as
// the session's problems do; where this judgement decided the same problem, its word counts. `now`: what it decided.
void add_corners(const Verdict& earlier, const dispatch::Guard& limits, std::vector<VarAxes>* points);
std::vector<JudgedPoint> with_earlier(std::vector<JudgedPoint> now, const Verdict& earlier,
                                      const dispatch::Guard& verified);
// best_box(), of `now` with `earlier` (null: without) where that box holds a FASTER point of `now`: else of `now` alone.
dispatch::Guard best_box_with(const std::vector<JudgedPoint>& now, const Verdict* earlier,
                              const dispatch::Guard& verified, const dispatch::Guard& limits);

// At most `count` of `points`, by weight, keeping the extremes of each axis.
std::vector<size_t> representative(std::span<const VarAxes> points, std::span<const double> weights,
                                   size_t count);

}  // namespace niche::evolve::judge
