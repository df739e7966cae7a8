#include "runtime/ops/rms.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/TensorOperators.h>

#include "runtime/ops/aten_op.h"

namespace niche::ops {
namespace {

// 1 / rms as fp32, one value a row.
at::Tensor inverse_rms(const at::Tensor& x, double eps, bool vector_norm) {
  if (vector_norm)
    return at::linalg_vector_norm(x, 2, at::IntArrayRef{-1}, true, at::kFloat)
        .square_()
        .mul_(1.0 / static_cast<double>(x.size(-1)))
        .add_(eps)
        .rsqrt_();
  return x.pow(2).mean(at::IntArrayRef{-1}, true).add_(eps).rsqrt_();
}

// y = x * r * weight, with r one value a row.
void scale(at::Tensor& y, const at::Tensor& x, const at::Tensor& r, const at::Tensor& weight) {
  if (x.scalar_type() == r.scalar_type()) {
    if (y.defined())
      at::mul_out(y, x, r);
    else
      y = at::mul(x, r);
    if (weight.defined()) y.mul_(weight);
    return;
  }
  // 16-bit values and an fp32 factor: the first product is fp32, the second is rounded once into y.
  if (!y.defined()) y = at::empty_like(x);
  if (weight.defined())
    at::mul_out(y, at::mul(x, r), weight);
  else
    at::mul_out(y, x, r);
}

}  // namespace

template <Rms kForm>
void rms_norm(at::Tensor& y, const at::Tensor& x, const at::Tensor& weight, double eps) {
  if constexpr (kForm == Rms::kLibrary) {
    put(y, at::rms_norm(x, {x.size(-1)}, weight.defined() ? std::optional(weight) : std::nullopt, eps));
  } else if constexpr (kForm == Rms::kPowMean) {
    if (x.scalar_type() == at::kFloat) {
      scale(y, x, inverse_rms(x, eps, false), weight);
    } else {  // squares rounded to 16 bits would lose the mean
      const at::Tensor wide = x.to(at::kFloat);
      if (!y.defined()) y = at::empty_like(x);
      const at::Tensor r = inverse_rms(wide, eps, false);
      if (weight.defined())
        at::mul_out(y, wide.mul_(r), weight);
      else
        at::mul_out(y, wide, r);
    }
  } else {
    scale(y, x, inverse_rms(x, eps, true), weight);
  }
}

template void rms_norm<Rms::kLibrary>(at::Tensor&, const at::Tensor&, const at::Tensor&, double);
template void rms_norm<Rms::kVectorNorm>(at::Tensor&, const at::Tensor&, const at::Tensor&, double);
template void rms_norm<Rms::kPowMean>(at::Tensor&, const at::Tensor&, const at::Tensor&, double);

at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double eps) {
  at::Tensor y = x * (x * x).mean(at::IntArrayRef{-1}, true).add_(eps).rsqrt_();
  return weight.defined() ? y.mul_(weight) : y;
}

}  // namespace niche::ops
