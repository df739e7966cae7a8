// From a point of a family to a Candidate for the evaluator, and to the names under which the store keeps it.
//
// Thread-safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "evolve/evaluator.h"
#include "evolve/search/template_space.h"

namespace niche::evolve {

// A candidate's source under a fixed suffix, so that a point found again has the same text, hash and kernel
// id.
struct RenderedPoint {
  KernelSource source;
  std::string text_hash;  // SHA-256 of the text, hex
  // SHA-256 over the text without comments and spacing, the launch plan and the flags: equal keys are the
  // same kernel, and are evaluated once.
  std::string dedup_key;
};
inline constexpr std::string_view kFixedSuffix = "_k";

// Hashes of a source whose entries carry the fixed suffix.
RenderedPoint hashed(KernelSource source);
RenderedPoint render_point(const search::TemplateSpace& space, const dispatch::Definition& definition,
                           const CpuTarget& target, const search::FamilyPoint& at);

// {"rows":2,"unroll":4}. Names and values, so that it can be read by a later version of the family.
std::string point_to_json(const search::SearchSpace& space, const search::FamilyPoint& at);
// Nothing: the space has no such family, or the family no such parameter or value; a parameter that the text
// does not name takes its first value.
std::optional<search::FamilyPoint> point_from_json(const search::SearchSpace& space,
                                                   const std::string& family, const std::string& json);

// Comments dropped, runs of spacing made one blank (none beside punctuation). For comparison, not for
// compilers.
std::string normalise_source(std::string_view text);

}  // namespace niche::evolve
