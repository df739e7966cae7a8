// The CPU template families: generators of kernels for the built-in operators, for AVX2 and AVX-512.
// Schedules, what mattered and what lost: docs/templates.md. No libtorch here.
#pragma once

#include "evolve/template_family.h"

namespace niche::ops_cpu {

// Adds every family of this folder.
void register_cpu_families(evolve::FamilyRegistry& registry);

// One line a file; each is defined in <name>_family.cc.
void add_rms_norm_families(evolve::FamilyRegistry& registry);  // rms_norm, fused_add_rms_norm, ..._inplace
void add_layer_norm_family(evolve::FamilyRegistry& registry);
void add_silu_mul_family(evolve::FamilyRegistry& registry);
void add_softmax_family(evolve::FamilyRegistry& registry);
void add_rms_norm_backward_family(evolve::FamilyRegistry& registry);
void add_selective_state_update_family(evolve::FamilyRegistry& registry);
void add_embedding_bag_family(evolve::FamilyRegistry& registry);
void add_map_id_family(evolve::FamilyRegistry& registry);
void add_mbdt_family(evolve::FamilyRegistry& registry);
void add_batch_event_truncate_family(evolve::FamilyRegistry& registry);

}  // namespace niche::ops_cpu
