// Over 100 lines of text for another compiler: one file, so that it can be read beside cuda_preamble.cc.
#include "tests/runtime/ops_cuda/host_preamble.h"

namespace niche::ops_cuda_test {

std::string_view host_preamble() {
  return R"(#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#define __device__
#define __forceinline__ inline
#define __global__ __attribute__((visibility("default")))
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static
#define __align__(n) alignas(n)
#define NI inline
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

namespace emulated {
struct Dim3 { unsigned x, y, z; };
struct Copy { unsigned char* to; const unsigned char* from; int bytes, real; };
struct Fiber {
  ucontext_t context;
  Dim3 index{};
  bool done = false;
  int warp = 0, lane = 0;
  std::vector<Copy> open;
  std::vector<std::vector<Copy>> groups;
  std::vector<char> stack;
};
struct Barrier { unsigned arrived = 0, turn = 0; };
struct Warp { Barrier barrier; unsigned lanes = 0; u64 slot[32][6]; };
inline std::vector<Fiber> fibers;
inline std::vector<Warp> warps;
inline Barrier block_barrier;
inline ucontext_t scheduler;
inline Fiber* current = nullptr;
inline Dim3 block_index{}, grid{}, block{};
inline u64 progress = 0;
inline void (*entry)(Args) = nullptr;
inline const Args* arguments = nullptr;
inline unsigned char anchor;

inline void yield() { swapcontext(&current->context, &scheduler); }
inline void wait(Barrier& b, unsigned count) {
  const unsigned turn = b.turn;
  if (++b.arrived == count) {
    b.arrived = 0, ++b.turn, ++progress;
    return;
  }
  while (b.turn == turn) yield();
}
inline Warp& warp() { return warps[(size_t)current->warp]; }
inline void wait_warp() { wait(warp().barrier, warp().lanes); }
inline void start() {
  entry(*arguments);
  current->done = true;
  ++progress;
  yield();
}
inline unsigned char* at(u32 address) { return &anchor + (int)address; }
inline void apply(std::vector<Copy>& group) {
  for (const Copy& c : group) {
    if (c.real > 0) std::memcpy(c.to, c.from, (size_t)c.real);
    std::memset(c.to + c.real, 0, (size_t)(c.bytes - c.real));
  }
}
inline void copy(u32 to, const void* from, int bytes, bool real) {
  if ((uintptr_t)at(to) % bytes != 0 || (uintptr_t)from % bytes != 0) __builtin_trap();  // as the instruction
  current->open.push_back({at(to), (const unsigned char*)from, bytes, real ? bytes : 0});
}
}  // namespace emulated

// One launch: 0, or 1 where threads wait for each other for ever.
extern "C" __attribute__((visibility("default"))) int emulated_launch(void (*entry)(Args), const Args* a, unsigned blocks,
                                                                      unsigned threads, int falling) {
  using namespace emulated;
  emulated::entry = entry, arguments = a;
  grid = {blocks, 1, 1}, block = {threads, 1, 1};
  fibers.resize(threads);
  for (unsigned b = 0; b < blocks; ++b) {
    block_index = {b, 0, 0};
    block_barrier = {};
    warps.assign((threads + 31) / 32, Warp());
    for (unsigned t = 0; t < threads; ++t) {
      Fiber& f = fibers[t];
      f.index = {t, 0, 0}, f.done = false, f.warp = (int)t / 32, f.lane = (int)t % 32;
      ++warps[t / 32].lanes;
      f.open.clear(), f.groups.clear();
      f.stack.resize(64 << 10);
      getcontext(&f.context);
      f.context.uc_stack.ss_sp = f.stack.data();
      f.context.uc_stack.ss_size = f.stack.size();
      f.context.uc_link = &scheduler;
      makecontext(&f.context, start, 0);
    }
    for (unsigned left = threads; left > 0;) {
      const u64 before = progress;
      left = 0;
      for (unsigned i = 0; i < threads; ++i) {
        Fiber& f = fibers[falling ? threads - 1 - i : i];
        if (f.done) continue;
        current = &f;
        swapcontext(&scheduler, &f.context);
        left += f.done ? 0 : 1;
      }
      if (left > 0 && progress == before) return 1;
    }
  }
  return 0;
}

#define threadIdx (emulated::current->index)
#define blockIdx emulated::block_index
#define gridDim emulated::grid
#define blockDim emulated::block
NI void __syncthreads() { emulated::wait(emulated::block_barrier, emulated::block.x); }
NI void __syncwarp(u32 = ~0u) { emulated::wait_warp(); }
template <class V> NI V __shfl_xor_sync(u32, V v, int d) {
  emulated::Warp& w = emulated::warp();
  std::memcpy(w.slot[emulated::current->lane], &v, sizeof v);
  emulated::wait_warp();
  std::memcpy(&v, w.slot[emulated::current->lane ^ d], sizeof v);
  emulated::wait_warp();
  return v;
}
struct float2 { float x, y; };
struct uint2 { u32 x, y; };
struct uint4 { u32 x, y, z, w; };
NI float2 make_float2(float x, float y) { return {x, y}; }
NI uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
NI uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
template <class V> NI V __ldg(const V* p) { return *p; }
NI u32 __float_as_uint(float f) { u32 u; std::memcpy(&u, &f, 4); return u; }
NI float __uint_as_float(u32 u) { float f; std::memcpy(&f, &u, 4); return f; }
NI float __expf(float x) { return std::exp(x); }
NI float __fdividef(float a, float b) { return a / b; }
NI float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
NI float tanh_approx(float x) { return std::tanh(x); }

struct f16 { u16 bits; };
struct bf16 { u16 bits; };
template <class T> NI float wide(u16 bits);
template <> NI float wide<f16>(u16 bits) { _Float16 h; std::memcpy(&h, &bits, 2); return (float)h; }
template <> NI float wide<bf16>(u16 bits) { return __uint_as_float((u32)bits << 16); }
template <class T> NI u16 narrow(float f);
template <> NI u16 narrow<f16>(float f) { const _Float16 h = (_Float16)f; u16 b; std::memcpy(&b, &h, 2); return b; }
template <> NI u16 narrow<bf16>(float f) {
  const u32 u = __float_as_uint(f);
  return f != f ? 0x7fff : (u16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
template <class T> struct Two {
  static NI float2 unpack(u32 w) { return {wide<T>((u16)w), wide<T>((u16)(w >> 16))}; }
  static NI u32 pack(float lo, float hi) { return narrow<T>(lo) | (u32)narrow<T>(hi) << 16; }
};
template <class T> NI float to_float(T v) { return wide<T>(v.bits); }
template <> NI float to_float<float>(float v) { return v; }
template <class T> NI T from_float(float v) { return {narrow<T>(v)}; }
template <> NI float from_float<float>(float v) { return v; }

template <class T, int V> struct Vec {
  enum : int { BYTES = V * (int)sizeof(T), WORDS = BYTES < 4 ? 1 : BYTES / 4 };
  u32 w[WORDS];
};
template <int HINT, class T, int V> NI Vec<T, V> ld(const T* p) {
  if ((uintptr_t)p % Vec<T, V>::BYTES != 0) __builtin_trap();
  Vec<T, V> r = {};
  std::memcpy(r.w, p, Vec<T, V>::BYTES);
  return r;
}
template <class T, int V> NI Vec<T, V> ld_constant(const T* p) { return ld<0, T, V>(p); }
template <int HINT, class T, int V> NI void st(T* p, const Vec<T, V>& v) {
  if ((uintptr_t)p % Vec<T, V>::BYTES != 0) __builtin_trap();
  std::memcpy((void*)p, v.w, Vec<T, V>::BYTES);
}
template <class T, int V> NI void unpack(const Vec<T, V>& v, float* f) {
  for (int i = 0; i < V; ++i)
    if constexpr (sizeof(T) == 4) f[i] = __uint_as_float(v.w[i]);
    else f[i] = i % 2 == 0 ? Two<T>::unpack(v.w[i / 2]).x : Two<T>::unpack(v.w[i / 2]).y;
}
template <class T, int V> NI Vec<T, V> pack(const float* f) {
  Vec<T, V> v = {};
  for (int i = 0; i < V; ++i)
    if constexpr (sizeof(T) == 4) v.w[i] = __float_as_uint(f[i]);
    else v.w[i / 2] |= (u32)narrow<T>(f[i]) << 16 * (i % 2);
  return v;
}
template <class T, int V> NI void keep(Vec<T, V>&) {}
struct Sum { static NI float of(float a, float b) { return a + b; } };
struct Max { static NI float of(float a, float b) { return fmaxf(a, b); } };
template <class OP, int THREADS, int ROWS> NI float row_reduce(float v, float* scratch) {
  for (int d = (THREADS < 32 ? THREADS : 32) / 2; d > 0; d /= 2) v = OP::of(v, __shfl_xor_sync(~0u, v, d));
  if constexpr (THREADS > 32) {
    constexpr int WARPS = THREADS / 32;
    float* s = scratch + threadIdx.x / THREADS * WARPS;
    if (threadIdx.x % 32 == 0) s[threadIdx.x % THREADS / 32] = v;
    __syncthreads();
    v = s[0];
    for (int i = 1; i < WARPS; ++i) v = OP::of(v, s[i]);
  }
  return v;
}

NI u32 shared_address(const void* p) { return (u32)(int)((const unsigned char*)p - &emulated::anchor); }
NI void copy16_async(u32 to, const void* from) { emulated::copy(to, from, 16, true); }
NI void copy16_async_or_zero(u32 to, const void* from, bool real) { emulated::copy(to, from, 16, real); }
NI void copy4_async_or_zero(u32 to, const void* from, bool real) { emulated::copy(to, from, 4, real); }
NI void copy8_async_or_zero(u32 to, const void* from, bool real) { emulated::copy(to, from, 8, real); }
NI void copies_commit() {
  emulated::current->groups.push_back(std::move(emulated::current->open));
  emulated::current->open.clear();
}
template <int LEFT> NI void copies_wait() {
  auto& groups = emulated::current->groups;
  while (groups.size() > LEFT) {
    emulated::apply(groups.front());
    groups.erase(groups.begin());
  }
}
NI void dependents_launch() {}
NI void dependency_wait() {}

template <class T> NI void mma(float* d, const u32* a, u32 b0, u32 b1) {
  emulated::Warp& w = emulated::warp();
  const int lane = emulated::current->lane, g = lane / 4, q = lane % 4;
  for (int i = 0; i < 4; ++i) w.slot[lane][i] = a[i];
  w.slot[lane][4] = b0, w.slot[lane][5] = b1;
  emulated::wait_warp();
  const auto half = [](u64 word, int odd) { return wide<T>((u16)(word >> 16 * odd)); };
  for (int e = 0; e < 4; ++e) {
    const int row = e / 2, column = q * 2 + e % 2;
    float sum = d[e];
    for (int k = 0; k < 16; ++k) {
      const int of = k % 8 / 2, upper = k / 8;
      sum += half(w.slot[g * 4 + of][row + 2 * upper], k % 2) * half(w.slot[column * 4 + of][4 + upper], k % 2);
    }
    d[e] = sum;
  }
  emulated::wait_warp();
}
// Products of tf32 are exact in fp32; sums are cut off at each step, as the tensor core does.
NI float toward_zero(double v) {
  const float f = (float)v;
  return std::fabs((double)f) > std::fabs(v) ? std::nextafter(f, 0.0f) : f;
}
NI void mma_tf32(float* d, const u32* a, u32 b0, u32 b1) {
  emulated::Warp& w = emulated::warp();
  const int lane = emulated::current->lane, g = lane / 4, q = lane % 4;
  for (int i = 0; i < 4; ++i) w.slot[lane][i] = a[i];
  w.slot[lane][4] = b0, w.slot[lane][5] = b1;
  emulated::wait_warp();
  const auto tf32 = [](u64 word) { return (double)__uint_as_float((u32)word & 0xffffe000u); };
  for (int e = 0; e < 4; ++e) {
    const int row = e / 2, column = q * 2 + e % 2;
    double sum = d[e];
    for (int k = 0; k < 8; ++k)
      sum += tf32(w.slot[g * 4 + k % 4][row + k / 4 * 2]) * tf32(w.slot[column * 4 + k % 4][4 + k / 4]);
    d[e] = toward_zero(sum);
  }
  emulated::wait_warp();
}
template <int COUNT, bool TRANS> NI void load_matrices(u32* r, u32 at) {
  emulated::Warp& w = emulated::warp();
  const int lane = emulated::current->lane, g = lane / 4, q = lane % 4;
  if ((uintptr_t)emulated::at(at) % 16 != 0) __builtin_trap();
  w.slot[lane][0] = at;
  emulated::wait_warp();
  for (int m = 0; m < COUNT; ++m) {
    u16 two[2];
    for (int j = 0; j < 2; ++j) {
      const int row = TRANS ? q * 2 + j : g, column = TRANS ? g : q * 2 + j;
      std::memcpy(&two[j], emulated::at((u32)w.slot[m * 8 + row][0]) + column * 2, 2);
    }
    r[m] = two[0] | (u32)two[1] << 16;
  }
  emulated::wait_warp();
}
NI void ldmatrix4(u32* r, u32 at) { load_matrices<4, false>(r, at); }
NI void ldmatrix4_trans(u32* r, u32 at) { load_matrices<4, true>(r, at); }
NI void ldmatrix2_trans(u32* r, u32 at) { load_matrices<2, true>(r, at); }
)";
}

}  // namespace niche::ops_cuda_test
