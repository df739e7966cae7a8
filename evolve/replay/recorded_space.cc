#include "evolve/replay/recorded_space.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

namespace niche::evolve::replay {
namespace {

using dispatch::corrupt;
using dispatch::Result;
using json = nlohmann::ordered_json;

constexpr int64_t kGridMax = int64_t{1} << 22;
constexpr size_t kFileBytesMax = size_t{256} << 20;

int64_t grid_index(const std::vector<Param>& params, const Point& p) {
  if (p.size() != params.size()) return -1;
  int64_t index = 0;
  for (size_t i = 0; i < params.size(); ++i) {
    const auto n = static_cast<int>(params[i].values.size());
    if (p[i] < 0 || p[i] >= n) return -1;
    index = index * n + p[i];
  }
  return index;
}

}  // namespace

double RecordedSpace::cost_at(const search::FamilyPoint& p) const {
  if (p.family < 0 || p.family >= family_count()) return -1;
  const int64_t i = grid_index(at(p.family).params, p.point);
  return i < 0 ? -1 : static_cast<double>(at(p.family).costs[static_cast<size_t>(i)]);
}

uint64_t RecordedSpace::kernel_number(const search::FamilyPoint& p) const {
  const std::vector<int32_t>& kernels = at(p.family).kernels;
  if (kernels.empty()) return SearchSpace::kernel_number(p);
  return static_cast<uint64_t>(kernels[static_cast<size_t>(grid_index(at(p.family).params, p.point))]);
}

int64_t RecordedSpace::within(double factor) const {
  int64_t n = 0;
  for (const Family& f : families_)
    n += std::count_if(f.costs.begin(), f.costs.end(),
                       [&](float c) { return c > 0 && c <= factor * optimum_; });
  return n;
}

Result<RecordedSpace> RecordedSpace::load(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return dispatch::not_found("recorded space " + path + ": cannot be opened");
  std::ostringstream text;
  text << in.rdbuf();
  if (text.view().size() > kFileBytesMax) return corrupt("recorded space " + path + ": larger than 256 MiB");
  return parse(text.view(), path);
}

Result<RecordedSpace> RecordedSpace::parse(std::string_view text, const std::string& origin) {
  const std::string where = "recorded space " + origin + ": ";
  const size_t eol = text.find('\n');
  if (eol == std::string_view::npos) return corrupt(where + "no header line");
  RecordedSpace s;
  try {
    const json header = json::parse(text.substr(0, eol));
    header.at("space").get_to(s.name_);
    s.note_ = header.value("note", "");
    for (const json& f : header.at("families")) {
      Family family;
      f.at("name").get_to(family.name);
      int64_t grid = 1;
      for (const json& p : f.at("params")) {
        family.params.push_back({p.at("name").get<std::string>(), p.at("values").get<std::vector<int>>()});
        grid *= static_cast<int64_t>(family.params.back().values.size());
        if (grid == 0 || grid > kGridMax)
          return corrupt(where + "family " + family.name + " has an empty or too large grid");
      }
      f.at("seeds").get_to(family.seeds);
      family.costs.assign(static_cast<size_t>(grid), -1.0F);
      s.families_.push_back(std::move(family));
    }
  } catch (const json::exception& e) {
    return corrupt(where + "header: " + e.what());
  }

  std::unordered_map<int64_t, std::vector<float>> measured;  // family * kGridMax + grid index
  std::unordered_set<int64_t> numbered;
  std::unordered_set<int> different;
  std::istringstream lines{std::string(text.substr(eol + 1))};
  int number = 1;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty()) continue;
    std::istringstream words(line);
    search::FamilyPoint p;
    words >> p.family;
    if (!words || p.family < 0 || p.family >= s.family_count())
      return corrupt(where + "line " + std::to_string(number) + ": no family of that number");
    p.point.resize(s.params(p.family).size());
    for (int& i : p.point) words >> i;
    double cost = -1;
    words >> cost;
    const int64_t index = grid_index(s.params(p.family), p.point);
    if (!words || index < 0 || !(cost >= 0) || !std::isfinite(cost))
      return corrupt(where + "line " + std::to_string(number) + ": '" + line + "'");
    if (int kernel = -1; words >> kernel) {
      if (kernel < 0 || kernel > kGridMax)
        return corrupt(where + "line " + std::to_string(number) + ": no kernel has the number " +
                       std::to_string(kernel));
      auto& numbers = s.families_[static_cast<size_t>(p.family)].kernels;
      numbers.resize(s.families_[static_cast<size_t>(p.family)].costs.size(), -1);
      numbers[static_cast<size_t>(index)] = kernel;
      numbered.insert(p.family * kGridMax + index);
      different.insert(kernel);
    }
    measured[p.family * kGridMax + index].push_back(static_cast<float>(cost));
  }
  // What was measured of one kernel under several names says the same of each.
  std::unordered_map<int32_t, std::vector<float>> of_kernel;
  const auto kernel_of = [&](int64_t key) {
    const auto& kernels = s.families_[static_cast<size_t>(key / kGridMax)].kernels;
    return kernels.empty() ? -1 : kernels[static_cast<size_t>(key % kGridMax)];
  };
  for (const auto& [key, costs] : measured)
    if (const int32_t k = kernel_of(key); k >= 0)
      of_kernel[k].insert(of_kernel[k].end(), costs.begin(), costs.end());
  for (auto& [key, own] : measured) {
    const int32_t kernel = kernel_of(key);
    std::vector<float>& costs = kernel >= 0 ? of_kernel[kernel] : own;
    std::sort(costs.begin(), costs.end());
    // Failures are zeros, so they stand first: the median is one of them when they are the most.
    const float median = costs[costs.size() / 2];
    s.families_[static_cast<size_t>(key / kGridMax)].costs[static_cast<size_t>(key % kGridMax)] = median;
    ++s.points_;
    if (median <= 0) continue;
    ++s.passing_;
    if (s.optimum_ == 0 || median < s.optimum_) s.optimum_ = median;
  }
  s.kernels_ = static_cast<int64_t>(different.size());
  if (!numbered.empty() && static_cast<int64_t>(numbered.size()) != s.points_)
    return corrupt(where + "some points have the number of a kernel, others none");
  // Seeds that were not recorded are of no use to a replay.
  for (int f = 0; f < s.family_count(); ++f)
    std::erase_if(s.families_[static_cast<size_t>(f)].seeds, [&](const Point& p) {
      return !s.valid({f, p});
    });
  return s;
}

std::string recorded_header(const search::SearchSpace& space, const std::string& name,
                            const std::string& note) {
  json families = json::array();
  for (int f = 0; f < space.family_count(); ++f) {
    json params = json::array();
    for (const Param& p : space.params(f)) params.push_back({{"name", p.name}, {"values", p.values}});
    families.push_back({{"name", space.family_name(f)}, {"params", params}, {"seeds", space.seeds(f)}});
  }
  return json{{"space", name}, {"families", families}, {"note", note}}.dump() + '\n';
}

std::string recorded_line(const search::FamilyPoint& p, double cost, int kernel) {
  std::string line = std::to_string(p.family);
  for (int i : p.point) line += ' ' + std::to_string(i);
  char text[32];
  std::snprintf(text, sizeof text, " %.5g", cost);
  line += text;
  if (kernel >= 0) line += ' ' + std::to_string(kernel);
  return line + '\n';
}

}  // namespace niche::evolve::replay
