#include "runtime/ops/cuda/linear_text.h"

namespace niche::ops_cuda {

std::string_view linear_epilogue() {
  return R"(
NI float finish(float v, const T* bias, int row) {
  if constexpr (BIAS) v += to_float(bias[row]);
  if constexpr (ACTIVATION == 1) return fmaxf(v, 0.0f);
  if constexpr (ACTIVATION == 2) return 0.5f * v * (1.0f + erff(v * 0.7071067812f));
  if constexpr (ACTIVATION == 3) return v / (1.0f + expf(-v));
  return v;
}
)";
}

std::string_view linear_add_up() {
  return R"(
// Adds up what the blocks of a tile left; one group of tokens.
extern "C" __global__ void __launch_bounds__(256) add_up(const __grid_constant__ Args a) {
  const i64 count = a.n[0] * N;
  dependency_wait();
  for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < count; i += (i64)gridDim.x * 256) {
    float v = 0;
#pragma unroll
    for (int p = 0; p < SPLIT; ++p) v += ((const float*)a.ws)[(i64)p * COLS * N + i];
    ((T*)a.p[3])[i] = from_float<T>(finish(v, (const T*)a.p[2], (int)(i % N)));
  }
}
)";
}

void let_epilogue(CudaSource& source, const Definition& d) {
  source.let("BIAS", d.attr("has_bias") != 0).let("ACTIVATION", static_cast<int64_t>(d.attr("activation")));
}

void plan_tiles(CudaKernelSource* s, const Definition& d, const CudaTarget& t, const LinearTile& tile) {
  const int64_t n = d.const_extents()[1], k = d.const_extents()[2];
  dispatch::CudaPhase run;
  run.symbol = "run";
  run.factors = {{0, tile.columns}, {1, tile.rows}, {2, k / tile.split}};
  run.threads = tile.threads;
  run.shared_bytes = tile.shared_bytes;
  s->plan.phases = {run};
  s->limits = any_problem(d, 16);
  s->limits.var[0].hi = 1024;
  if (tile.split == 1) return;
  s->limits.var[0].hi = tile.columns;  // what the workspace has room for
  s->plan.workspace_bytes = int64_t{tile.split} * tile.columns * n * 4;
  dispatch::CudaPhase add;
  add.symbol = "add_up";
  add.factors = {{0, 1}, {1, 256}};
  add.overlap = t.capability >= 90;
  s->plan.phases.push_back(add);
}

}  // namespace niche::ops_cuda
