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

void let_epilogue(CudaSource& source, const Definition& d) {
  source.let("BIAS", d.attr("has_bias") != 0).let("ACTIVATION", static_cast<int64_t>(d.attr("activation")));
}

}  // namespace niche::ops_cuda
