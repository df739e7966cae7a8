#include "runtime/ops/cuda/families.h"

namespace niche::ops_cuda {

void register_cuda_families(evolve::CudaFamilyRegistry& registry) {
  add_row_families(registry);
  add_gated_mul_families(registry);
  add_rms_norm_backward_family(registry);
  add_map_id_family(registry);
  add_mbdt_family(registry);
  add_conv1d_family(registry);
  add_conv1d_wgmma_family(registry);
  add_optimized_fm_family(registry);
  add_pffn_family(registry);
  add_pffn_wgmma_family(registry);
  add_rope_family(registry);
  add_linear_rows_family(registry);
  add_linear_mma_family(registry);
  add_linear_staged_family(registry);
  add_sdpa_decode_family(registry);
  add_sdpa_decode_mma_family(registry);
  add_embedding_bag_family(registry);
  add_ikbo_family(registry);
  add_ikbo_wgmma_family(registry);
  add_conv1d_tf32_family(registry);
  add_optimized_fm_tf32_family(registry);
  add_pffn_tf32_family(registry);
  add_conv1d_f32_family(registry);
  add_optimized_fm_f32_family(registry);
  add_pffn_f32_family(registry);
}

}  // namespace niche::ops_cuda
