// From a point of a family to a Candidate for the evaluator, and to the names under which the store keeps it.
//
// Thread-safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "evolve/evaluator.h"
#include "evolve/search/kernel_identity.h"
#include "evolve/search/template_space.h"

namespace niche::evolve {

// A candidate's source under a fixed suffix, so that a point found again has the same text, hash and kernel
// id.
struct RenderedPoint {
  KernelSource source;
  std::string text_hash;  // SHA-256 of the text, hex
  // SHA-256 over kernel_identity() at the problems: points of families with equal keys are one kernel, and are evaluated once.
  std::string dedup_key;
  std::string exact_key;  // the same as the source stands: what a program has to share with another candidate
};
inline constexpr std::string_view kFixedSuffix = "_k";

// Hashes of a source whose entries carry the fixed suffix.
RenderedPoint hashed(KernelSource source, const dispatch::Definition& definition,
                     std::span<const ProblemAxes> problems = {});
// What a session's problems are to kernel_identity(); those whose derived axes the operator refuses are left out.
std::vector<ProblemAxes> problem_axes(const dispatch::OpSpec& op, const dispatch::Definition& definition,
                                      const std::vector<SeenProblem>& problems);
RenderedPoint render_point(const search::TemplateSpace& space, const dispatch::Definition& definition,
                           const CpuTarget& target, const search::FamilyPoint& at);

// {"rows":2,"unroll":4}. Names and values, so that it can be read by a later version of the family.
std::string point_to_json(const search::SearchSpace& space, const search::FamilyPoint& at);
// Nothing: the space has no such family, or the family no such parameter or value; a parameter that the text
// does not name takes its first value.
std::optional<search::FamilyPoint> point_from_json(const search::SearchSpace& space,
                                                   const std::string& family, const std::string& json);

}  // namespace niche::evolve
