#include "runtime/ops/cpu/families.h"

#include "runtime/ops/cpu/gemm_families.h"

namespace niche::ops_cpu {

void register_cpu_families(evolve::FamilyRegistry& registry) {
  add_rms_norm_families(registry);
  add_layer_norm_family(registry);
  add_silu_mul_family(registry);
  add_softmax_family(registry);
  add_gemm_families(registry);
}

}  // namespace niche::ops_cpu
