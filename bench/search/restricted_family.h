// RestrictedFamily: a template family of which only some values of some parameters may be used: for recordings of
// spaces that would be too large to record in full. Requires: outlived by the family it restricts.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "evolve/search/space.h"
#include "evolve/template_family.h"

namespace niche::bench {

using Allowed = std::map<std::string, std::vector<int>>;  // parameter: its values; others are free

class RestrictedFamily final : public evolve::TemplateFamily {
 public:
  RestrictedFamily(const evolve::TemplateFamily& base, const Allowed& allowed)
      : base_(base), allowed_(allowed) {}
  const std::string& name() const override { return base_.name(); }
  const std::string& op() const override { return base_.op(); }
  const std::vector<evolve::Param>& params() const override { return base_.params(); }
  bool valid(const dispatch::Definition& d, const evolve::CpuTarget& t,
             const evolve::Point& point) const override {
    for (size_t i = 0; i < point.size(); ++i) {
      const auto values = allowed_.find(params()[i].name);
      if (values == allowed_.end()) continue;
      const int v = params()[i].values[static_cast<size_t>(point[i])];
      if (std::count(values->second.begin(), values->second.end(), v) == 0) return false;
    }
    return base_.valid(d, t, point);
  }
  std::vector<evolve::Point> seeds(const dispatch::Definition& d, const evolve::CpuTarget& t) const override {
    std::vector<evolve::Point> list = base_.seeds(d, t);
    std::erase_if(list, [&](const evolve::Point& p) { return !valid(d, t, p); });
    // A family without a seed is taken for one that cannot: the first valid point stands in for those that were left out.
    evolve::Point p(params().size(), 0);
    do {
      if (list.empty() && valid(d, t, p)) list.push_back(p);
    } while (list.empty() && evolve::search::next_point(params(), &p));
    return list;
  }
  evolve::KernelSource render(const dispatch::Definition& d, const evolve::CpuTarget& t,
                              const evolve::Point& point, std::string_view suffix) const override {
    return base_.render(d, t, point, suffix);
  }

 private:
  const evolve::TemplateFamily& base_;
  const Allowed& allowed_;
};

}  // namespace niche::bench
