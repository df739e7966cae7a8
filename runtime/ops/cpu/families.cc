#include "runtime/ops/cpu/families.h"

#include "runtime/ops/cpu/gemm_families.h"

namespace niche::ops_cpu {

void register_cpu_families(evolve::FamilyRegistry& registry) {
  add_rms_norm_families(registry);
  add_layer_norm_family(registry);
  add_silu_mul_family(registry);
  add_softmax_family(registry);
  add_rms_norm_backward_family(registry);
  add_selective_state_update_family(registry);
  add_embedding_bag_family(registry);
  add_map_id_family(registry);
  add_mbdt_family(registry);
  add_batch_event_truncate_family(registry);
  add_gemm_families(registry);
}

}  // namespace niche::ops_cpu
