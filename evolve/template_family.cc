#include "evolve/template_family.h"

namespace niche::evolve {

std::string TemplateFamily::describe(const Point& point) const {
  std::string text;
  const std::vector<Param>& p = params();
  for (size_t i = 0; i < p.size() && i < point.size(); ++i) {
    const auto index = static_cast<size_t>(point[i]);
    if (!text.empty()) text += ' ';
    text += p[i].name + '=' + (index < p[i].values.size() ? std::to_string(p[i].values[index]) : "?");
  }
  return text;
}

int64_t TemplateFamily::count_valid(const dispatch::Definition& d, const CpuTarget& t) const {
  const std::vector<Param>& p = params();
  Point point(p.size(), 0);
  int64_t count = 0;
  while (true) {
    count += valid(d, t, point) ? 1 : 0;
    size_t i = 0;
    while (i < p.size() && ++point[i] == static_cast<int>(p[i].values.size())) point[i++] = 0;
    if (i == p.size()) return count;
  }
}

std::vector<const TemplateFamily*> FamilyRegistry::for_op(std::string_view op) const {
  std::vector<const TemplateFamily*> found;
  for (const auto& family : families_)
    if (family->op() == op) found.push_back(family.get());
  return found;
}

const TemplateFamily* FamilyRegistry::find(std::string_view name) const {
  for (const auto& family : families_)
    if (family->name() == name) return family.get();
  return nullptr;
}

}  // namespace niche::evolve
