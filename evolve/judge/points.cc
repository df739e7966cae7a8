#include "evolve/judge/points.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "evolve/judge/host_args.h"

namespace niche::evolve::judge {
namespace {

using Range = dispatch::Guard::Range;

int64_t first_multiple(const Range& r) { return (r.lo + r.multiple_of - 1) / r.multiple_of * r.multiple_of; }
int64_t last_multiple(const Range& r) { return r.hi / r.multiple_of * r.multiple_of; }
int64_t count_of(const Range& r) {
  const int64_t lo = first_multiple(r), hi = last_multiple(r);
  return hi < lo ? 0 : (hi - lo) / r.multiple_of + 1;
}

// Even over orders of magnitude: small problems hold the edge cases, and cost little.
int64_t sample(const Range& r, std::mt19937_64& random) {
  const double lo = std::log(static_cast<double>(first_multiple(r))),
               hi = std::log(static_cast<double>(last_multiple(r)));
  const double v = std::exp(std::uniform_real_distribution<double>(lo, hi + 1e-9)(random));
  const auto m = static_cast<int64_t>(std::llround(v / static_cast<double>(r.multiple_of))) * r.multiple_of;
  return std::clamp(m, first_multiple(r), last_multiple(r));
}

class PointList {
 public:
  PointList(const dispatch::OpSpec& op, const std::shared_ptr<const dispatch::Definition>& definition,
            const dispatch::Guard& box)
      : op_(op), definition_(definition), box_(box) {}

  bool add(const VarAxes& point) {
    if (!guard_holds(box_, point) || !seen_.insert(point).second) return false;
    if (!make_problem(op_, definition_, point).ok()) return false;
    points_.push_back(point);
    return true;
  }
  size_t size() const { return points_.size(); }
  std::vector<VarAxes> take() {
    std::stable_sort(points_.begin(), points_.end(), [](const VarAxes& a, const VarAxes& b) {
      const auto volume = [](const VarAxes& v) {
        double x = 1;
        for (int64_t e : v) x *= static_cast<double>(e);
        return x;
      };
      return volume(a) < volume(b);
    });
    return std::move(points_);
  }

 private:
  const dispatch::OpSpec& op_;
  const std::shared_ptr<const dispatch::Definition>& definition_;
  const dispatch::Guard& box_;
  std::vector<VarAxes> points_;
  std::set<VarAxes> seen_;
};

// Tile sizes that the plan splits variable axis `axis` (a schema index) by.
std::vector<int64_t> tiles_of(const dispatch::LaunchPlan& plan, int axis) {
  std::vector<int64_t> tiles;
  for (const dispatch::Phase& p : plan.phases)
    for (const dispatch::TaskFactor& f : p.factors)
      if (f.axis == axis && f.divisor > 1) tiles.push_back(f.divisor);
  if (tiles.empty()) tiles = {8, 16};
  return tiles;
}

void add_all(PointList& list, const dispatch::Guard& box, VarAxes& point, int axis) {
  if (axis == box.var_count) {
    list.add(point);
    return;
  }
  const Range& r = box.var[static_cast<size_t>(axis)];
  for (int64_t v = first_multiple(r); v <= last_multiple(r); v += r.multiple_of) {
    point[static_cast<size_t>(axis)] = v;
    add_all(list, box, point, axis + 1);
  }
}

}  // namespace

bool guard_holds(const dispatch::Guard& g, std::span<const int64_t> var_axes) {
  for (int i = 0; i < g.var_count; ++i)
    if (!g.var[static_cast<size_t>(i)].holds(var_axes[static_cast<size_t>(i)])) return false;
  return true;
}

dispatch::Guard hull(std::span<const VarAxes> points, const dispatch::Guard& limits) {
  dispatch::Guard g = limits;
  for (int i = 0; i < g.var_count; ++i) {
    Range& r = g.var[static_cast<size_t>(i)];
    r.lo = 1, r.hi = 0;
  }
  bool any = false;
  for (const VarAxes& p : points) {
    if (!guard_holds(limits, p)) continue;
    for (int i = 0; i < g.var_count; ++i) {
      Range& r = g.var[static_cast<size_t>(i)];
      const int64_t v = p[static_cast<size_t>(i)];
      r.lo = any ? std::min(r.lo, v) : v;
      r.hi = any ? std::max(r.hi, v) : v;
    }
    any = true;
  }
  return g;
}

std::vector<VarAxes> correctness_points(const dispatch::OpSpec& op,
                                        const std::shared_ptr<const dispatch::Definition>& definition,
                                        const dispatch::LaunchPlan& plan, const dispatch::Guard& box,
                                        uint64_t seed) {
  PointList list(op, definition, box);
  const auto axes = static_cast<size_t>(box.var_count);
  VarAxes point(axes, 1);
  double volume = 1;
  for (size_t i = 0; i < axes; ++i) {
    volume *= static_cast<double>(count_of(box.var[i]));
    point[i] = first_multiple(box.var[i]);
  }
  if (volume <= 0) return {};
  if (volume <= kInteriorPoints + 8) {
    add_all(list, box, point, 0);
    return list.take();
  }

  for (uint32_t corner = 0; corner < (1U << axes); ++corner) {
    for (size_t i = 0; i < axes; ++i)
      point[i] = (corner >> i & 1) != 0 ? last_multiple(box.var[i]) : first_multiple(box.var[i]);
    list.add(point);
  }
  std::mt19937_64 random(seed);
  const auto interior = [&](std::mt19937_64& from) {
    VarAxes p(axes);
    for (size_t i = 0; i < axes; ++i) p[i] = sample(box.var[i], from);
    return p;
  };
  for (size_t i = 0; i < axes; ++i)
    for (int64_t tile : tiles_of(plan, definition->var_axes()[i]))
      for (int64_t delta : {-1, 0, 1}) {
        VarAxes p = interior(random);
        // The tile's multiple nearest to a random place, so that both one tile and several are met.
        const int64_t k = std::max<int64_t>(1, p[i] / tile);
        p[i] = k * tile + delta * box.var[i].multiple_of;
        list.add(p);
      }
  // From a sequence of their own: the same ones whatever a plan's tiles are, so that candidates share references.
  std::mt19937_64 inside(seed + 1);
  const size_t wanted = list.size() + kInteriorPoints;
  for (int tries = 0; list.size() < wanted && tries < 20 * kInteriorPoints; ++tries)
    list.add(interior(inside));
  return list.take();
}

dispatch::Guard best_box(std::span<const JudgedPoint> points, const dispatch::Guard& limits) {
  dispatch::Guard best = hull({}, limits);
  double best_weight = -1;
  std::vector<size_t> order(points.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return points[a].weight > points[b].weight; });
  const auto clean = [&](const dispatch::Guard& g) {
    return std::none_of(points.begin(), points.end(), [&](const JudgedPoint& p) {
      return p.status == VerdictStatus::kNotFaster && guard_holds(g, p.var_axes);
    });
  };
  // Grown from each point in turn, heaviest first: exact for one axis, a good guess for more.
  for (size_t start : order) {
    if (points[start].status != VerdictStatus::kFaster || !guard_holds(limits, points[start].var_axes))
      continue;
    std::vector<VarAxes> members = {points[start].var_axes};
    dispatch::Guard box = hull(members, limits);
    for (size_t next : order) {
      if (next == start || points[next].status != VerdictStatus::kFaster) continue;
      members.push_back(points[next].var_axes);
      const dispatch::Guard grown = hull(members, limits);
      if (clean(grown))
        box = grown;
      else
        members.pop_back();
    }
    double weight = 0;
    for (const JudgedPoint& p : points)
      if (p.status == VerdictStatus::kFaster && guard_holds(box, p.var_axes)) weight += p.weight;
    if (weight > best_weight) best_weight = weight, best = box;
  }
  return best;
}

