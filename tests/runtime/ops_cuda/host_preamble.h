// A CUDA block on the host: the text that stands in for cuda_preamble() when a generated kernel is compiled
// by the system's C++ compiler, so that what it computes can be checked without a GPU.
//
// A block's threads are fibers; barriers, shuffles, ldmatrix and mma exchange values as the instructions do.
// cp.async writes as late as its wait allows, so that a missing wait shows; blocks run one after the other,
// their threads in rising or in falling order between two barriers, so that a missing barrier shows as a
// difference. What is not here: bulk copies, clusters, wgmma (those bodies are checked on a GPU alone), the
// rounding of approximate instructions, and memory order between blocks.
#pragma once

#include <string_view>

namespace niche::ops_cuda_test {

std::string_view host_preamble();

}  // namespace niche::ops_cuda_test
