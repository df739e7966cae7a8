#include "evolve/search/moves.h"

#include <algorithm>

namespace niche::evolve::search {
namespace {

constexpr int kTries = 64;             // a move that fails this often has nothing to give here
constexpr int kDrawTries = 512;        // grids with one valid point in a hundred are still drawn from
constexpr int64_t kWalkMax = 1 << 20;  // points of a grid that is walked in full

// The point number `index` of a grid, last parameter fastest.
Point point_at(const std::vector<Param>& params, int64_t index) {
  Point p(params.size(), 0);
  for (size_t i = params.size(); i-- > 0;) {
    const auto n = static_cast<int64_t>(params[i].values.size());
    p[i] = static_cast<int>(index % n);
    index /= n;
  }
  return p;
}

}  // namespace

std::optional<FamilyPoint> Moves::draw() {
  double total = 0;
  for (int f = 0; f < space_.family_count(); ++f) total += static_cast<double>(space_.grid_size(f));
  for (int attempt = 0; attempt < 4; ++attempt) {
    double at = rng_.uniform() * total;
    int family = 0;
    while (family + 1 < space_.family_count() && at >= static_cast<double>(space_.grid_size(family)))
      at -= static_cast<double>(space_.grid_size(family++));
    if (auto c = draw(family)) return c;
  }
  return std::nullopt;
}

std::optional<FamilyPoint> Moves::draw(int family) {
  const auto& params = space_.params(family);
  for (int attempt = 0; attempt < kDrawTries; ++attempt) {
    FamilyPoint c{family, Point(params.size(), 0)};
    for (size_t i = 0; i < params.size(); ++i)
      c.point[i] = static_cast<int>(rng_.below(params[i].values.size()));
    if (space_.valid(c)) return c;
  }
  return std::nullopt;
}

std::optional<FamilyPoint> Moves::mutate_parameter(const FamilyPoint& from, int parameter) {
  const auto i = static_cast<size_t>(parameter);
  const size_t n = space_.params(from.family)[i].values.size();
  if (n < 2) return std::nullopt;
  for (int attempt = 0; attempt < 8; ++attempt) {
    FamilyPoint c = from;
    c.point[i] = static_cast<int>((static_cast<size_t>(from.point[i]) + 1 + rng_.below(n - 1)) % n);
    if (space_.valid(c)) return c;
  }
  return std::nullopt;
}

std::optional<FamilyPoint> Moves::mutate(const FamilyPoint& from, bool adjacent) {
  const auto& params = space_.params(from.family);
  if (params.empty()) return std::nullopt;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const size_t i = rng_.below(params.size());
    const auto n = static_cast<int>(params[i].values.size());
    if (n < 2) continue;
    FamilyPoint c = from;
    if (adjacent) {
      c.point[i] += rng_.chance(0.5) ? 1 : -1;
      if (c.point[i] < 0 || c.point[i] >= n) continue;
    } else {
      c.point[i] = (c.point[i] + 1 + static_cast<int>(rng_.below(static_cast<size_t>(n - 1)))) % n;
    }
    if (space_.valid(c)) return c;
  }
  return std::nullopt;
}

std::optional<FamilyPoint> Moves::perturb(const FamilyPoint& from, double share) {
  const auto& params = space_.params(from.family);
  for (int attempt = 0; attempt < kTries; ++attempt) {
    FamilyPoint c = from;
    for (size_t i = 0; i < params.size(); ++i)
      if (rng_.chance(share)) c.point[i] = static_cast<int>(rng_.below(params[i].values.size()));
    if (c != from && space_.valid(c)) return c;
  }
  return mutate(from);
}

std::optional<FamilyPoint> Moves::cross(const FamilyPoint& a, const FamilyPoint& b) {
  const auto& pa = space_.params(a.family);
  const auto& pb = space_.params(b.family);
  for (int attempt = 0; attempt < kTries / 4; ++attempt) {
    FamilyPoint c = a;
    for (size_t i = 0; i < pa.size(); ++i) {
      if (rng_.chance(0.5)) continue;
      if (a.family == b.family) {
        c.point[i] = b.point[i];
        continue;
      }
      for (size_t j = 0; j < pb.size(); ++j) {
        if (pb[j].name != pa[i].name) continue;
        const int value = pb[j].values[static_cast<size_t>(b.point[j])];
        const auto at = std::find(pa[i].values.begin(), pa[i].values.end(), value);
        if (at != pa[i].values.end()) c.point[i] = static_cast<int>(at - pa[i].values.begin());
      }
    }
    if (c != a && c != b && space_.valid(c)) return c;
  }
  return std::nullopt;
}

std::vector<FamilyPoint> Moves::neighbours(const FamilyPoint& from) const {
  std::vector<FamilyPoint> out;
  const auto& params = space_.params(from.family);
  for (size_t i = 0; i < params.size(); ++i)
    for (int v = 0; v < static_cast<int>(params[i].values.size()); ++v) {
      if (v == from.point[i]) continue;
      FamilyPoint c = from;
      c.point[i] = v;
      if (space_.valid(c)) out.push_back(std::move(c));
    }
  return out;
}

std::vector<FamilyPoint> Moves::seeds() const {
  std::vector<std::vector<Point>> by_family;
  size_t longest = 0;
  for (int f = 0; f < space_.family_count(); ++f) {
    by_family.push_back(space_.seeds(f));
    longest = std::max(longest, by_family.back().size());
  }
  std::vector<FamilyPoint> out;
  for (size_t i = 0; i < longest; ++i)
    for (int f = 0; f < space_.family_count(); ++f) {
      const auto& seeds = by_family[static_cast<size_t>(f)];
      if (i >= seeds.size()) continue;
      FamilyPoint c{f, seeds[i]};
      if (space_.valid(c)) out.push_back(std::move(c));
    }
  return out;
}

bool Batch::add(const FamilyPoint& c, std::string_view made_by, int parent, int second_parent) {
  if (full() || !is_new(c)) return false;
  numbers_.insert(kernels_.number(c));
  proposals_.push_back({c, std::string(made_by), parent, second_parent});
  return true;
}

void Batch::fill_random(Moves& moves, std::string_view made_by) {
  for (int misses = 0; !full() && misses < kTries;) {
    const auto c = moves.draw();
    if (!c) break;
    misses = add(*c, made_by) ? 0 : misses + 1;
  }
  if (full()) return;
  const SearchSpace& space = moves.space();
  for (int f = 0; f < space.family_count() && !full(); ++f) {
    const int64_t n = space.grid_size(f);
    if (n == 0 || n > kWalkMax) continue;
    const auto start = static_cast<int64_t>(moves.rng().below(static_cast<size_t>(n)));
    for (int64_t i = 0; i < n && !full(); ++i) {
      FamilyPoint c{f, point_at(space.params(f), (start + i) % n)};
      if (space.valid(c)) add(c, made_by);
    }
  }
}

}  // namespace niche::evolve::search
