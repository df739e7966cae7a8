// What the two linear families share: the epilogue's text and its constants.
#pragma once

#include <string_view>

#include "runtime/ops/cuda/cuda_space_family.h"

namespace niche::ops_cuda {

// `finish(sum, row)`: bias and activation of one output; needs T, ACTIVATION and BIAS.
std::string_view linear_epilogue();
// Bias and activation of a Definition of `linear`, as constants of `source`.
void let_epilogue(CudaSource& source, const Definition& d);

}  // namespace niche::ops_cuda
