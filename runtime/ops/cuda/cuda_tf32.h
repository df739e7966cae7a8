// Text of fp32 products on tensor cores (3xTF32): each factor is split into two tf32 parts, v = hi + lo, and a product is
// hi*hi + hi*lo + lo*hi; what is left out is 2^-22 of it. The tensor core cuts its sums off instead of rounding them, so
// chains in it are kept short, the small products first or apart, and are added up in fp32. An infinite factor gives NaN.
#pragma once

#include <string_view>

namespace niche::ops_cuda {

// split(v, hi, lo): hi is rounded. split_fast<ROUND>(v, hi, lo): it is cut off where ROUND is 0, one instruction less, and
// lo loses up to two bits. For the preamble's mma_tf32.
std::string_view tf32_text();

}  // namespace niche::ops_cuda
