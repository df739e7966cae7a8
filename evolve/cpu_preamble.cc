// The text that every generated CPU source starts with. It is one raw string on purpose: a candidate is
// compiled without a single #include, which takes a sixth of the time that <immintrin.h> would cost. What it
// offers, and the error of each function, is written in docs/templates.md;
// tests/runtime/ops_cpu/preamble_test.cc measures them.
//
// Exponentials: 2^f on [-0.5, 0.5] by minimax polynomials (relative error of degree 3, 4, 5,
// 6: 7.5e-5, 5.4e-6, 9.1e-8, 2.0e-9), argument reduction by one fma against log2(e) and one against its rest,
// rounding by adding 1.5 * 2^23. erf: erfc(|x|) = 2^q(|x|), absolute error 1.6e-8 before rounding. log1p on
// [0, 1]: 4.7e-9 relative.
#include "evolve/template_family.h"

namespace niche::evolve {

std::string_view cpu_preamble() {
  static constexpr std::string_view kText = R"niche(
struct NicheKernelArgs {
  void* const* p;      // one pointer a schema argument; null: absent
  const long* n;       // one extent a schema axis
  const double* a;     // attributes
  void* ws;            // workspace, 64-byte aligned, contents undefined
  const void* packed;  // what the pack entry wrote
};
#define NICHE_INLINE static inline __attribute__((always_inline))
namespace nv {
typedef unsigned short bf16;
typedef float f32x4 __attribute__((vector_size(16)));
typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x16 __attribute__((vector_size(64)));
typedef int i32x4 __attribute__((vector_size(16)));
typedef int i32x8 __attribute__((vector_size(32)));
typedef int i32x16 __attribute__((vector_size(64)));
typedef unsigned u32x4 __attribute__((vector_size(16)));
typedef unsigned u32x8 __attribute__((vector_size(32)));
typedef unsigned u32x16 __attribute__((vector_size(64)));
typedef long i64x2 __attribute__((vector_size(16)));
typedef long i64x4 __attribute__((vector_size(32)));
typedef long i64x8 __attribute__((vector_size(64)));
typedef short i16x8 __attribute__((vector_size(16)));
typedef short i16x16 __attribute__((vector_size(32)));
typedef unsigned short u16x8 __attribute__((vector_size(16)));
typedef unsigned short u16x16 __attribute__((vector_size(32)));
template <class V, int A> struct Loose { typedef V T __attribute__((aligned(A), may_alias)); };
// Any vector type at any address.
template <class V> NICHE_INLINE V load_as(const void* p) { return *(const typename Loose<V, 1>::T*)p; }
template <class V> NICHE_INLINE void store_as(void* p, V v) { *(typename Loose<V, 1>::T*)p = v; }
template <class V> NICHE_INLINE void stream_as(void* p, V v) {  // p aligned to sizeof(V); end with stream_fence()
#ifdef __clang__
  __builtin_nontemporal_store(v, (V*)p);
#else
  if constexpr (sizeof(V) == 16) __builtin_ia32_movntps((float*)p, (f32x4)v);
#ifdef __AVX2__
  if constexpr (sizeof(V) == 32) __builtin_ia32_movntps256((float*)p, (f32x8)v);
#endif
#ifdef __AVX512F__
  if constexpr (sizeof(V) == 64) __builtin_ia32_movntps512((float*)p, (f32x16)v);
#endif
#endif
}
NICHE_INLINE void stream_fence() { __builtin_ia32_sfence(); }
NICHE_INLINE bool aligned(const void* p, long bytes) { return ((long)p & (bytes - 1)) == 0; }
NICHE_INLINE long lmin(long a, long b) { return a < b ? a : b; }
NICHE_INLINE long lmax(long a, long b) { return a > b ? a : b; }

template <int W> struct VecOf;
template <> struct VecOf<8> { typedef f32x8 F; typedef i32x8 I; typedef u32x8 U; typedef u16x8 H; typedef i64x4 L; };
template <> struct VecOf<16> { typedef f32x16 F; typedef i32x16 I; typedef u32x16 U; typedef u16x16 H; typedef i64x8 L; };
template <int W> using vf = typename VecOf<W>::F;
template <class F> struct IntOf;
template <> struct IntOf<f32x8> { typedef i32x8 I; typedef u32x8 U; static constexpr int W = 8; };
template <> struct IntOf<f32x16> { typedef i32x16 I; typedef u32x16 U; static constexpr int W = 16; };

template <int W> NICHE_INLINE vf<W> splat(float x) { return x - vf<W>{}; }  // x + 0 costs an addition: -0 + 0 is 0
// The second operand where either is NaN, as the instructions do.
template <class V> NICHE_INLINE V vmax(V a, V b) { return a > b ? a : b; }
template <class V> NICHE_INLINE V vmin(V a, V b) { return a < b ? a : b; }

#ifdef __AVX2__
NICHE_INLINE f32x8 fma(f32x8 a, f32x8 b, f32x8 c) { return __builtin_ia32_vfmaddps256(a, b, c); }
NICHE_INLINE f32x8 sqrt(f32x8 v) { return __builtin_ia32_sqrtps256(v); }
NICHE_INLINE f32x8 rcp_approx(f32x8 v) { return __builtin_ia32_rcpps256(v); }      // relative 3.7e-4
NICHE_INLINE f32x8 rsqrt_approx(f32x8 v) { return __builtin_ia32_rsqrtps256(v); }  // relative 3.7e-4
NICHE_INLINE f32x8 widen(u16x8 h) {
#ifdef __clang__
  return (f32x8)(__builtin_convertvector(h, u32x8) << 16);
#else
  return (f32x8)((u32x8)__builtin_ia32_pmovzxwd256((i16x8)h) << 16);
#endif
}
NICHE_INLINE i32x8 iota8() { return i32x8{0, 1, 2, 3, 4, 5, 6, 7}; }
typedef long long LL4 __attribute__((vector_size(32)));
// One bit a lane of a comparison's result; p[i] lane by lane; v[i] lane by lane.
NICHE_INLINE unsigned mask_of(i32x8 m) { return (unsigned)__builtin_ia32_movmskps256((f32x8)m); }
NICHE_INLINE unsigned mask_of(i64x4 m) {
  typedef double D4 __attribute__((vector_size(32)));
  return (unsigned)__builtin_ia32_movmskpd256((D4)m);
}
NICHE_INLINE f32x8 gather(const float* p, i32x8 i) {
  return __builtin_ia32_gathersiv8sf(f32x8{}, p, i, (f32x8)(i32x8{} - 1), 4);
}
NICHE_INLINE i64x4 gather(const long* p, i64x4 i) {
  return (i64x4)__builtin_ia32_gatherdiv4di(LL4{}, (const long long*)p, (LL4)i, LL4{} - 1, 8);
}
NICHE_INLINE f32x8 permute(f32x8 v, i32x8 i) { return __builtin_ia32_permvarsf256(v, i); }
NICHE_INLINE float hsum(f32x8 v) {
  f32x4 s = __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
  s += __builtin_shufflevector(s, s, 2, 3, 0, 1);
  return s[0] + s[1];
}
NICHE_INLINE f32x8 hsum8(const f32x8* v) {  // lane k: the sum of v[k]
  const f32x8 a = __builtin_ia32_haddps256(__builtin_ia32_haddps256(v[0], v[1]), __builtin_ia32_haddps256(v[2], v[3]));
  const f32x8 b = __builtin_ia32_haddps256(__builtin_ia32_haddps256(v[4], v[5]), __builtin_ia32_haddps256(v[6], v[7]));
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
}
NICHE_INLINE float hmax(f32x8 v) {
  f32x4 s = vmax(__builtin_shufflevector(v, v, 0, 1, 2, 3), __builtin_shufflevector(v, v, 4, 5, 6, 7));
  s = vmax(s, __builtin_shufflevector(s, s, 2, 3, 0, 1));
  return s[0] > s[1] ? s[0] : s[1];
}
NICHE_INLINE f32x8 load_part(const float* p, int n, f32x8) {
  const i32x8 mask = iota8() < n;
  return __builtin_ia32_maskloadps256((const f32x8*)p, mask);
}
NICHE_INLINE void store_part(float* p, f32x8 v, int n) {  // in pieces: masked stores are slow on AMD before Zen 5
  f32x4 h = __builtin_shufflevector(v, v, 0, 1, 2, 3);
  if (n & 4) {
    store_as(p, h);
    h = __builtin_shufflevector(v, v, 4, 5, 6, 7);
    p += 4;
  }
  if (n & 2) {
    const i64x2 l = (i64x2)h;
    __builtin_memcpy(p, &l, 8);
    h = __builtin_shufflevector(h, h, 2, 3, 2, 3);
    p += 2;
  }
  if (n & 1) *p = h[0];
}
NICHE_INLINE u16x8 load_part16(const bf16* p, int n) {
  unsigned long first = 0, rest = 0;
  unsigned two = 0;
  unsigned short one = 0;
  const bf16* q = p + (n & 4);
  if (n & 4) __builtin_memcpy(&first, p, 8);
  if (n & 2) __builtin_memcpy(&two, q, 4);
  if (n & 1) __builtin_memcpy(&one, q + (n & 2), 2);
  rest = two | ((unsigned long)one << ((n & 2) * 16));
  return (u16x8)(n & 4 ? i64x2{(long)first, (long)rest} : i64x2{(long)rest, 0});
}
NICHE_INLINE void store_part16(bf16* p, u16x8 v, int n) {
  const i64x2 l = (i64x2)v;
  unsigned long r = (unsigned long)l[0];
  if (n & 4) {
    __builtin_memcpy(p, &r, 8);
    r = (unsigned long)l[1];
    p += 4;
  }
  if (n & 2) {
    const unsigned two = (unsigned)r;
    __builtin_memcpy(p, &two, 4);
    r >>= 32;
    p += 2;
  }
  if (n & 1) *p = (bf16)r;
}
#endif

#ifdef __AVX512F__
NICHE_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return __builtin_ia32_vfmaddps512_mask(a, b, c, (unsigned short)-1, 4);
}
NICHE_INLINE f32x16 sqrt(f32x16 v) {
#ifdef __clang__
  return __builtin_ia32_sqrtps512(v, 4);
#else
  return __builtin_ia32_sqrtps512_mask(v, v, (unsigned short)-1, 4);
#endif
}
NICHE_INLINE f32x16 rcp_approx(f32x16 v) { return __builtin_ia32_rcp14ps512_mask(v, v, (unsigned short)-1); }
NICHE_INLINE f32x16 rsqrt_approx(f32x16 v) { return __builtin_ia32_rsqrt14ps512_mask(v, v, (unsigned short)-1); }
NICHE_INLINE f32x16 widen(u16x16 h) {
#ifdef __clang__
  return (f32x16)(__builtin_convertvector(h, u32x16) << 16);
#else
  return (f32x16)((u32x16)__builtin_ia32_pmovzxwd512_mask((i16x16)h, i32x16{}, (unsigned short)-1) << 16);
#endif
}
typedef long long LL8 __attribute__((vector_size(64)));
NICHE_INLINE unsigned mask_of(i32x16 m) { return (unsigned short)__builtin_ia32_cvtd2mask512(m); }
NICHE_INLINE unsigned mask_of(i64x8 m) { return (unsigned char)__builtin_ia32_cvtq2mask512((LL8)m); }
NICHE_INLINE f32x16 gather(const float* p, i32x16 i) {
  return __builtin_ia32_gathersiv16sf(f32x16{}, p, i, (unsigned short)-1, 4);
}
NICHE_INLINE i64x8 gather(const long* p, i64x8 i) {
  return (i64x8)__builtin_ia32_gatherdiv8di(LL8{}, p, (LL8)i, (unsigned char)-1, 8);
}
NICHE_INLINE f32x16 permute(f32x16 v, i32x16 i) {
#ifdef __clang__
  return __builtin_ia32_permvarsf512(v, i);
#else
  return __builtin_ia32_permvarsf512_mask(v, i, f32x16{}, (unsigned short)-1);
#endif
}
NICHE_INLINE f32x8 half(f32x16 v, int which) {
  return which ? __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15)
               : __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
}
NICHE_INLINE float hsum(f32x16 v) { return hsum(half(v, 0) + half(v, 1)); }
NICHE_INLINE f32x8 hsum8(const f32x16* v) {
  f32x8 h[8];
#pragma GCC unroll 8
  for (int k = 0; k < 8; ++k) h[k] = half(v[k], 0) + half(v[k], 1);
  return hsum8(h);
}
NICHE_INLINE float hmax(f32x16 v) { return hmax(vmax(half(v, 0), half(v, 1))); }
NICHE_INLINE unsigned short first_lanes(int n) { return (unsigned short)((1u << n) - 1); }
NICHE_INLINE f32x16 load_part(const float* p, int n, f32x16) {
  return __builtin_ia32_loadups512_mask(p, f32x16{}, first_lanes(n));
}
NICHE_INLINE void store_part(float* p, f32x16 v, int n) { __builtin_ia32_storeups512_mask(p, v, first_lanes(n)); }
#ifdef __clang__
typedef i16x16 Lanes16;
#else
typedef short Lanes16;
#endif
NICHE_INLINE u16x16 load_part16(const bf16* p, int n, int) {
  return (u16x16)__builtin_ia32_loaddquhi256_mask((const Lanes16*)p, i16x16{}, first_lanes(n));
}
NICHE_INLINE void store_part16(bf16* p, u16x16 v, int n) {
  __builtin_ia32_storedquhi256_mask((Lanes16*)p, (i16x16)v, first_lanes(n));
}
#endif

// f32 -> bf16, to nearest even; the result is in the upper 16 bits, the lower hold rubbish. A NaN stays one unless its
// payload is 0x7f8001 or more in the low 23 bits' upper part: not what arithmetic gives, nor what a widened bf16 holds.
template <class F> NICHE_INLINE typename IntOf<F>::U round_bf16(F v) {
  typedef typename IntOf<F>::U U;
  const U u = (U)v;
  return u + 0x7fffu + ((u >> 16) & 1u);
}
template <class F> NICHE_INLINE F as_bf16(F v) { return (F)(round_bf16(v) & 0xffff0000u); }  // rounded, still f32
#ifdef __AVX2__
NICHE_INLINE u16x8 narrow(f32x8 v) {
  const i32x8 r = (i32x8)(round_bf16(v) >> 16);
  return (u16x8)__builtin_ia32_packusdw128(__builtin_shufflevector(r, r, 0, 1, 2, 3),
                                           __builtin_shufflevector(r, r, 4, 5, 6, 7));
}
#endif
#ifdef __AVX512F__
NICHE_INLINE u16x16 narrow(f32x16 v) {
#if defined(__AVX512BF16__)
#ifdef __clang__
  return (u16x16)__builtin_ia32_cvtneps2bf16_512(v);
#else
  return (u16x16)__builtin_ia32_cvtneps2bf16_v16sf(v);
#endif
#else
  return __builtin_convertvector(round_bf16(v) >> 16, u16x16);
#endif
}
#endif

#if defined(__AVX512BF16__)
typedef unsigned short u16x32 __attribute__((vector_size(64)));
#if defined(__clang__)
typedef i32x16 Pairs16;
NICHE_INLINE f32x16 dot_pairs(f32x16 c, u16x32 a, u16x32 b) { return __builtin_ia32_dpbf16ps_512(c, (Pairs16)a, (Pairs16)b); }
#else
#if __GNUC__ >= 13
typedef __bf16 Pairs16 __attribute__((vector_size(64)));
#else
typedef short Pairs16 __attribute__((vector_size(64)));
#endif
// c[i] + a[2i] b[2i] + a[2i+1] b[2i+1], products exact, denormals as zero
NICHE_INLINE f32x16 dot_pairs(f32x16 c, u16x32 a, u16x32 b) { return __builtin_ia32_dpbf16ps_v16sf(c, (Pairs16)a, (Pairs16)b); }
#endif
#endif

// Lanes below n keep v, the others take `other`.
template <class F> NICHE_INLINE F keep_n(F v, int n, F other) {
  typedef typename IntOf<F>::I I;
  I lane;
  if constexpr (IntOf<F>::W == 8) lane = I{0, 1, 2, 3, 4, 5, 6, 7};
  else lane = I{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return lane < n ? v : other;
}

// load<W>, store: W elements of f32 or bf16 at any address, computed in f32. The _n forms touch the first n only
// (0 < n < W; make n a compile-time constant where you can) and read zeros beyond.
template <int W> NICHE_INLINE vf<W> load(const float* p) { return load_as<vf<W>>(p); }
template <int W> NICHE_INLINE vf<W> load(const bf16* p) { return widen(load_as<typename VecOf<W>::H>(p)); }
template <int W> NICHE_INLINE vf<W> load_n(const float* p, int n) { return load_part(p, n, vf<W>{}); }
template <int W> NICHE_INLINE vf<W> load_n(const bf16* p, int n) {
  if constexpr (W == 8) return widen(load_part16(p, n));
#ifdef __AVX512F__
  else return widen(load_part16(p, n, 16));
#endif
}
template <class F> NICHE_INLINE void store(float* p, F v) { store_as(p, v); }
template <class F> NICHE_INLINE void store(bf16* p, F v) { store_as(p, narrow(v)); }
template <class F> NICHE_INLINE void store_n(float* p, F v, int n) { store_part(p, v, n); }
template <class F> NICHE_INLINE void store_n(bf16* p, F v, int n) { store_part16(p, narrow(v), n); }
// Two vectors of 2W consecutive elements, in an order of the type's own: bf16 are split into even and odd ones, which
// costs half of what widening in order does. Good for reductions, and where all operands are taken as pairs.
template <int W> struct Pair { vf<W> a, b; };
template <int W> NICHE_INLINE Pair<W> load2(const float* p) { return {load<W>(p), load<W>(p + W)}; }
template <int W> NICHE_INLINE Pair<W> widen_pair(typename VecOf<W>::U u) {
  return {(vf<W>)(u << 16), (vf<W>)(u & 0xffff0000u)};
}
template <int W> NICHE_INLINE Pair<W> load2(const bf16* p) { return widen_pair<W>(load_as<typename VecOf<W>::U>(p)); }
template <int W> NICHE_INLINE typename VecOf<W>::U narrow_pair(Pair<W> v) {
  typedef typename VecOf<W>::U U;
#if defined(__AVX512BF16__) && !defined(__clang__)
  if constexpr (W == 16) {
#if __GNUC__ >= 13
    const u16x32 r = (u16x32)__builtin_ia32_cvtne2ps2bf16_v32bf(v.b, v.a);
#else
    const u16x32 r = (u16x32)__builtin_ia32_cvtne2ps2bf16_v32hi(v.b, v.a);
#endif
    return (U)__builtin_shufflevector(r, r, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10,
                                      26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  }
#endif
  const U a = round_bf16(v.a) >> 16, b = round_bf16(v.b);
#ifdef __AVX2__
  if constexpr (W == 8) return (U)__builtin_ia32_pblendw256((i16x16)a, (i16x16)b, 0xaa);
#endif
  return a | (b & 0xffff0000u);
}
template <int W> NICHE_INLINE void store2(float* p, Pair<W> v) { store(p, v.a), store(p + W, v.b); }
template <int W> NICHE_INLINE void store2(bf16* p, Pair<W> v) { store_as(p, narrow_pair<W>(v)); }
// Past the caches; p aligned to the stored bytes.
template <class F> NICHE_INLINE void stream(float* p, F v) { stream_as(p, v); }
template <class F> NICHE_INLINE void stream(bf16* p, F v) { stream_as(p, narrow(v)); }
template <int W> NICHE_INLINE void stream2(float* p, Pair<W> v) { stream_as(p, v.a), stream_as(p + W, v.b); }
template <int W> NICHE_INLINE void stream2(bf16* p, Pair<W> v) { stream_as(p, narrow_pair<W>(v)); }
NICHE_INLINE float to_f32(float x) { return x; }
NICHE_INLINE float to_f32(bf16 x) {
  const unsigned u = (unsigned)x << 16;
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
NICHE_INLINE void from_f32(float* p, float x) { *p = x; }
NICHE_INLINE void from_f32(bf16* p, float x) {
  unsigned u;
  __builtin_memcpy(&u, &x, 4);
  *p = (bf16)(x != x ? 0x7fc0u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
NICHE_INLINE float sqrt1(float x) {
  const f32x4 v = __builtin_ia32_sqrtps(f32x4{x, 1, 1, 1});
  return v[0];
}

// One Newton step each: relative error 1.4e-7 (rcp14/rsqrt14: below 1 ulp). x finite, positive, not denormal.
template <class F> NICHE_INLINE F rcp(F x) {
  const F r = rcp_approx(x);
  return fma(r, fma(-x, r, F{} + 1.0f), r);
}
template <class F> NICHE_INLINE F rsqrt(F x) {
  const F r = rsqrt_approx(x);
  return fma(r * 0.5f, fma(-x * r, r, F{} + 1.0f), r);
}

template <int DEG, class F> NICHE_INLINE F exp2_frac(F f) {
  static_assert(DEG >= 3 && DEG <= 6);
  if constexpr (DEG == 3) {
    F p = fma(F{} + 0.0551716723f, f, F{} + 0.242611125f);
    p = fma(p, f, F{} + 0.693260968f);
    return fma(p, f, F{} + 0.999928057f);
  } else {
    constexpr float c[3][6] = {{0.69310534f, 0.240221679f, 0.0560057871f, 0.00967603736f},
                               {0.693147004f, 0.240222424f, 0.0555073358f, 0.00967151299f, 0.00132647296f},
                               {0.693147182f, 0.240226477f, 0.0555033237f, 0.00961843692f, 0.00133988739f,
                                0.00015353362f}};
    F p = F{} + c[DEG - 4][DEG - 1];
#pragma GCC unroll 8
    for (int i = DEG - 2; i >= 0; --i) p = fma(p, f, F{} + c[DEG - 4][i]);
    return fma(p, f, F{} + 1.0f);
  }
}
// How the power of two is applied: a multiplication, or an integer addition to the exponent (off the FMA pipes, but the
// result must be a normal number).
enum class Scale { kMultiply, kAddExponent };
// The core: e^(SIGN * x) for -88.02 <= SIGN * x <= 88.7 (2^n with n within [-127, 128]): 0 below -87.7, inf above 88.37;
// with kAddExponent for |x| <= 87.3. REST = false drops the rest of log2(e): the relative error grows by 1.4e-8 * |x|.
template <int DEG, bool REST = true, Scale HOW = Scale::kMultiply, int SIGN = 1, class F>
NICHE_INLINE F exp_core(F x) {
  typedef typename IntOf<F>::I I;
  constexpr bool kMul = HOW == Scale::kMultiply;
  // 1.5 * 2^23 (+ 127): the low bits of t become (the exponent field) n
  const F magic = F{} + (kMul ? 12583039.0f : 12582912.0f);
  const F t = fma(x, F{} + SIGN * 1.44269502f, magic);
  const F n = t - magic;
  F f = fma(x, F{} + SIGN * 1.44269502f, -n);
  if constexpr (REST) f = fma(x, F{} + SIGN * 1.92596303e-08f, f);
  const F p = exp2_frac<DEG>(f);
  if constexpr (kMul) return p * (F)((I)t << 23);
  else return (F)((I)p + ((I)t << 23));
}
// e^x for x <= 88: -inf gives 0, results below 2^-126 flush to 0, NaN stays.
template <int DEG = 6, bool REST = true, Scale HOW = Scale::kMultiply, class F> NICHE_INLINE F exp_nonpos(F x) {
  if constexpr (HOW == Scale::kMultiply) {
    return exp_core<DEG, REST>(vmax(F{} - 88.02f, x));
  } else {
    const F r = exp_core<DEG, REST, HOW>(vmax(F{} - 87.3f, x));
    return x < -87.3f ? F{} : r;
  }
}
// 2^x: 0 below -126.5, inf above 127.5, NaN stays. For e^(a b) hand it (a log2(e)) b: the rounding of that product
// costs 1.2e-7 |x| relative, which is 4.4e-8 of 1 at most where the result is below 1.
template <int DEG = 6, class F> NICHE_INLINE F exp2(F x) {
  typedef typename IntOf<F>::I I;
  x = vmin(F{} + 128.0f, vmax(F{} - 127.0f, x));
  const F magic = F{} + 12583039.0f, t = x + magic;
  return exp2_frac<DEG>(x - (t - magic)) * (F)((I)t << 23);
}
// e^x everywhere: inf above 88.72, gradual underflow.
template <int DEG = 6, class F> NICHE_INLINE F exp(F x) {
  typedef typename IntOf<F>::I I;
  x = vmin(F{} + 89.0f, vmax(F{} - 104.0f, x));
  const F magic = F{} + 12582912.0f;
  const F t = fma(x, F{} + 1.44269502f, magic);
  const F n = t - magic;
  const F f = fma(x, F{} + 1.92596303e-08f, fma(x, F{} + 1.44269502f, -n));
  const I k = (I)t - 0x4b400000, k1 = k >> 1;
  return exp2_frac<DEG>(f) * (F)((k1 + 127) << 23) * (F)((k - k1 + 127) << 23);
}
// 1 + e^-x with its extremes kept finite: divide by it, or multiply by rcp() of it.
template <int DEG = 6, bool REST = true, Scale HOW = Scale::kMultiply, class F> NICHE_INLINE F one_plus_exp_neg(F x) {
  return exp_core<DEG, REST, HOW, -1>(vmin(F{} + 86.0f, vmax(F{} - 86.0f, x))) + 1.0f;
}
template <int DEG = 6, class F> NICHE_INLINE F sigmoid(F x) { return 1.0f / one_plus_exp_neg<DEG>(x); }
template <class F> NICHE_INLINE F vabs(F x) { return (F)((typename IntOf<F>::U)x & 0x7fffffffu); }
template <class F> NICHE_INLINE F with_sign(F magnitude, F sign) {
  typedef typename IntOf<F>::U U;
  return (F)((U)magnitude | ((U)sign & 0x80000000u));
}
// erfc(|x|), absolute error 1.6e-8.
template <class F> NICHE_INLINE F erfc_abs(F x) {
  const F z = vmin(F{} + 4.0f, vabs(x));
  F q = F{} - 4.53582506e-05f;
  q = fma(q, z, F{} + 0.000445504789f);
  q = fma(q, z, F{} - 0.00148943241f);
  q = fma(q, z, F{} - 0.000774644781f);
  q = fma(q, z, F{} + 0.028253695f);
  q = fma(q, z, F{} - 0.148481622f);
  q = fma(q, z, F{} - 0.918416381f);
  q = fma(q, z, F{} - 1.62790859f) * z;  // log2(erfc(z))
  typedef typename IntOf<F>::I I;
  const F magic = F{} + 12583039.0f;
  const F t = q + magic;
  return exp2_frac<6>(q - (t - magic)) * (F)((I)t << 23);
}
template <class F> NICHE_INLINE F erf(F x) { return with_sign(1.0f - erfc_abs(x), x); }
// x / 2 erfc(-x / sqrt(2)). Where x is negative nothing cancels: rms_norm may scale what is left of a row by 1000.
template <class F> NICHE_INLINE F gelu(F x) {
  const F half = x * 0.5f, size = vabs(half);
  return half + size - vmin(F{} + 8.0f, size) * erfc_abs(x * 0.707106781f);
}
template <class F> NICHE_INLINE F tanh(F x) {
  const F a = vmin(F{} + 20.0f, vabs(x)), z = a * a;
  F s = fma(F{} - 0.00571704563f, z, F{} + 0.020650588f);
  s = fma(s, z, F{} - 0.0537434965f);
  s = fma(s, z, F{} + 0.133314908f);
  s = fma(s, z, F{} - 0.333332837f);
  s = fma(s * z, a, a);
  const F b = 1.0f - 2.0f / (exp_core<6>(a + a) + 1.0f);
  return with_sign(a < 0.625f ? s : b, x);
}
// log(1 + t) for 0 <= t <= 1.
template <class F> NICHE_INLINE F log1p_unit(F t) {
  F p = F{} - 0.0032440119f;
  p = fma(p, t, F{} + 0.0198513996f);
  p = fma(p, t, F{} - 0.056959413f);
  p = fma(p, t, F{} + 0.106036417f);
  p = fma(p, t, F{} - 0.153055847f);
  p = fma(p, t, F{} + 0.196759358f);
  p = fma(p, t, F{} - 0.249541327f);
  p = fma(p, t, F{} + 0.333299637f);
  p = fma(p, t, F{} - 0.499999017f);
  return fma(p * t, t, t);
}
// log(1 + e^x); x itself above 20, as torch does.
template <class F> NICHE_INLINE F softplus(F x) {
  const F s = vmax(F{}, x) + log1p_unit(exp_nonpos<6>(-vabs(x)));
  return x > 20.0f ? x : s;
}
}  // namespace nv
using namespace nv;
)niche";
  return kText;
}

}  // namespace niche::evolve
