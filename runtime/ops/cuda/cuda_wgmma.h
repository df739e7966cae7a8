// Text of Hopper's warpgroup multiply for one shape: the accumulators of m64nNk16 are N/2 registers that the
// instruction must name one by one.
#pragma once

#include <string>

namespace niche::ops_cuda {

struct WgmmaShape {
  std::string name;           // of the function: void name(float (&d)[N/2], A, u64 b, int add)
  int n = 64;                 // a multiple of 8 up to 256
  bool bf16 = false;          // else f16
  bool a_registers = true;    // A: const u32* (4 words); else a descriptor (u64)
  bool b_transposed = false;  // B lies with n contiguous ("MN-major"), else with k contiguous
  bool a_transposed = false;  // of A in shared memory: with m contiguous
};
// D += A B, or D = A B where `add` is 0. Compiles to nothing but on sm_90a.
std::string wgmma_text(const WgmmaShape& shape);

}  // namespace niche::ops_cuda
