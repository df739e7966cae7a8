// The CUDA template families: generators of kernels for the built-in operators, for sm_80, sm_90a and
// sm_100a. Schedules, what mattered and what lost: docs/cuda.md. No libtorch and no CUDA library here.
#pragma once

#include "evolve/cuda_template_family.h"

namespace niche::ops_cuda {

// Adds every family of this folder.
void register_cuda_families(evolve::CudaFamilyRegistry& registry);

// Each is defined in <name>.cc.
void add_row_families(evolve::CudaFamilyRegistry& registry);        // norms over a row, softmax
void add_gated_mul_families(evolve::CudaFamilyRegistry& registry);  // silu_mul, gelu_mul
void add_rope_family(evolve::CudaFamilyRegistry& registry);
void add_linear_rows_family(evolve::CudaFamilyRegistry& registry);
void add_linear_mma_family(evolve::CudaFamilyRegistry& registry);
void add_linear_staged_family(evolve::CudaFamilyRegistry& registry);
void add_sdpa_decode_family(evolve::CudaFamilyRegistry& registry);
void add_sdpa_decode_mma_family(evolve::CudaFamilyRegistry& registry);
void add_embedding_bag_family(evolve::CudaFamilyRegistry& registry);
void add_ikbo_family(evolve::CudaFamilyRegistry& registry);
void add_ikbo_wgmma_family(evolve::CudaFamilyRegistry& registry);
void add_rms_norm_backward_family(evolve::CudaFamilyRegistry& registry);
void add_map_id_family(evolve::CudaFamilyRegistry& registry);
void add_mbdt_family(evolve::CudaFamilyRegistry& registry);
void add_conv1d_family(evolve::CudaFamilyRegistry& registry);
void add_conv1d_wgmma_family(evolve::CudaFamilyRegistry& registry);
void add_optimized_fm_family(evolve::CudaFamilyRegistry& registry);
void add_pffn_family(evolve::CudaFamilyRegistry& registry);
void add_pffn_wgmma_family(evolve::CudaFamilyRegistry& registry);
// fp32, without tensor cores.
void add_conv1d_f32_family(evolve::CudaFamilyRegistry& registry);
void add_optimized_fm_f32_family(evolve::CudaFamilyRegistry& registry);
void add_pffn_f32_family(evolve::CudaFamilyRegistry& registry);
// fp32 on tensor cores, each product of three of tf32.
void add_conv1d_tf32_family(evolve::CudaFamilyRegistry& registry);
void add_optimized_fm_tf32_family(evolve::CudaFamilyRegistry& registry);
void add_pffn_tf32_family(evolve::CudaFamilyRegistry& registry);

}  // namespace niche::ops_cuda
