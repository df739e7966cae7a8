#include "dispatch/niche_map.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

namespace niche::dispatch {
namespace {

constexpr double kGapSlack = 1e-9;  // of a logarithm

struct Box {
  std::array<int64_t, kMaxVarAxes> lo{}, hi{};
  bool operator==(const Box&) const = default;
  bool contains(const int64_t* axes) const {
    for (int i = 0; i < kMaxVarAxes; ++i)
      if (axes[i] < lo[static_cast<size_t>(i)] || axes[i] > hi[static_cast<size_t>(i)]) return false;
    return true;
  }
  bool inside(const Box& o) const { return o.contains(lo.data()) && o.contains(hi.data()); }
};

struct Cell {
  Box box;
  std::vector<int> points;  // all that lie in it; its corners, that is
  bool far = false;         // wider than gap_max: only a large win carries across it
};

std::string place(const MeasuredPoint& p, int axes) {
  std::string s = "[";
  for (int i = 0; i < axes; ++i) {
    if (i != 0) s += ',';
    s += std::to_string(p.axes[static_cast<size_t>(i)]);
  }
  return s + "]";
}

class Drawing {
 public:
  Drawing(int axes, std::span<const MeasuredPoint> points, std::span<const NicheCandidate> candidates,
          const NichePolicy& policy, const NicheMap* before)
      : axes_(axes), points_(points), candidates_(candidates), policy_(policy), before_(before) {}

  Status check() const {
    const auto n = points_.size();
    if (axes_ < 0 || axes_ > kMaxVarAxes) return invalid("niches: " + std::to_string(axes_) + " axes");
    if (candidates_.empty() || !candidates_[0].library)
      return invalid("niches: candidate 0 must be the library form that serves where no region is");
    if (policy_.margin < 0 || policy_.hysteresis < 0 || policy_.hysteresis > policy_.margin ||
        policy_.gap_max < 1 || policy_.far_margin < policy_.margin)
      return invalid("niches: the policy needs 0 <= hysteresis <= margin <= far_margin and gap_max >= 1");
    if (n > static_cast<size_t>(policy_.points_max))
      return busy("niches: " + std::to_string(n) + " points, at most " + std::to_string(policy_.points_max));
    for (size_t i = 0; i < n; ++i) {
      const MeasuredPoint& p = points_[i];
      if (p.ns.size() != candidates_.size())
        return invalid("niches: point " + place(p, axes_) + " has " + std::to_string(p.ns.size()) +
                       " times for " + std::to_string(candidates_.size()) + " candidates");
      if (!(p.ns[0] > 0)) return invalid("niches: point " + place(p, axes_) + " lacks a time of candidate 0");
      for (int a = axes_; a < kMaxVarAxes; ++a)
        if (p.axes[static_cast<size_t>(a)] != 0)
          return invalid("niches: point " + place(p, axes_) + " has a value on an axis that is not there");
      for (size_t k = 0; k < candidates_.size(); ++k)
        if (p.ns[k] > 0 && !candidates_[k].library && !candidates_[k].guard.holds_var(p.axes.data()))
          return invalid("niches: candidate " + std::to_string(k) + " was measured at " + place(p, axes_) +
                         ", outside its guard");
      for (size_t j = 0; j < i; ++j)
        if (points_[j].axes == p.axes) return invalid("niches: two points at " + place(p, axes_));
    }
    return {};
  }

