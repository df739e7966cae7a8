#include "runtime/ops/cpu/families.h"

namespace niche::ops_cpu {

void register_cpu_families(evolve::FamilyRegistry& registry) { add_rms_norm_families(registry); }

}  // namespace niche::ops_cpu
