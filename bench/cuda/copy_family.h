// copy: y = x, as a CUDA family of the benchmark's own: the honest floor beside each row is a plain kernel
// that moves the same bytes.
#pragma once

#include <memory>

#include "evolve/cuda_template_family.h"

namespace niche::bench_cuda {

std::shared_ptr<const dispatch::OpSchema> copy_schema();  // x, y: M rows of N 4-byte words
void add_copy_family(evolve::CudaFamilyRegistry& registry);

}  // namespace niche::bench_cuda