  NicheMap draw() {
    NicheMap map;
    for (size_t i = 0; i < points_.size(); ++i) {
      const int one[] = {static_cast<int>(i)};
      map.winners.push_back(best(one, false, kept(points_[i].axes.data()), kAny));
    }
    const std::vector<Cell> cells = find_cells(&map);
    std::vector<NicheRegion> primary = serve(cells, kAny);
    // Where the winner takes multiples alone, the rest of the cell's shapes get the best that takes all.
    std::vector<Cell> rest;
    for (const Cell& c : cells)
      for (const NicheRegion& r : primary)
        if (has_steps(r.candidate) && c.box.inside(box_of(r.box))) {
          rest.push_back(c);
          break;
        }
    std::vector<NicheRegion> secondary = serve(rest, kEveryShape);
    const auto limit = static_cast<size_t>(policy_.regions_max);
    for (auto* part : {&primary, &secondary})
      std::stable_sort(part->begin(), part->end(),
                       [](const NicheRegion& a, const NicheRegion& b) { return a.saved > b.saved; });
    map.regions = std::move(primary);
    map.regions.insert(map.regions.end(), secondary.begin(), secondary.end());
    if (map.regions.size() > limit) {
      map.regions_dropped = static_cast<int>(map.regions.size() - limit);
      map.regions.resize(limit);
    }
    for (size_t i = 0; i < map.regions.size(); ++i)
      map.regions[i].priority = static_cast<int>(map.regions.size() - i);
    return map;
  }

 private:
  enum Among { kAny, kEveryShape };

  const MeasuredPoint& point(int i) const { return points_[static_cast<size_t>(i)]; }
  double ns(int i, int k) const { return point(i).ns[static_cast<size_t>(k)]; }
  const NicheCandidate& candidate(int k) const { return candidates_[static_cast<size_t>(k)]; }
  int candidate_count() const { return static_cast<int>(candidates_.size()); }

  bool has_steps(int k) const {
    if (candidate(k).library) return false;
    for (int i = 0; i < axes_; ++i)
      if (candidate(k).guard.var[static_cast<size_t>(i)].multiple_of > 1) return true;
    return false;
  }

  // Who serves the shape now. -1: no map before.
  int kept(const int64_t* axes) const { return before_ == nullptr ? -1 : before_->at(axes); }

  double best_library(int i) const {
    double best = ns(i, 0);
    for (int k = 1; k < candidate_count(); ++k)
      if (candidate(k).library && ns(i, k) > 0) best = std::min(best, ns(i, k));
    return best;
  }

  // May candidate k serve at point i? The bar of a kernel is the best form of the library, that of a form is
  // form 0.
  bool acceptable(int i, int k, bool far, bool serves_now) const {
    if (k == 0) return true;
    if (!(ns(i, k) > 0)) return false;
    const double bar = candidate(k).library ? ns(i, 0) : best_library(i);
    const double noise = policy_.noise_factor * point(i).noise;
    const double asked = far ? policy_.far_margin : policy_.margin;
    const double margin = serves_now ? asked - policy_.hysteresis : std::max(asked, noise);
    return ns(i, k) <= bar * (1 - margin);
  }

  // Mean relative loss against the best measured, weighted; infinity: may not serve all of these points.
  double loss(std::span<const int> at, bool far, int k, bool serves_now) const {
    double sum = 0, weight = 0;
    for (const int i : at) {
      if (!acceptable(i, k, far, serves_now)) return std::numeric_limits<double>::infinity();
      double best = ns(i, 0);
      for (int o = 1; o < candidate_count(); ++o)
        if (ns(i, o) > 0) best = std::min(best, ns(i, o));
      const double w = std::max(point(i).weight, 1e-9);
      sum += w * (ns(i, k) / best - 1);
      weight += w;
    }
    return sum / weight;
  }

  // `now`: who serves there; -1: nobody yet.
  int best(std::span<const int> at, bool far, int now, Among among) const {
    int winner = 0;
    double least = loss(at, far, 0, now == 0);
    for (int k = 1; k < candidate_count(); ++k) {
      if (among == kEveryShape && has_steps(k)) continue;
      const double l = loss(at, far, k, k == now);
      if (l < least) least = l, winner = k;
    }
    if (now > 0 && now < candidate_count() && now != winner && !(among == kEveryShape && has_steps(now)) &&
        loss(at, far, now, true) <= least + policy_.hysteresis)
      return now;
    return winner;
  }

