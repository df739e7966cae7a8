#include "evolve/search/space.h"

#include "dispatch/base/hash.h"

namespace niche::evolve::search {

bool next_point(const std::vector<Param>& params, Point* point) {
  size_t i = params.size();
  while (i > 0 && ++(*point)[i - 1] == static_cast<int>(params[i - 1].values.size())) (*point)[--i] = 0;
  return i != 0;
}

std::string point_key(const FamilyPoint& c) {
  std::string key = std::to_string(c.family) + ':';
  for (size_t i = 0; i < c.point.size(); ++i) {
    if (i > 0) key += ',';
    key += std::to_string(c.point[i]);
  }
  return key;
}

int64_t SearchSpace::grid_size(int family) const {
  int64_t n = 1;
  for (const Param& p : params(family)) {
    const auto values = static_cast<int64_t>(p.values.size());
    if (values == 0 || n > (int64_t{1} << 40) / values) return values == 0 ? 0 : int64_t{1} << 40;
    n *= values;
  }
  return n;
}

uint64_t SearchSpace::kernel_number(const FamilyPoint& c) const { return dispatch::hash_bytes(point_key(c)); }

bool is_point_of(const SearchSpace& space, const FamilyPoint& c) {
  if (c.family < 0 || c.family >= space.family_count()) return false;
  const auto& params = space.params(c.family);
  if (params.size() != c.point.size()) return false;
  for (size_t i = 0; i < params.size(); ++i)
    if (c.point[i] < 0 || c.point[i] >= static_cast<int>(params[i].values.size())) return false;
  return space.valid(c);
}

}  // namespace niche::evolve::search
