// What the two sdpa_decode families share: their axes, the scale in the exponent, and the second kernel that merges the
// parts of a head's splits.
#pragma once

#include <cstdint>

#include "runtime/ops/cuda/cuda_space_family.h"

namespace niche::ops_cuda::sdpa_decode {

enum Axis { kB, kS, kHq, kHk, kD };

// The attribute, or 1/sqrt(D), times log2(e): scores go to exp2.
double scale_log2(const Definition& d);

// Adds to `s`, whose text has a kernel `merge`, its phase of `threads` threads and the workspace for the parts: D values,
// a maximum and a sum a query head and split. Bounds the batch by that workspace. Nothing where split is 1.
void merge_splits(CudaKernelSource* s, const Definition& d, const CudaTarget& t, int split, int threads);

}  // namespace niche::ops_cuda::sdpa_decode
