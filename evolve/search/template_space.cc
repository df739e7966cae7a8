#include "evolve/search/template_space.h"

namespace niche::evolve::search {

TemplateSpace::TemplateSpace(const std::vector<const TemplateFamily*>& families,
                             const dispatch::Definition& definition, const CpuTarget& target,
                             std::vector<ProblemAxes> problems)
    : definition_(definition), target_(target), problems_(std::move(problems)) {
  for (const TemplateFamily* family : families)
    if (!family->seeds(definition, target).empty()) families_.push_back(family);
}

uint64_t TemplateSpace::kernel_number(const FamilyPoint& c) const {
  const KernelSource source = at(c.family).render(definition_, target_, c.point, "_k");
  return evolve::kernel_number(source, definition_.var_axes(), problems_);
}

int TemplateSpace::find(const std::string& name) const {
  for (int f = 0; f < family_count(); ++f)
    if (family_name(f) == name) return f;
  return -1;
}

}  // namespace niche::evolve::search
