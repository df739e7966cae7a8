// linear by dot products: y[m, n] = activation(x[m, :] . weight[n, :] + bias[n]) for a few rows of x: every
// weight is read once, and reading the weights is all that it costs.
//
// A team of `warps` warps works on `rows` rows of the weight and `tokens` rows of x, 16 bytes a lane and
// load, `unroll` loads of each row in flight. On an H200 a prototype with four warps a row read 1x4096x4096
// bf16 at the speed of a plain read (9.5 us); one warp a row took 11.1. x is small and comes from the caches.
// Not run yet.
#include <algorithm>

#include "runtime/ops/cuda/families.h"
#include "runtime/ops/cuda/linear_text.h"

namespace niche::ops_cuda {
namespace {

constexpr std::string_view kBody = R"(
enum : int { TEAM = WARPS * 32, TEAMS = THREADS / TEAM, SPAN = TEAM * VEC, PER_BLOCK = TEAMS * ROWS };

extern "C" __global__ void __launch_bounds__(THREADS) run(const __grid_constant__ Args a) {
  const T *x = (const T*)a.p[0], *weight = (const T*)a.p[1], *bias = (const T*)a.p[2];
  T* y = (T*)a.p[3];
  const i64 m = a.n[0];
  const i64 token_groups = (m + TOKENS - 1) / TOKENS, jobs = token_groups * ((N + PER_BLOCK - 1) / PER_BLOCK);
  const int team = threadIdx.x / TEAM, lane = threadIdx.x % TEAM;
  for (i64 job = blockIdx.x; job < jobs; job += gridDim.x) {
    const i64 token = job % token_groups * TOKENS;
    const int row = (int)(job / token_groups) * PER_BLOCK + team * ROWS;
    float sum[ROWS][TOKENS] = {};
    const T *w[ROWS], *t[TOKENS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) w[r] = weight + (i64)(row + r < N ? row + r : N - 1) * K;
#pragma unroll
    for (int i = 0; i < TOKENS; ++i) t[i] = x + (token + i < m ? token + i : m - 1) * K;
    for (int k = lane * VEC; k < K; k += SPAN * UNROLL) {
      Vec<T, VEC> wv[UNROLL][ROWS];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u)
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
          if (k + u * SPAN < K) wv[u][r] = ld<LOAD, T, VEC>(w[r] + k + u * SPAN);
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        if (k + u * SPAN >= K) continue;
        float f[ROWS][VEC];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) unpack(wv[u][r], f[r]);
#pragma unroll
        for (int i = 0; i < TOKENS; ++i) {
          float g[VEC];
          unpack(ld_constant<T, VEC>(t[i] + k + u * SPAN), g);
#pragma unroll
          for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int j = 0; j < VEC; ++j) sum[r][i] = fmaf(f[r][j], g[j], sum[r][i]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int i = 0; i < TOKENS; ++i)
#pragma unroll
        for (int d = 16; d > 0; d /= 2) sum[r][i] += __shfl_xor_sync(~0u, sum[r][i], d);
    if constexpr (WARPS > 1) {
      __shared__ float parts[THREADS / 32][ROWS * TOKENS];
      __syncthreads();
      if (threadIdx.x % 32 == 0)
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
          for (int i = 0; i < TOKENS; ++i) parts[threadIdx.x / 32][r * TOKENS + i] = sum[r][i];
      __syncthreads();
      for (int o = lane; o < ROWS * TOKENS; o += TEAM) {
        float v = 0;
#pragma unroll
        for (int p = 0; p < WARPS; ++p) v += parts[team * WARPS + p][o];
        const int r = row + o / TOKENS;
        const i64 i = token + o % TOKENS;
        if (r < N && i < m) y[i * N + r] = from_float<T>(finish(v, bias, r));
      }
    } else {
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int i = 0; i < TOKENS; ++i)
          if (lane == (r * TOKENS + i) % 32 && row + r < N && token + i < m)
            y[(token + i) * N + row + r] = from_float<T>(finish(sum[r][i], bias, row + r));
    }
  }
}
)";

class LinearRowsFamily : public CudaSpaceFamily {
 public:
  LinearRowsFamily()
      : CudaSpaceFamily("linear.rows", "linear",
                        {{"vec", {8, 4, 2, 1}},
                         {"warps", {4, 2, 1, 8}},
                         {"rows", {1, 2, 4}},
                         {"tokens", {1, 2, 4, 8}},
                         {"unroll", {4, 2, 1, 8}},
                         {"threads", {128, 256, 512}},
                         {"persist", {0, 2, 4, 8}},
                         {"load", {1, 0, 2}}}) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    CudaKernelSource s;
    CudaSource text;
    let_epilogue(text, d);
    s.text = text.type("T", element(d))
                 .let("N", d.const_extents()[1])
                 .let("K", d.const_extents()[2])
                 .let("VEC", v["vec"])
                 .let("WARPS", v["warps"])
                 .let("ROWS", v["rows"])
                 .let("TOKENS", v["tokens"])
                 .let("UNROLL", v["unroll"])
                 .let("THREADS", v["threads"])
                 .let("LOAD", v["load"])
                 .body(linear_epilogue())
                 .body(kBody)
                 .take();
    dispatch::CudaPhase p;
    p.symbol = "run";
    p.factors = {{0, v["tokens"]}, {1, int64_t{v["threads"]} / (v["warps"] * 32) * v["rows"]}};
    p.threads = v["threads"];
    p.blocks_per_sm = v["persist"];
    s.plan.phases = {p};
    s.limits = any_problem(d, v["vec"] * element_bytes(d));
    s.limits.var[0].hi = 1024;  // beyond, the weights' rereading costs what a tensor core would save
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const int bytes = v["vec"] * element_bytes(d);
    const int64_t k = d.const_extents()[2];
    if (bytes > 16 || k % v["vec"] != 0 || v["threads"] % (v["warps"] * 32) != 0) return false;
    if (v["rows"] * v["tokens"] > 16 || v["rows"] * v["unroll"] * bytes > 128) return false;
    if (v["warps"] * 32 * v["vec"] > 2 * k || v["persist"] * v["threads"] > t.threads_per_sm) return false;
    return bytes == 16 || v["load"] == 0;
  }
  std::vector<Settings> seed_points(const Definition& d, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (int vec : {16 / element_bytes(d), 4, 2, 1})
      for (int tokens : {1, 4, 8})
        for (int warps : {4, 2, 1, 8})
          for (int rows : {1, 2})
            s.push_back({{"vec", vec},
                         {"tokens", tokens},
                         {"warps", warps},
                         {"rows", rows},
                         {"threads", std::max(128, warps * 32)},
                         {"load", vec * element_bytes(d) == 16 ? 1 : 0}});
    return s;
  }
};

}  // namespace

void add_linear_rows_family(evolve::CudaFamilyRegistry& registry) {
  registry.add(std::make_shared<LinearRowsFamily>());
}

}  // namespace niche::ops_cuda
