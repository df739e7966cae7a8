// The text that every CUDA source starts with: the one parameter (NicheCudaArgs), 16-bit types as bits with
// conversions in PTX (cuda_fp16.h would cost 0.3 s a compile), vectors of up to 16 bytes with cache hints,
// reductions over the threads of a row, mma.sync, cp.async and bulk copies.
#include "evolve/cuda_template_family.h"

namespace niche::evolve {

std::string_view cuda_preamble() {
  return R"(#define NI __device__ __forceinline__
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
struct Args {
  void* p[12];
  i64 n[12];
  void* ws;
  const void* packed;
  u32 blocks[4];
};
struct f16 { u16 bits; };
struct bf16 { u16 bits; };

// --- element types
template <class T> struct Two;  // two 16-bit elements in one word
template <> struct Two<f16> {
  static NI float2 unpack(u32 w) {
    float2 f;
    asm("{.reg .b16 lo, hi; mov.b32 {lo, hi}, %2; cvt.f32.f16 %0, lo; cvt.f32.f16 %1, hi;}"
        : "=f"(f.x), "=f"(f.y) : "r"(w));
    return f;
  }
  static NI u32 pack(float lo, float hi) {
    u32 w;
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(w) : "f"(lo), "f"(hi));
    return w;
  }
};
template <> struct Two<bf16> {
  static NI float2 unpack(u32 w) { return make_float2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u)); }
  static NI u32 pack(float lo, float hi) {
    u32 w;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(w) : "f"(lo), "f"(hi));
    return w;
  }
};
template <class T> NI float to_float(T v) { return Two<T>::unpack(v.bits).x; }
template <> NI float to_float<float>(float v) { return v; }
template <class T> NI T from_float(float v) { return {(u16)Two<T>::pack(v, 0.0f)}; }
template <> NI float from_float<float>(float v) { return v; }

// tanh within 2^-11: for values that are rounded to 16 bits afterwards.
NI float tanh_approx(float x) {
  float t;
  asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(x));
  return t;
}

// --- vectors of V elements: 2 to 16 bytes
template <class T, int V> struct Vec {
  enum : int { BYTES = V * (int)sizeof(T), WORDS = BYTES < 4 ? 1 : BYTES / 4 };
  u32 w[WORDS];
};
// HINT 0: plain; 1: read once (no L1); 2: evict first. STORE hint 1: streaming.
template <int HINT, class T, int V> NI Vec<T, V> ld(const T* p) {
  Vec<T, V> r;
  if constexpr (Vec<T, V>::BYTES == 2) r.w[0] = *(const u16*)p;
  else if constexpr (Vec<T, V>::BYTES == 4) r.w[0] = *(const u32*)p;
  else if constexpr (Vec<T, V>::BYTES == 8) {
    const uint2 q = *(const uint2*)p;
    r.w[0] = q.x, r.w[1] = q.y;
  } else if constexpr (HINT == 1) {
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.w[0]), "=r"(r.w[1]), "=r"(r.w[2]), "=r"(r.w[3]) : "l"(p));
  } else if constexpr (HINT == 2) {
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.w[0]), "=r"(r.w[1]), "=r"(r.w[2]), "=r"(r.w[3]) : "l"(p));
  } else {
    const uint4 q = *(const uint4*)p;
    r.w[0] = q.x, r.w[1] = q.y, r.w[2] = q.z, r.w[3] = q.w;
  }
  return r;
}
template <class T, int V> NI Vec<T, V> ld_constant(const T* p) {
  Vec<T, V> r;
  if constexpr (Vec<T, V>::BYTES == 2) r.w[0] = __ldg((const u16*)p);
  else if constexpr (Vec<T, V>::BYTES == 4) r.w[0] = __ldg((const u32*)p);
  else if constexpr (Vec<T, V>::BYTES == 8) {
    const uint2 q = __ldg((const uint2*)p);
    r.w[0] = q.x, r.w[1] = q.y;
  } else {
    const uint4 q = __ldg((const uint4*)p);
    r.w[0] = q.x, r.w[1] = q.y, r.w[2] = q.z, r.w[3] = q.w;
  }
  return r;
}
template <int HINT, class T, int V> NI void st(T* p, const Vec<T, V>& v) {
  if constexpr (Vec<T, V>::BYTES == 2) *(u16*)p = (u16)v.w[0];
  else if constexpr (Vec<T, V>::BYTES == 4) *(u32*)p = v.w[0];
  else if constexpr (Vec<T, V>::BYTES == 8) *(uint2*)p = make_uint2(v.w[0], v.w[1]);
  else if constexpr (HINT == 1)
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory");
  else *(uint4*)p = make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]);
}
template <class T, int V> NI void unpack(const Vec<T, V>& v, float* f) {
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < V; ++i) f[i] = __uint_as_float(v.w[i]);
  } else if constexpr (V == 1) {
    f[0] = Two<T>::unpack(v.w[0]).x;
  } else {
#pragma unroll
    for (int i = 0; i < V / 2; ++i) {
      const float2 q = Two<T>::unpack(v.w[i]);
      f[2 * i] = q.x, f[2 * i + 1] = q.y;
    }
  }
}
template <class T, int V> NI Vec<T, V> pack(const float* f) {
  Vec<T, V> v;
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < V; ++i) v.w[i] = __float_as_uint(f[i]);
  } else if constexpr (V == 1) {
    v.w[0] = Two<T>::pack(f[0], 0.0f);
  } else {
#pragma unroll
    for (int i = 0; i < V / 2; ++i) v.w[i] = Two<T>::pack(f[2 * i], f[2 * i + 1]);
  }
  return v;
}
// Keeps packed values packed: without it the compiler keeps the unpacked floats alive across a reduction.
template <class T, int V> NI void keep(Vec<T, V>& v) {
#pragma unroll
  for (int i = 0; i < Vec<T, V>::WORDS; ++i) asm volatile("" : "+r"(v.w[i]));
}

