#include "runtime/ops/cuda/sdpa_decode_plan.h"

#include <algorithm>
#include <cmath>

namespace niche::ops_cuda::sdpa_decode {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{16} << 20;

}  // namespace

double scale_log2(const Definition& d) {
  const double scale =
      d.attr("scale") != 0 ? d.attr("scale") : 1 / std::sqrt(static_cast<double>(d.const_extents()[kD]));
  return scale * 1.4426950408889634;
}

void merge_splits(CudaKernelSource* s, const Definition& d, const CudaTarget& t, int split, int threads) {
  if (split == 1) return;
  const auto extents = d.const_extents();
  const int64_t bytes = extents[kHq] * split * (extents[kD] + 2) * 4;  // a sequence
  const int64_t most = std::clamp<int64_t>(kWorkspaceBytes / bytes, 1, 4096);
  s->limits.var[0].hi = most;
  s->plan.workspace_bytes = most * bytes;
  dispatch::CudaPhase merge;
  merge.symbol = "merge";
  merge.factors = {{kB, 1}, {kHq, 1}};
  merge.threads = threads;
  merge.overlap = t.capability >= 90;
  s->plan.phases.push_back(merge);
}

}  // namespace niche::ops_cuda::sdpa_decode
