#include "runtime/ops/cuda/cuda_tf32.h"

namespace niche::ops_cuda {

std::string_view tf32_text() {
  return R"(
NI void split(float v, u32& hi, u32& lo) {
  hi = (__float_as_uint(v) + 0x1000u) & 0xffffe000u;
  lo = __float_as_uint(v - __uint_as_float(hi));
}
template <int ROUND> NI void split_fast(float v, u32& hi, u32& lo) {
  if constexpr (ROUND) return split(v, hi, lo);
  hi = __float_as_uint(v) & 0xffffe000u;
  lo = __float_as_uint(v - __uint_as_float(hi));
}
)";
}

}  // namespace niche::ops_cuda
