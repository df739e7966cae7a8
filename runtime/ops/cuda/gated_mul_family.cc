// silu_mul (SwiGLU) and gelu_mul (GeGLU): y = gate function(gate) * up, element by element.
//
// Schedules: `vec` elements a load, `unroll` loads of each input in flight, `threads` a block, cache hints.
// An H200 runs silu_mul at 4.2 TB/s with 16-byte loads whatever else is chosen; evict-first hints lost there.
// gelu_mul's `erf` 0 takes tanh.approx of a 3-term fit (2.5e-5 from the exact function) instead of erff,
// whose some 25 instructions a value come close to what the memory leaves time for. Not run yet.
#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/families.h"

namespace niche::ops_cuda {
namespace {

constexpr std::string_view kSilu = R"(
// Below -87 __fdividef of an infinite exponential gives 0 as it should; fp32's bound wants the last bits of exp.
NI float gate_of(float x) { return EXACT ? x / (1.0f + expf(-x)) : __fdividef(x, 1.0f + __expf(-x)); }
)";

constexpr std::string_view kGelu = R"(
NI float gate_of(float x) {
  if constexpr (TANH) {
    const float u = 0.7978845608f * fmaf(0.044715f * x * x, x, x);
    return 0.5f * x * (1.0f + (EXACT ? tanhf(u) : tanh_approx(u)));
  } else if constexpr (ERF) {
    return 0.5f * x * (1.0f + erff(x * 0.7071067812f));
  } else {
    const float z = fminf(x * x, 36.0f);
    const float t = tanh_approx(x * fmaf(z, fmaf(z, -3.51517e-4f, 0.0370056506f), 0.79750788f));
    return fmaf(0.5f * x, t, 0.5f * x);
  }
}
)";

constexpr std::string_view kBody = R"(
extern "C" __global__ void __launch_bounds__(THREADS) run(const __grid_constant__ Args a) {
  const T *gate = (const T*)a.p[0], *up = (const T*)a.p[1];
  T* y = (T*)a.p[2];
  const i64 n = a.n[0] * N;
  const i64 step = (i64)THREADS * VEC;
  for (i64 base = (i64)blockIdx.x * step * UNROLL; base < n; base += (i64)gridDim.x * step * UNROLL) {
    const i64 at = base + threadIdx.x * VEC;
    Vec<T, VEC> g[UNROLL], u[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i)
      if (at + i * step < n) g[i] = ld<LOAD, T, VEC>(gate + at + i * step), u[i] = ld<LOAD, T, VEC>(up + at + i * step);
#pragma unroll
    for (int i = 0; i < UNROLL; ++i)
      if (at + i * step < n) {
        float f[VEC], h[VEC];
        unpack(g[i], f);
        unpack(u[i], h);
#pragma unroll
        for (int j = 0; j < VEC; ++j) f[j] = gate_of(f[j]) * h[j];
        st<STORE>(y + at + i * step, pack<T, VEC>(f));
      }
  }
}
)";

std::vector<Param> params_of(bool gelu) {
  std::vector<Param> params = {
      {"vec", {8, 4, 2, 1}},         {"unroll", {1, 2, 4, 8}}, {"threads", {256, 128, 512, 64, 1024}},
      {"persist", {0, 2, 4, 8, 16}}, {"load", {0, 1, 2}},      {"store", {0, 1}}};
  if (gelu) params.push_back({"erf", {1, 0}});
  return params;
}

class GatedMulFamily : public CudaSpaceFamily {
 public:
  explicit GatedMulFamily(bool gelu)
      : CudaSpaceFamily(gelu ? "gelu_mul.flat" : "silu_mul.flat", gelu ? "gelu_mul" : "silu_mul",
                        params_of(gelu)),
        gelu_(gelu) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    CudaKernelSource s;
    CudaSource text;
    if (gelu_) text.let("TANH", d.attr("tanh") != 0).let("ERF", v["erf"]);
    s.text = text.type("T", element(d))
                 .let("N", d.const_extents()[1])
                 .let("VEC", v["vec"])
                 .let("UNROLL", v["unroll"])
                 .let("THREADS", v["threads"])
                 .let("LOAD", v["load"])
                 .let("STORE", v["store"])
                 .let("EXACT", element_bytes(d) == 4)
                 .body(gelu_ ? kGelu : kSilu)
                 .body(kBody)
                 .take();
    dispatch::CudaPhase p;
    p.symbol = "run";
    // One factor an axis: rows of N elements are cut into pieces of a block, the last of a row included, so
    // the count may exceed what is needed by less than one block a row; the loop's bound ends those at once.
    const int64_t piece = int64_t{v["vec"]} * v["unroll"] * v["threads"], n = d.const_extents()[1];
    if (n >= piece)
      p.factors = {{0, 1}, {1, piece}};
    else
      p.factors = {{0, piece / n}};
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
    // fp32's bound wants the exact function; the tanh form has no erf to leave out.
    if (gelu_ && v["erf"] == 0 && (element_bytes(d) == 4 || d.attr("tanh") != 0)) return false;
    if (bytes > 16 || d.const_extents()[1] % v["vec"] != 0) return false;
    if (v["unroll"] * bytes > 64 || v["persist"] * v["threads"] > t.threads_per_sm) return false;
    return bytes == 16 || (v["load"] == 0 && v["store"] == 0);
  }
  std::vector<Settings> seed_points(const Definition& d, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (int vec : {16 / element_bytes(d), 4, 2, 1})
      for (int unroll : {1, 2, 4})
        for (int threads : {256, 128, 512})
          s.push_back({{"vec", vec}, {"unroll", unroll}, {"threads", threads}});
    if (!gelu_) return s;
    for (int unroll : {1, 2}) s.push_back({{"vec", 16 / element_bytes(d)}, {"unroll", unroll}, {"erf", 0}});
    return s;
  }

 private:
  const bool gelu_;
};

}  // namespace

void add_gated_mul_families(evolve::CudaFamilyRegistry& registry) {
  registry.add(std::make_shared<GatedMulFamily>(false));
  registry.add(std::make_shared<GatedMulFamily>(true));
}

}  // namespace niche::ops_cuda