  // Can any evidence carry across the cell between these corners? Sets `far` where only a large win does.
  bool carried(Cell* cell) const {
    const Cell& c = *cell;
    double widest = 0, sum = 0;
    size_t corners = 1;
    for (size_t i = 0; i < static_cast<size_t>(axes_); ++i) {
      const double g = policy_.gap(c.box.lo[i], c.box.hi[i]);
      widest = std::max(widest, g);
      sum += g;
      if (c.box.lo[i] != c.box.hi[i]) corners *= 2;
    }
    if (c.points.size() != corners) return !policy_.is_far(sum);
    cell->far = policy_.is_far(widest);
    return widest <= std::log2(std::max(policy_.far_gap_max, policy_.gap_max)) + kGapSlack;
  }

  // The boxes between two measured points that no third divides. Every point in such a box is a corner of it.
  std::vector<Cell> find_cells(NicheMap* map) const {
    std::vector<Cell> cells;
    const int n = static_cast<int>(points_.size());
    for (int p = 0; p < n; ++p) {
      for (int q = p + 1; q < n; ++q) {
        Cell c;
        for (size_t i = 0; i < kMaxVarAxes; ++i)
          std::tie(c.box.lo[i], c.box.hi[i]) = std::minmax({point(p).axes[i], point(q).axes[i]});
        bool divided = false;
        for (int r = 0; r < n && !divided; ++r) {
          if (!c.box.contains(point(r).axes.data())) continue;
          for (size_t i = 0; i < kMaxVarAxes; ++i)
            divided |= point(r).axes[i] > c.box.lo[i] && point(r).axes[i] < c.box.hi[i];
          c.points.push_back(r);
        }
        if (divided) continue;
        // The other diagonal of the same box.
        if (std::any_of(cells.begin(), cells.end(), [&](const Cell& o) { return o.box == c.box; })) continue;
        ++map->cells;
        if (carried(&c)) {
          cells.push_back(std::move(c));
        } else {
          ++map->cells_too_wide;
        }
      }
    }
    return cells;
  }

  std::vector<NicheRegion> serve(const std::vector<Cell>& cells, Among among) const {
    std::vector<int> who(cells.size()), share(candidates_.size());
    for (size_t i = 0; i < cells.size(); ++i) {
      who[i] = best(cells[i].points, cells[i].far, kept(middle(cells[i].box).data()), among);
      ++share[static_cast<size_t>(who[i])];
    }
    // Ties go to the most common of those that are as good as the best, give or take the hysteresis.
    for (size_t i = 0; i < cells.size(); ++i) {
      if (who[i] == 0 || kept(middle(cells[i].box).data()) == who[i]) continue;
      const double least = loss(cells[i].points, cells[i].far, who[i], false);
      int common = who[i];
      for (int k = 1; k < candidate_count(); ++k) {
        if (among == kEveryShape && has_steps(k)) continue;
        if (share[static_cast<size_t>(k)] > share[static_cast<size_t>(common)] &&
            loss(cells[i].points, cells[i].far, k, false) <= least + policy_.hysteresis)
          common = k;
      }
      who[i] = common;
    }
    std::vector<std::pair<Box, int>> boxes;
    for (size_t i = 0; i < cells.size(); ++i)
      if (who[i] != 0 || (policy_.library_regions && among == kAny && loses(cells[i])))
        boxes.push_back({cells[i].box, who[i]});
    join(&boxes);
    std::vector<NicheRegion> regions;
    for (const auto& [box, k] : boxes) regions.push_back(make_region(box, k));
    return regions;
  }

  // Of a wide cell in which no kernel may serve: is there none either that wins at all of its corners? (Of others
  // there is none anyhow.)
  bool loses(const Cell& c) const { return !c.far || best(c.points, false, -1, kAny) == 0; }

