#include "evolve/search/template_space.h"

namespace niche::evolve::search {

TemplateSpace::TemplateSpace(const std::vector<const TemplateFamily*>& families,
                             const dispatch::Definition& definition, const CpuTarget& target)
    : definition_(definition), target_(target) {
  for (const TemplateFamily* family : families)
    if (!family->seeds(definition, target).empty()) families_.push_back(family);
}

int TemplateSpace::find(const std::string& name) const {
  for (int f = 0; f < family_count(); ++f)
    if (family_name(f) == name) return f;
  return -1;
}

}  // namespace niche::evolve::search
