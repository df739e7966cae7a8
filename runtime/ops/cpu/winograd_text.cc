#include "runtime/ops/cpu/winograd_text.h"

namespace niche::ops_cpu {

std::string_view winograd_text() {
  static constexpr std::string_view kText = R"(
constexpr long STEPS = M + 2, COB = W * NR, BLOCKS_CO = (CO + COB - 1) / COB, QUADS = W / 4;
constexpr long V_STEP = CI * PANEL, U_STEP = CI * COB, U_BLOCK = STEPS * U_STEP, TASK_TILES = 8;

NICHE_INLINE f32x4 load4(const float* p) { return load_as<f32x4>(p); }
// Within each 128 bits: a 4 x 4 transpose is unpack, unpack, move, move.
#if LANES == 16
#define NICHE_ALL(i, j, k, l) i, j, k, l, i + 4, j + 4, k + 4, l + 4, i + 8, j + 8, k + 8, l + 8, i + 12, j + 12, k + 12, l + 12
#define NICHE_SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, NICHE_ALL(i, j, k, l))
NICHE_INLINE F join(const f32x4* q) {
  const f32x8 lo = __builtin_shufflevector(q[0], q[1], 0, 1, 2, 3, 4, 5, 6, 7);
  const f32x8 hi = __builtin_shufflevector(q[2], q[3], 0, 1, 2, 3, 4, 5, 6, 7);
  return __builtin_shufflevector(lo, hi, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
#else
#define NICHE_SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l, i + 4, j + 4, k + 4, l + 4)
NICHE_INLINE F join(const f32x4* q) { return __builtin_shufflevector(q[0], q[1], 0, 1, 2, 3, 4, 5, 6, 7); }
#endif
template <int Q> NICHE_INLINE f32x4 quad(F v) {
  return __builtin_shufflevector(v, v, 4 * Q, 4 * Q + 1, 4 * Q + 2, 4 * Q + 3);
}
NICHE_INLINE F unpack_low(F a, F b) { return NICHE_SHUFFLE(a, b, 0, W, 1, W + 1); }
NICHE_INLINE F unpack_high(F a, F b) { return NICHE_SHUFFLE(a, b, 2, W + 2, 3, W + 3); }
NICHE_INLINE F move_low(F a, F b) { return NICHE_SHUFFLE(a, b, 0, 1, W, W + 1); }
NICHE_INLINE F move_high(F a, F b) { return NICHE_SHUFFLE(a, b, 2, 3, W + 2, W + 3); }
#undef NICHE_SHUFFLE

NICHE_INLINE void put(float* v, F x) { *(F*)v = x; }
// d[k]: input k of W tiles. Explicit fma: both callers must round alike.
NICHE_INLINE void transform_input(const F* first, const F* second, float* v) {
  const F a = unpack_low(first[0], first[1]), b = unpack_low(first[2], first[3]);
  const F c = unpack_high(first[0], first[1]), e = unpack_high(first[2], first[3]);
  const F d0 = move_low(a, b), d1 = move_high(a, b), d2 = move_low(c, e), d3 = move_high(c, e);
  if constexpr (M == 2) {
    put(v, d0 - d2), put(v + V_STEP, d1 + d2), put(v + 2 * V_STEP, d2 - d1), put(v + 3 * V_STEP, d1 - d3);
    return;
  }
  const F f = unpack_low(second[0], second[1]), g = unpack_low(second[2], second[3]);
  const F d4 = move_low(f, g), d5 = move_high(f, g);
  const auto pair = [&](int step, F even, F odd) __attribute__((always_inline)) {
    put(v + step * V_STEP, even + odd), put(v + (step + 1) * V_STEP, even - odd);
  };
  const F four = splat<W>(4), minus5 = splat<W>(-5), s = d3 - d1;
  put(v, fma(four, d0, fma(minus5, d2, d4)));
  pair(1, fma(-four, d2, d4), fma(-four, d1, d3));
  pair(3, d4 - d2, s + s);
  put(v + 5 * V_STEP, fma(four, d1, fma(minus5, d3, d5)));
}

// Four inputs from index `from` on, zero outside [0, L): a load that stays inside, shifted and masked.
struct Piece {
  long offset;
  i32x4 index, mask;
  void set(long from, long L) {
    offset = from < 0 || L < 4 ? 0 : lmin(from, L - 4);
    for (int k = 0; k < 4; ++k) {
      index[k] = (int)((from + k - offset) & 3);
      mask[k] = from + k >= 0 && from + k < L ? -1 : 0;
    }
  }
  inline __attribute__((always_inline)) f32x4 get(const float* row, long L) const {
    f32x4 v = {};
    if (__builtin_expect(L >= 4, 1)) v = load4(row + offset);
    else
      for (long k = 0; k < L; ++k) v[k] = row[k];
#ifdef __clang__
    f32x4 s;
    for (int k = 0; k < 4; ++k) s[k] = v[index[k]];
#else
    const f32x4 s = __builtin_shuffle(v, index);
#endif
    return (f32x4)((i32x4)s & mask);
  }
};

template <int Q> NICHE_INLINE void put_quads(float* y, long channels, long Lo, const F* o) {
  if constexpr (Q < QUADS) {
    for (int r = 0; r < 4; ++r)
      if (CO % W == 0 || 4 * Q + r < channels) store_as(y + (4 * Q + r) * Lo, quad<Q>(o[r]));
    put_quads<Q + 1>(y, channels, Lo, o);
  }
}
// M outputs of W channels, o[j]: output j.
NICHE_INLINE void put_tile(float* y, long channels, long Lo, const F* o) {
  const F a = unpack_low(o[0], o[1]), b = unpack_high(o[0], o[1]);
  const F c = unpack_low(o[2], o[3]), e = unpack_high(o[2], o[3]);
  const F t[4] = {move_low(a, c), move_high(a, c), move_low(b, e), move_high(b, e)};
  put_quads<0>(y, channels, Lo, t);
}
// Output transform of one tile and COB channels; `left`: outputs of the tile that exist.
NICHE_INLINE void output_tile(const float* m, const float* bias, float* y, long co, long Lo, long left) {
  constexpr long STEP = PANEL * COB;
#pragma GCC unroll 4
  for (int n = 0; n < NR; ++n, m += W, co += W, y += W * Lo) {
    if (CO % COB != 0 && co >= CO) return;
    const F m0 = load<W>(m), m1 = load<W>(m + STEP), m2 = load<W>(m + 2 * STEP), m3 = load<W>(m + 3 * STEP);
    const F b = load<W>(bias + co);
    F o[M];
    if constexpr (M == 2) {
      o[0] = (m0 + m1) + (m2 + b);
      o[1] = (m1 - m2) + (b - m3);
    } else {
      const F m4 = load<W>(m + 4 * STEP), m5 = load<W>(m + 5 * STEP);
      const F s1 = m1 + m2, d1 = m1 - m2, s2 = m3 + m4, d2 = m3 - m4;
      const F two = splat<W>(2), four = splat<W>(4), eight = splat<W>(8);
      o[0] = (m0 + s1) + (s2 + b);
      o[1] = fma(two, d2, d1 + b);
      o[2] = fma(four, s2, s1 + b);
      o[3] = fma(eight, d2, d1 + (m5 + b));
    }
    if constexpr (M > 2) {
      if (left >= M) {
        put_tile(y, CO - co, Lo, o);
        continue;
      }
    }
    float s[M][W];
    for (int j = 0; j < M; ++j) store(s[j], o[j]);
    for (long i = 0; i < lmin(W, CO - co); ++i)
      for (long j = 0; j < lmin(M, left); ++j) y[i * Lo + j] = s[j][i];
  }
}
)";
  return kText;
}

}  // namespace niche::ops_cpu
