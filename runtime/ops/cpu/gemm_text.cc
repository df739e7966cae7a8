#include "runtime/ops/cpu/gemm_text.h"

#include <algorithm>

namespace niche::ops_cpu {

// PIN: without it g++ may fold the load of a vector of B into each FMA that uses it (4-row tiles of a
// convolution: 1.6 times slower).
std::string_view gemm_text() {
  static constexpr std::string_view kText = R"(
typedef vf<W> F;
template <class V> NICHE_INLINE void pin(V& v) {
  if constexpr (PIN) asm("" : "+v"(v));
}

// A vector of which the first N floats exist.
template <int N> NICHE_INLINE F load_first(const float* p) {
  if constexpr (N == W) return load<W>(p);
  else return load_n<W>(p, N);
}
template <int N> NICHE_INLINE void store_first(float* p, F v) {
  if constexpr (N == W) store(p, v);
  else store_n(p, v, N);
}

// What a multiplication does beside: copy B's vectors to `copy` (NV * W floats a step), prefetch `fetch` floats ahead.
struct Side { float* copy; long fetch; };

// acc[r][n] += sum over k of a[r * A_ROW + k * A_K] * vector n of b[k * B_K]. One order of additions whatever R, NV and
// UNROLL. Of the last vector LAST floats exist.
template <int R, int NV, long A_ROW, long A_K, long B_K, int LAST = W, bool COPIES = false, bool FETCHES = false>
NICHE_INLINE void multiply(F (&acc)[R][NV], const float* __restrict a, const float* __restrict b, long depth,
                           Side side = {}) {
  const auto step = [&](long k) __attribute__((always_inline)) {
    F w[NV];
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) {
      w[n] = n + 1 < NV ? load<W>(b + k * B_K + n * W) : load_first<LAST>(b + k * B_K + n * W);
      pin(w[n]);
      if constexpr (COPIES) *(F*)(side.copy + (k * NV + n) * W) = w[n];
    }
    if constexpr (FETCHES) __builtin_prefetch(b + k * B_K + side.fetch);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const F s = splat<W>(a[r * A_ROW + k * A_K]);
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) acc[r][n] = fma(s, w[n], acc[r][n]);
    }
  };
  long k = 0;
  for (; k + UNROLL <= depth; k += UNROLL)
#pragma GCC unroll 8
    for (int u = 0; u < UNROLL; ++u) step(k + u);
  for (; k < depth; ++k) step(k);
}

// Cuts `n` into ceil(n / most) blocks that differ by one at most.
struct Blocks {
  long count, base, extra;
  constexpr Blocks(long n, long most)
      : count((n + most - 1) / most), base(n / (count > 0 ? count : 1)), extra(n - base * count) {}
  constexpr long start(long i) const { return i * base + (i < extra ? i : extra); }
};
constexpr long least_of(long a, long b) { return a < b ? a : b; }
constexpr long most_of(long a, long b) { return a > b ? a : b; }
// Sizes of the blocks that occur: only those are instantiated.
constexpr long smallest(long n, long most) { return Blocks(n, most).base; }
constexpr long largest(long n, long most) { return Blocks(n, most).base + (Blocks(n, most).extra > 0); }
// Vectors of the strips of `n` columns done in chunks of `chunk`, at most `most` vectors a strip.
struct Strips {
  long least, most;
  constexpr Strips(long n, long chunk, long limit) : least(0), most(0) {
    const long full = ((n < chunk ? n : chunk) + W - 1) / W, rest = (n % chunk + W - 1) / W;
    least = smallest(full, limit), most = largest(full, limit);
    if (n > chunk && rest > 0) least = least_of(least, smallest(rest, limit)), most = most_of(most, largest(rest, limit));
  }
};
)";
  return kText;
}

int tile_registers(int rows, int vectors) { return rows * vectors + std::min(rows, vectors) + 1; }

int64_t tightest(std::initializer_list<int64_t> lengths, int64_t most) {
  int64_t bound = 1;
  for (const int64_t n : lengths) {
    const int64_t count = std::max<int64_t>(1, (n + most - 1) / most);
    bound = std::max(bound, (n + count - 1) / count);
  }
  return bound;
}

int64_t tightest_strips(int64_t columns, int64_t chunk, int64_t lanes, int64_t most) {
  const auto vectors = [&](int64_t n) { return (n + lanes - 1) / lanes; };
  return tightest({vectors(std::min(columns, chunk)), columns > chunk ? vectors(columns % chunk) : 0}, most);
}

}  // namespace niche::ops_cpu
