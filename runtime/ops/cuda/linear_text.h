// What the linear families share: the epilogue, and the plan and second kernel of those whose blocks may share k.
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

// How the blocks of a family cut a problem: `columns` (COLS) rows of x by `rows` outputs, in `split` parts of k.
struct LinearTile {
  int columns, rows, split, threads, shared_bytes;
};
// Plan and limits for such blocks: the phase `run`, and for a split above 1 `add_up` with its workspace.
void plan_tiles(CudaKernelSource* s, const Definition& d, const CudaTarget& t, const LinearTile& tile);

}  // namespace niche::ops_cuda