  static std::array<int64_t, kMaxVarAxes> middle(const Box& b) {
    std::array<int64_t, kMaxVarAxes> m{};
    for (size_t i = 0; i < kMaxVarAxes; ++i) m[i] = b.lo[i] + (b.hi[i] - b.lo[i]) / 2;
    return m;
  }

  // Boxes of one candidate that make a box together become one, until none do.
  static void join(std::vector<std::pair<Box, int>>* boxes) {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t a = 0; a < boxes->size(); ++a) {
        for (size_t b = 0; b < boxes->size(); ++b) {
          if (a == b || (*boxes)[a].second != (*boxes)[b].second) continue;
          if (!absorb(&(*boxes)[a].first, (*boxes)[b].first)) continue;
          boxes->erase(boxes->begin() + static_cast<std::ptrdiff_t>(b));
          if (b < a) --a;
          b = static_cast<size_t>(-1);  // again from the start: `a` grew
          changed = true;
        }
      }
    }
  }
  static bool absorb(Box* a, const Box& b) {
    if (b.inside(*a)) return true;
    int differs = -1;
    for (int i = 0; i < kMaxVarAxes; ++i) {
      const auto at = static_cast<size_t>(i);
      if (a->lo[at] == b.lo[at] && a->hi[at] == b.hi[at]) continue;
      if (differs >= 0) return false;
      differs = i;
    }
    const auto at = static_cast<size_t>(differs);
    if (b.lo[at] > a->hi[at] + 1 || a->lo[at] > b.hi[at] + 1) return false;
    a->lo[at] = std::min(a->lo[at], b.lo[at]);
    a->hi[at] = std::max(a->hi[at], b.hi[at]);
    return true;
  }

  Box box_of(const Guard& g) const {
    Box b;
    for (size_t i = 0; i < static_cast<size_t>(axes_); ++i) b.lo[i] = g.var[i].lo, b.hi[i] = g.var[i].hi;
    return b;
  }

  NicheRegion make_region(const Box& box, int k) const {
    NicheRegion r;
    r.candidate = k;
    r.box.var_count = axes_;
    r.box.alignment_bytes = candidate(k).library ? 1 : candidate(k).guard.alignment_bytes;
    for (size_t i = 0; i < static_cast<size_t>(axes_); ++i)
      r.box.var[i] = {box.lo[i], box.hi[i], candidate(k).library ? 1 : candidate(k).guard.var[i].multiple_of};
    for (int i = 0; i < static_cast<int>(points_.size()); ++i) {
      if (!box.contains(point(i).axes.data()) || !(ns(i, k) > 0)) continue;
      ++r.evidence;
      r.saved += point(i).weight * ((candidate(k).library ? ns(i, 0) : best_library(i)) - ns(i, k));
    }
    return r;
  }

  const int axes_;
  const std::span<const MeasuredPoint> points_;
  const std::span<const NicheCandidate> candidates_;
  const NichePolicy policy_;
  const NicheMap* const before_;
};

}  // namespace

double NichePolicy::gap(int64_t lo, int64_t hi) const {
  if (hi - lo <= gap_small) return 0;
  return std::log2(static_cast<double>(hi) / static_cast<double>(std::max<int64_t>(lo, 1)));
}

bool NichePolicy::is_far(double gap) const { return gap > std::log2(gap_max) + kGapSlack; }

int NicheMap::at(const int64_t* axes) const {
  for (const NicheRegion& r : regions)
    if (r.box.holds_var(axes)) return r.candidate;
  return 0;
}

Result<NicheMap> draw_niches(int var_axes, std::span<const MeasuredPoint> points,
                             std::span<const NicheCandidate> candidates, const NichePolicy& policy,
                             const NicheMap* before) {
  Drawing d(var_axes, points, candidates, policy, before);
  NICHE_RETURN_IF_ERROR(d.check());
  return d.draw();
}

}  // namespace niche::dispatch
