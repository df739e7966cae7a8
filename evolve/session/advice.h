// Advice: starting points from knowledge. Retrieved pages (`settings:` in their front matter) and wins of other
// operators name values of template parameters; families that name a parameter alike mean the same by it, so a
// setting that paid in one is worth an evaluation in another. Each advice is laid over every family's first
// point, as far as the family has its parameters.
//
// What it is not: a past session's best points for this operator (warm_start.h), which come first. Thread-safety:
// pure functions, but for gather_advice (the owner of library and skills).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "evolve/search/space.h"
#include "kb/library.h"
#include "kb/skills.h"

namespace niche::evolve {

struct Advice {
  std::string from;  // a page's id or a skill's title
  std::vector<std::pair<std::string, int>> settings;
  int64_t skill = 0;     // 0: a page's
  bool suspect = false;  // a skill that has not helped twice
};
struct AdvisedPoint {
  search::FamilyPoint point;
  int64_t skill = 0;
};

inline constexpr int kAdvisedPointsMax = 6;
inline constexpr int kSharedSettingsMin = 2;  // a family that shares fewer names is another kind of kernel

// "conv1d.direct mr=6 nr=2": words of the form name=value; others are skipped.
std::vector<std::pair<std::string, int>> settings_of(std::string_view text);

// Pages, best match first; then skills that have helped twice, by their record; then one suspect one, so that a skill can
// come to help. Either may be absent. Skills before pages cost more than they gave (docs/evolution.md, "What it saves"): a
// win of another operator says less of this one than what was written of it.
std::vector<Advice> gather_advice(const std::string& op, const std::string& arch, kb::Library* library,
                                  kb::SkillBook* skills);

// In the order of the advice; valid and all different; a suspect skill gives one point, and where there are skills the last
// place is theirs. A value that the family does not have is left out, and so
// are the last settings of one that would not be valid with all of them.
std::vector<AdvisedPoint> advised_points(const search::SearchSpace& space, std::span<const Advice> advice,
                                         int points_max = kAdvisedPointsMax);

}  // namespace niche::evolve
