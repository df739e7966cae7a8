// Text shared by the GEMM-like families (conv1d, optimized_fm, pffn, ikbo_linear_compression): the register
// tile and how a length is cut into equal blocks. Needs the constants W (floats a vector), UNROLL and PIN.
#pragma once

#include <string_view>

namespace niche::ops_cpu {

// A body for SourceBuilder::body(); see docs/templates_gemm.md.
std::string_view gemm_text();

// Registers that a tile of `rows` x `vectors` needs: accumulators, the vectors of B and one broadcast of A.
// GCC spills beyond 16 (AVX2) or 32 (AVX-512).
int tile_registers(int rows, int vectors);

}  // namespace niche::ops_cpu
