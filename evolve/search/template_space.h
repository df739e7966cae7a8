// TemplateSpace: the families of an operator, bound to a Definition and a target, as a SearchSpace.
#pragma once

#include <utility>
#include <vector>

#include "evolve/search/kernel_identity.h"
#include "evolve/search/space.h"

namespace niche::evolve::search {

class TemplateSpace final : public SearchSpace {
 public:
  // Families without a single valid seed are left out: they have nothing to offer here. `problems`: those at which
  // candidates are measured (kernel_identity.h). Requires: `families` and `definition` outlive the space.
  TemplateSpace(const std::vector<const TemplateFamily*>& families, const dispatch::Definition& definition,
                const CpuTarget& target, std::vector<ProblemAxes> problems = {});

  int family_count() const override { return static_cast<int>(families_.size()); }
  const std::string& family_name(int family) const override { return at(family).name(); }
  const std::vector<Param>& params(int family) const override { return at(family).params(); }
  bool valid(const FamilyPoint& c) const override {
    return at(c.family).valid(definition_, target_, c.point);
  }
  std::vector<Point> seeds(int family) const override { return at(family).seeds(definition_, target_); }

  // Renders the candidate: some 20 us.
  uint64_t kernel_number(const FamilyPoint& c) const override;

  const std::vector<ProblemAxes>& problems() const { return problems_; }
  void set_problems(std::vector<ProblemAxes> problems) { problems_ = std::move(problems); }
  const TemplateFamily& at(int family) const { return *families_[static_cast<size_t>(family)]; }
  int find(const std::string& family_name) const;  // -1: not here

 private:
  std::vector<const TemplateFamily*> families_;
  const dispatch::Definition& definition_;
  CpuTarget target_;
  std::vector<ProblemAxes> problems_;
};

}  // namespace niche::evolve::search