void add_corners(const Verdict& earlier, const dispatch::Guard& limits, std::vector<VarAxes>* points) {
  if (earlier.guard.var_count != limits.var_count) return;
  VarAxes low, high;
  for (int i = 0; i < limits.var_count; ++i) {
    low.push_back(first_multiple(earlier.guard.var[static_cast<size_t>(i)]));
    high.push_back(last_multiple(earlier.guard.var[static_cast<size_t>(i)]));
  }
  points->push_back(std::move(low));
  points->push_back(std::move(high));
}

std::vector<JudgedPoint> with_earlier(std::vector<JudgedPoint> now, const Verdict& earlier,
                                      const dispatch::Guard& verified) {
  std::vector<JudgedPoint> known;
  for (const PointTiming& t : earlier.timing) {
    const bool usable = t.status != VerdictStatus::kAmbiguous &&
                        t.var_axes.size() == static_cast<size_t>(verified.var_count) &&
                        guard_holds(verified, t.var_axes);
    const bool again = std::any_of(now.begin(), now.end(), [&](const JudgedPoint& p) {
      return p.var_axes == t.var_axes && p.status != VerdictStatus::kAmbiguous;
    });
    if (usable && !again) known.push_back({t.var_axes, 1, t.status});
  }
  for (JudgedPoint& p : known) p.weight = 1 / static_cast<double>(known.size());
  now.insert(now.end(), known.begin(), known.end());
  return now;
}

dispatch::Guard best_box_with(const std::vector<JudgedPoint>& now, const Verdict* earlier,
                              const dispatch::Guard& verified, const dispatch::Guard& limits) {
  if (earlier != nullptr) {
    const dispatch::Guard box = best_box(with_earlier(now, *earlier, verified), limits);
    if (std::any_of(now.begin(), now.end(), [&](const JudgedPoint& p) {
          return p.status == VerdictStatus::kFaster && guard_holds(box, p.var_axes);
        }))
      return box;
  }
  return best_box(now, limits);
}

std::vector<size_t> representative(std::span<const VarAxes> points, std::span<const double> weights,
                                   size_t count) {
  std::vector<size_t> order(points.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return weights[a] > weights[b]; });
  if (points.size() <= count) return order;
  std::vector<size_t> chosen;
  const auto choose = [&](size_t i) {
    if (chosen.size() < count && std::find(chosen.begin(), chosen.end(), i) == chosen.end())
      chosen.push_back(i);
  };
  choose(order[0]);
  for (size_t axis = 0; axis < points[0].size(); ++axis) {
    const auto less = [&](size_t a, size_t b) { return points[a][axis] < points[b][axis]; };
    choose(*std::min_element(order.begin(), order.end(), less));
    choose(*std::max_element(order.begin(), order.end(), less));
  }
  for (size_t i : order) choose(i);
  std::stable_sort(chosen.begin(), chosen.end(), [&](size_t a, size_t b) { return weights[a] > weights[b]; });
  return chosen;
}

}  // namespace niche::evolve::judge
