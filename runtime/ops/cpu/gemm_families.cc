#include "runtime/ops/cpu/gemm_families.h"

namespace niche::ops_cpu {

void add_gemm_families(evolve::FamilyRegistry& registry) {
  add_conv1d_winograd(registry);
  add_conv1d_direct(registry);
  add_ikbo(registry);
  add_optimized_fm(registry);
  add_pffn(registry);
}

}  // namespace niche::ops_cpu
