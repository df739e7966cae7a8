// Root-mean-square normalisation in the forms a libtorch user can compose, shared by every operator that ends
// in one.
//
// at::rms_norm has no fused CPU kernel (pow, mean, add, rsqrt, two products, and two copies for bf16), so
// compositions with fewer passes are the bar: see docs/operators.md.
#pragma once

#include <ATen/core/Tensor.h>

namespace niche::ops {

enum class Rms {
  kLibrary,     // at::rms_norm
  kVectorNorm,  // linalg_vector_norm, then two products, the second in place
  kPowMean,     // x*x, mean, two products in place
};

// y = x * rsqrt(mean(x^2 over the last axis) + eps) * weight; no weight when undefined. y is assigned when
// undefined; y may be x itself.
template <Rms kForm>
void rms_norm(at::Tensor& y, const at::Tensor& x, const at::Tensor& weight, double eps);

// The same in the type of x, for references.
at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace niche::ops
