#include "evolve/session/candidate_source.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels_cache/sha256.h"

namespace niche::evolve {
namespace {

using json = nlohmann::ordered_json;

std::string sha256_hex(std::string_view text) { return kernels_cache::to_hex(kernels_cache::sha256(text)); }

}  // namespace

RenderedPoint render_point(const search::TemplateSpace& space, const dispatch::Definition& definition,
                           const CpuTarget& target, const search::FamilyPoint& at) {
  return hashed(space.at(at.family).render(definition, target, at.point, kFixedSuffix), definition,
                space.problems());
}

RenderedPoint hashed(KernelSource source, const dispatch::Definition& definition,
                     std::span<const ProblemAxes> problems) {
  RenderedPoint r;
  r.source = std::move(source);
  r.text_hash = sha256_hex(r.source.text);
  // kernel_identity() of both, with the source normalised once: that is what it costs.
  const std::string text = normalise_source(r.source.text);
  const auto key = [&](std::span<const ProblemAxes> at) {
    return sha256_hex(text + launch_identity(r.source, definition.var_axes(), at));
  };
  r.dedup_key = key(problems);
  r.exact_key = problems.empty() ? r.dedup_key : key({});
  return r;
}

std::vector<ProblemAxes> problem_axes(const dispatch::OpSpec& op, const dispatch::Definition& definition,
                                      const std::vector<SeenProblem>& problems) {
  std::vector<ProblemAxes> list;
  const auto consts = definition.const_extents();
  const auto vars = definition.var_axes();
  for (const SeenProblem& p : problems) {
    ProblemAxes axes{};
    std::copy(consts.begin(), consts.end(), axes.begin());
    for (size_t i = 0; i < std::min(vars.size(), p.var_axes.size()); ++i)
      axes[static_cast<size_t>(vars[i])] = p.var_axes[i];
    if (op.derive_axes(definition, std::span(axes.data(), definition.schema().axes.size())).ok())
      list.push_back(axes);
  }
  return list;
}

std::string point_to_json(const search::SearchSpace& space, const search::FamilyPoint& at) {
  json j = json::object();
  const auto& params = space.params(at.family);
  for (size_t i = 0; i < params.size(); ++i)
    j[params[i].name] = params[i].values[static_cast<size_t>(at.point[i])];
  return j.dump();
}

std::optional<search::FamilyPoint> point_from_json(const search::SearchSpace& space,
                                                   const std::string& family, const std::string& text) {
  const json j = json::parse(text, nullptr, false);
  if (!j.is_object()) return std::nullopt;
  for (int f = 0; f < space.family_count(); ++f) {
    if (space.family_name(f) != family) continue;
    const auto& params = space.params(f);
    search::FamilyPoint at{f, Point(params.size(), 0)};
    for (const auto& [name, value] : j.items()) {
      const auto param =
          std::find_if(params.begin(), params.end(), [&](const Param& p) { return p.name == name; });
      if (param == params.end() || !value.is_number_integer()) return std::nullopt;
      const auto v = std::find(param->values.begin(), param->values.end(), value.get<int>());
      if (v == param->values.end()) return std::nullopt;
      at.point[static_cast<size_t>(param - params.begin())] = static_cast<int>(v - param->values.begin());
    }
    return at;
  }
  return std::nullopt;
}

}  // namespace niche::evolve