// --- reductions over the THREADS threads of a row; every thread of the block must call it
struct Sum { static NI float of(float a, float b) { return a + b; } };
struct Max { static NI float of(float a, float b) { return fmaxf(a, b); } };
template <class OP, int THREADS, int ROWS> NI float row_reduce(float v, float* scratch) {
#pragma unroll
  for (int d = (THREADS < 32 ? THREADS : 32) / 2; d > 0; d /= 2) v = OP::of(v, __shfl_xor_sync(~0u, v, d));
  if constexpr (THREADS > 32) {
    constexpr int WARPS = THREADS / 32;
    const int row = threadIdx.x / THREADS, warp = threadIdx.x % THREADS / 32;
    float* s = scratch + row * WARPS;
    if (threadIdx.x % 32 == 0) s[warp] = v;
    __syncthreads();
    v = s[0];
#pragma unroll
    for (int i = 1; i < WARPS; ++i) v = OP::of(v, s[i]);
  }
  return v;
}

// --- asynchronous copies
NI u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
NI void copy16_async(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
}
NI void copy16_async_or_zero(u32 to, const void* from, bool real) {
  const int bytes = real ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
}
NI void copy4_async_or_zero(u32 to, const void* from, bool real) {
  const int bytes = real ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
}
NI void copy8_async_or_zero(u32 to, const void* from, bool real) {
  const int bytes = real ? 8 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
}
NI void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> NI void copies_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory"); }
#if __CUDA_ARCH__ >= 900
NI void barrier_init(u32 bar, u32 count) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory"); }
NI void barrier_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
NI void barrier_arrive(u32 bar) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(bar) : "memory"); }
NI void barrier_wait(u32 bar, u32 parity) {
  asm volatile("{\n.reg .pred p;\nL_%=: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra L_%=;\n}"
               :: "r"(bar), "r"(parity) : "memory");
}
NI void bulk_load(u32 to, const void* from, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}
NI void bulk_store(void* to, u32 from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(to), "r"(from), "r"(bytes) : "memory");
}
NI void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int LEFT> NI void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(LEFT) : "memory"); }
NI void bulk_wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
NI void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
NI void dependents_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
NI void dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
NI void dependents_launch() {}
NI void dependency_wait() {}
#endif

// --- tensor cores: D(16x8) += A(16x16) B(16x8)
template <class T> NI void mma(float* d, const u32* a, u32 b0, u32 b1);
template <> NI void mma<f16>(float* d, const u32* a, u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> NI void mma<bf16>(float* d, const u32* a, u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// D(16x8) += A(16x8) B(8x8) of tf32: of each word of A and B the upper 19 bits; D in fp32, cut off instead of rounded.
// A fragment of A is what ldmatrix4 gives for rows of fp32: rows 0-7 and 8-15 of words 0-3, then of words 4-7.
NI void mma_tf32(float* d, const u32* a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
NI void ldmatrix4(u32* r, u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
NI void ldmatrix4_trans(u32* r, u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
NI void ldmatrix2_trans(u32* r, u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
}
)";
}

}  // namespace niche::evolve
