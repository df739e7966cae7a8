#include "runtime/ops/cpu/gemm_text.h"

#include <algorithm>

namespace niche::ops_cpu {

// PIN: without it g++ folds the load of a vector of B into each FMA that uses it (4-row tiles: 1.6 times slower;
// docs/templates_gemm.md).
std::string_view gemm_text() {
  static constexpr std::string_view kText = R"(
typedef vf<W> F;
template <class V> NICHE_INLINE void pin(V& v) {
  if constexpr (PIN) asm("" : "+v"(v));
}

// acc[r][n] += sum over k of a[r * A_ROW + k * A_K] * vector n of b[k * B_K]. One order of additions whatever R and NV.
template <int R, int NV, long A_ROW, long A_K, long B_K>
NICHE_INLINE void multiply(F (&acc)[R][NV], const float* __restrict a, const float* __restrict b, long depth) {
#define NICHE_STEP(k)                                                        \
  {                                                                          \
    F w[NV];                                                                 \
    for (int n = 0; n < NV; ++n) w[n] = load<W>(b + (k) * B_K + n * W), pin(w[n]); \
    for (int r = 0; r < R; ++r) {                                            \
      const F s = splat<W>(a[r * A_ROW + (k) * A_K]);                           \
      for (int n = 0; n < NV; ++n) acc[r][n] = fma(s, w[n], acc[r][n]);      \
    }                                                                        \
  }
  long k = 0;
  for (; k + UNROLL <= depth; k += UNROLL)
#pragma GCC unroll 8
    for (int u = 0; u < UNROLL; ++u) NICHE_STEP(k + u)
  for (; k < depth; ++k) NICHE_STEP(k)
#undef NICHE_STEP
}

// Cuts `n` into ceil(n / most) blocks that differ by one at most.
struct Blocks {
  long count, base, extra;
  Blocks(long n, long most) : count((n + most - 1) / most), base(n / (count > 0 ? count : 1)), extra(n - base * count) {}
  long start(long i) const { return i * base + (i < extra ? i : extra); }
};
)";
  return kText;
}

int tile_registers(int rows, int vectors) { return rows * vectors + std::min(rows, vectors) + 1; }

}  // namespace niche::ops_cpu
