// rope: rotary position embedding: each pair of a head's elements is turned by an angle that its position and
// its place in the head give; cos and sin come from a table.
//
// A thread turns `vec` pairs of `heads` heads, so that cos and sin are read once for several heads. `vec`
// elements a load, `threads` a block, `persist` blocks a multiprocessor, cache hints. Not run yet.
#include <algorithm>

#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/families.h"

namespace niche::ops_cuda {
namespace {

constexpr std::string_view kBody = R"(
enum : int { HALF = D / 2, LANES = HALF / VEC, GROUPS = H / HEADS };

// u, v: VEC pairs: (u[j], v[j]) by halves; in PAIRS the 2 VEC values stand in order.
NI void turn(float* u, float* v, const float* c, const float* s) {
#pragma unroll
  for (int j = 0; j < VEC; ++j) {
    float* first = PAIRS ? (2 * j < VEC ? u + 2 * j : v + (2 * j - VEC)) : u + j;
    float* second = PAIRS ? (2 * j + 1 < VEC ? u + 2 * j + 1 : v + (2 * j + 1 - VEC)) : v + j;
    const float a = *first, b = *second;
    *first = fmaf(a, c[j], -(b * s[j]));
    *second = fmaf(b, c[j], a * s[j]);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) run(const __grid_constant__ Args a) {
  const T *x = (const T*)a.p[0], *table = (const T*)a.p[1];
  const i64* position = (const i64*)a.p[2];
  T* y = (T*)a.p[3];
  const i64 items = a.n[0] * (GROUPS * LANES);
  for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < items; i += (i64)gridDim.x * THREADS) {
    const int lane = (int)(i % LANES), group = (int)(i / LANES % GROUPS);
    const i64 token = i / (LANES * GROUPS);
    const T* angle = table + position[token] * D + lane * VEC;
    const i64 at = (token * H + group * HEADS) * D + (PAIRS ? 2 * lane * VEC : lane * VEC);
    enum : int { STEP = PAIRS ? VEC : HALF };
    Vec<T, VEC> first[HEADS], second[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
      first[h] = ld<LOAD, T, VEC>(x + at + h * D);
      second[h] = ld<LOAD, T, VEC>(x + at + h * D + STEP);
    }
    float c[VEC], s[VEC];
    unpack(ld_constant<T, VEC>(angle), c);
    unpack(ld_constant<T, VEC>(angle + HALF), s);
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
      float u[VEC], v[VEC];
      unpack(first[h], u);
      unpack(second[h], v);
      turn(u, v, c, s);
      st<STORE>(y + at + h * D, pack<T, VEC>(u));
      st<STORE>(y + at + h * D + STEP, pack<T, VEC>(v));
    }
  }
}
)";

class RopeFamily : public CudaSpaceFamily {
 public:
  RopeFamily()
      : CudaSpaceFamily("rope.flat", "rope",
                        {{"vec", {8, 4, 2, 1}},
                         {"heads", {1, 2, 4, 8}},
                         {"threads", {256, 128, 512, 64, 1024}},
                         {"persist", {0, 2, 4, 8, 16}},
                         {"load", {0, 1, 2}},
                         {"store", {0, 1}}}) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    const int64_t h = d.const_extents()[1], width = d.const_extents()[2];
    CudaKernelSource s;
    s.text = CudaSource()
                 .type("T", element(d))
                 .let("H", h)
                 .let("D", width)
                 .let("PAIRS", d.attr("interleaved") != 0)
                 .let("VEC", v["vec"])
                 .let("HEADS", v["heads"])
                 .let("THREADS", v["threads"])
                 .let("LOAD", v["load"])
                 .let("STORE", v["store"])
                 .body(kBody)
                 .take();
    dispatch::CudaPhase p;
    p.symbol = "run";
    // Threads that a token needs; the loop takes up what rounding leaves.
    const int64_t per_token = h / v["heads"] * (width / 2 / v["vec"]);
    if (per_token <= v["threads"])
      p.factors = {{0, v["threads"] / per_token}};
    else
      p.factors = {{0, 1}, {1, std::max<int64_t>(1, h * v["threads"] / per_token)}};
    p.threads = v["threads"];
    p.blocks_per_sm = v["persist"];
    s.plan.phases = {p};
    s.limits = any_problem(d, v["vec"] * element_bytes(d));
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const int bytes = v["vec"] * element_bytes(d);
    const int64_t h = d.const_extents()[1], width = d.const_extents()[2];
    if (bytes > 16 || width % 2 != 0 || width / 2 % v["vec"] != 0 || h % v["heads"] != 0) return false;
    if (v["heads"] * bytes > 64 || v["persist"] * v["threads"] > t.threads_per_sm) return false;
    return bytes == 16 || (v["load"] == 0 && v["store"] == 0);
  }
  std::vector<Settings> seed_points(const Definition& d, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (int vec : {16 / element_bytes(d), 4, 2, 1})
      for (int heads : {1, 2, 4})
        for (int threads : {256, 128, 512})
          s.push_back({{"vec", vec}, {"heads", heads}, {"threads", threads}});
    return s;
  }
};

}  // namespace

void add_rope_family(evolve::CudaFamilyRegistry& registry) { registry.add(std::make_shared<RopeFamily>()); }

}  // namespace niche::ops_cuda
