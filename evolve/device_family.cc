#include "evolve/device_family.h"

#include <utility>

#include "evolve/cuda_plan_text.h"

namespace niche::evolve {
namespace {

class DeviceFamily final : public TemplateFamily {
 public:
  DeviceFamily(std::shared_ptr<const CudaTemplateFamily> family, const CudaTarget& target)
      : family_(std::move(family)), target_(target) {}

  const std::string& name() const override { return family_->name(); }
  const std::string& op() const override { return family_->op(); }
  const std::vector<Param>& params() const override { return family_->params(); }
  bool valid(const dispatch::Definition& d, const CpuTarget&, const Point& point) const override {
    return family_->valid(d, target_, point);
  }
  std::vector<Point> seeds(const dispatch::Definition& d, const CpuTarget&) const override {
    return family_->seeds(d, target_);
  }
  // Each candidate is a module of its own: no suffix is needed.
  KernelSource render(const dispatch::Definition& d, const CpuTarget&, const Point& point,
                      std::string_view) const override {
    CudaKernelSource from = family_->render(d, target_, point);
    KernelSource s;
    s.text = std::move(from.text);
    s.plan = tiles_of(from.plan);
    s.properties = from.properties;
    s.limits = from.limits;
    s.kernel_name = std::move(from.kernel_name);
    s.cuda = std::make_shared<const dispatch::CudaLaunchPlan>(std::move(from.plan));
    return s;
  }

 private:
  const std::shared_ptr<const CudaTemplateFamily> family_;
  const CudaTarget target_;
};

}  // namespace

FamilyRegistry device_families(const CudaFamilyRegistry& families, const CudaTarget& target) {
  FamilyRegistry registry;
  for (const auto& family : families.all()) registry.add(std::make_shared<DeviceFamily>(family, target));
  return registry;
}

}  // namespace niche::evolve
