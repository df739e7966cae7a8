// Text shared by the GEMM-like families (conv1d, optimized_fm, pffn, ikbo_linear_compression): the register
// tile and how a length is cut into equal blocks. Needs the constants W (floats a vector), UNROLL and PIN.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace niche::ops_cpu {

// A body for SourceBuilder::body(); see docs/templates_gemm.md.
std::string_view gemm_text();

// Registers that a tile of `rows` x `vectors` needs: accumulators, the vectors of B and one broadcast of A.
// GCC spills beyond 16 (AVX2) or 32 (AVX-512).
int tile_registers(int rows, int vectors);

// The smallest bound that cuts each of `lengths` into as many Blocks as `most` does: the same loops. A family renders
// this one, so that points whose bounds make no difference are one text and are tried once.
int64_t tightest(std::initializer_list<int64_t> lengths, int64_t most);
// The same for Strips: vectors of `lanes` floats, `columns` columns done in chunks of `chunk`.
int64_t tightest_strips(int64_t columns, int64_t chunk, int64_t lanes, int64_t most);

}  // namespace niche::ops_cpu
