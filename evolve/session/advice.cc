#include "evolve/session/advice.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>
#include <sstream>

namespace niche::evolve {
namespace {

constexpr int kSkillsMax = 4;

std::optional<Point> first_point(const search::SearchSpace& space, int family) {
  const auto seeds = space.seeds(family);
  if (!seeds.empty()) return seeds.front();
  // Each parameter's values stand best guess first.
  const search::FamilyPoint p{family, Point(space.params(family).size(), 0)};
  return space.valid(p) ? std::optional(p.point) : std::nullopt;
}

// The settings that this family has, as index of the parameter and of the value.
std::vector<std::pair<size_t, int>> shared(const std::vector<Param>& params, const Advice& advice) {
  std::vector<std::pair<size_t, int>> list;
  for (const auto& [name, value] : advice.settings)
    for (size_t i = 0; i < params.size(); ++i) {
      if (params[i].name != name) continue;
      const auto v = std::find(params[i].values.begin(), params[i].values.end(), value);
      if (v != params[i].values.end()) list.emplace_back(i, static_cast<int>(v - params[i].values.begin()));
    }
  return list;
}

}  // namespace

std::vector<std::pair<std::string, int>> settings_of(std::string_view text) {
  std::vector<std::pair<std::string, int>> settings;
  std::istringstream words{std::string(text)};
  for (std::string w; words >> w;) {
    const size_t eq = w.find('=');
    if (eq == 0 || eq == std::string::npos) continue;
    char* end = nullptr;
    const long value = std::strtol(w.c_str() + eq + 1, &end, 10);
    if (end != w.c_str() + eq + 1 && *end == '\0')
      settings.emplace_back(w.substr(0, eq), static_cast<int>(value));
  }
  return settings;
}

std::vector<Advice> gather_advice(const std::string& op, const std::string& arch, kb::Library* library,
                                  kb::SkillBook* skills) {
  std::vector<Advice> advice;
  if (library != nullptr) {
    kb::Query q;
    q.platform = arch;
    q.lang = "cpp";
    q.op = op;
    q.phase = "draft";
    if (const auto hits = library->search(q); hits.ok()) {
      std::set<std::string> pages;
      for (const kb::Hit& h : *hits)
        if (const kb::Document* d = library->find(h.document); d != nullptr && pages.insert(d->id).second)
          for (const std::string& line : d->settings) advice.push_back({d->id, settings_of(line), 0, false});
    }
  }
  if (skills != nullptr)
    if (const auto wins = skills->elsewhere(op, arch, kSkillsMax); wins.ok()) {
      bool suspect = false;  // trusted ones come first
      for (const kb::Skill& s : *wins) {
        if (suspect) break;
        suspect = !s.trusted();
        advice.push_back({s.title, settings_of(s.title), s.id, suspect});
      }
    }
  std::erase_if(advice, [](const Advice& a) { return a.settings.empty(); });
  return advice;
}

std::vector<AdvisedPoint> advised_points(const search::SearchSpace& space, std::span<const Advice> advice,
                                         int points_max) {
  const bool skills = std::any_of(advice.begin(), advice.end(), [](const Advice& a) { return a.skill != 0; });
  std::vector<AdvisedPoint> points;
  for (const Advice& a : advice) {
    const int room = a.skill == 0 && skills ? points_max - 1 : points_max;
    const size_t before = points.size();
    for (int f = 0; f < space.family_count() && static_cast<int>(points.size()) < room; ++f) {
      if (a.suspect && points.size() > before) break;
      const auto base = first_point(space, f);
      auto settings = shared(space.params(f), a);
      if (!base) continue;
      for (; static_cast<int>(settings.size()) >= kSharedSettingsMin; settings.pop_back()) {
        search::FamilyPoint p{f, *base};
        for (const auto& [param, value] : settings) p.point[param] = value;
        if (!space.valid(p)) continue;
        if (std::none_of(points.begin(), points.end(), [&](const auto& q) { return q.point == p; }))
          points.push_back({p, a.skill});
        break;
      }
    }
  }
  return points;
}

}  // namespace niche::evolve
