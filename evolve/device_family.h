// A CudaTemplateFamily as a TemplateFamily: so that a session searches schedules for a GPU with the policies,
// tree and store that it has for the CPU. The target is bound once; the launch plan travels in
// KernelSource::cuda.
//
// Thread-safety: immutable.
#pragma once

#include <memory>

#include "evolve/cuda_template_family.h"
#include "evolve/template_family.h"

namespace niche::evolve {

// Every family of `families`, for this target.
FamilyRegistry device_families(const CudaFamilyRegistry& families, const CudaTarget& target);

}  // namespace niche::evolve
