// The families whose inner loop is a matrix product: see docs/templates_gemm.md.
#pragma once

#include "evolve/template_family.h"

namespace niche::ops_cpu {

// All of them.
void add_gemm_families(evolve::FamilyRegistry& registry);

void add_conv1d_direct(evolve::FamilyRegistry& registry);
void add_conv1d_winograd(evolve::FamilyRegistry& registry);
void add_ikbo(evolve::FamilyRegistry& registry);
void add_optimized_fm(evolve::FamilyRegistry& registry);
void add_pffn(evolve::FamilyRegistry& registry);

}  // namespace niche::ops_cpu
