#include "evolve/cuda_template_family.h"

namespace niche::evolve {

CudaTarget CudaTarget::named(std::string_view arch) {
  CudaTarget t;
  t.arch = arch;
  if (arch == "sm_80") {
    t.capability = 80;
    t.sm_count = 108;
    t.shared_bytes_per_block = 166912;
    t.shared_bytes_per_sm = 167936;
    t.l2_bytes = int64_t{40} << 20;
  } else if (arch == "sm_100a") {
    t.capability = 100;
    t.sm_count = 148;
    t.l2_bytes = int64_t{126} << 20;
  }
  return t;
}

std::string CudaTemplateFamily::describe(const Point& point) const {
  std::string text;
  const std::vector<Param>& p = params();
  for (size_t i = 0; i < p.size() && i < point.size(); ++i) {
    const auto index = static_cast<size_t>(point[i]);
    if (!text.empty()) text += ' ';
    text += p[i].name + '=' + (index < p[i].values.size() ? std::to_string(p[i].values[index]) : "?");
  }
  return text;
}

int64_t CudaTemplateFamily::count_valid(const dispatch::Definition& d, const CudaTarget& t) const {
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

std::vector<const CudaTemplateFamily*> CudaFamilyRegistry::for_op(std::string_view op) const {
  std::vector<const CudaTemplateFamily*> found;
  for (const auto& family : families_)
    if (family->op() == op) found.push_back(family.get());
  return found;
}

}  // namespace niche::evolve
