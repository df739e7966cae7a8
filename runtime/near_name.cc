#include "runtime/near_name.h"

#include <algorithm>
#include <vector>

namespace niche {
namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j < row.size(); ++j) {
      const size_t next = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0u : 1u)});
      diagonal = row[j];
      row[j] = next;
    }
  }
  return row.back();
}

}  // namespace

std::string_view nearest_name(std::string_view typed, std::span<const std::string_view> names) {
  std::string_view best;
  size_t best_distance = std::min<size_t>(3, typed.size() / 2) + 1;
  for (std::string_view name : names)
    if (const size_t d = edit_distance(typed, name); d < best_distance) best_distance = d, best = name;
  return best;
}

}  // namespace niche
