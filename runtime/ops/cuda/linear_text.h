// What the linear families share: the epilogue, and the second kernel of those whose blocks share k.
#pragma once

#include <string_view>

#include "runtime/ops/cuda/cuda_space_family.h"

namespace niche::ops_cuda {

// `finish(sum, row)`: bias and activation of one output; needs T, ACTIVATION and BIAS.
std::string_view linear_epilogue();
// Bias and activation of a Definition of `linear`, as constants of `source`.
void let_epilogue(CudaSource& source, const Definition& d);

// The kernel `add_up`: sums of `SPLIT` blocks, [part][row of x, COLS of them][N], from the workspace; needs N as well.
std::string_view linear_add_up();
// Its phase and workspace; `columns`: COLS. Nothing for a split of 1.
void share_k(CudaKernelSource* s, const CudaTarget& t, int split, int columns, int64_t n);

}  // namespace niche::ops_cuda
