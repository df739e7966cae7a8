// Schemas of the operators that have CUDA families, without libtorch: what the families' texts are written
// against (which argument is p[1], which axis n[0]). They are runtime/ops' schemas; a test compares the two.
//
// Thread-safety: immutable.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "dispatch/definition.h"

namespace niche::ops_cuda {

// Null: no CUDA family knows `op`.
std::shared_ptr<const dispatch::OpSchema> cuda_schema(std::string_view op);
std::vector<std::string_view> cuda_ops();

}  // namespace niche::ops_cuda
