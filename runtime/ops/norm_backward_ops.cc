// rms_norm_backward: dx = r (w dy) - x r^3 / N sum(w dy x); dw = sum over rows of dy x r. rstd is fp32
// whatever T is.
//
// aten::_fused_rms_norm_backward has a CUDA kernel alone (libtorch 2.11), so the CPU's library forms are
// compositions.
#include <ATen/ops/_fused_rms_norm_backward.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/sum.h>
#include <ATen/TensorOperators.h>

#include <cmath>

#include "runtime/ops/aten_op.h"
#include "runtime/ops/builtin_ops.h"
#include "runtime/ops/tolerances.h"

namespace niche::ops {
namespace {

using namespace niche::dispatch;
using enum ArgRole;
using enum AxisKind;

enum Arg { kDy, kX, kWeight, kRstd, kDx, kDw };

// Products are fp32 in every form; for fp32 tensors these are the tensors themselves.
at::Tensor wide(const at::Tensor& v) { return v.scalar_type() == at::kDouble ? v : v.to(at::kFloat); }
void put_narrow(at::Tensor& out, at::Tensor&& result, at::ScalarType type) {
  if (out.defined() || result.scalar_type() == type)
    put(out, std::move(result));
  else
    out = result.to(type);
}

// What autograd makes of x * rstd * weight, with its temporaries; on a GPU, the kernel that autograd calls there.
void run_composite(const Definition&, at::Tensor* t) {
  if (t[kX].is_cuda() && t[kX].scalar_type() != at::kDouble) {
    auto [dx, dw] = at::_fused_rms_norm_backward(t[kDy], t[kX], {t[kX].size(-1)}, t[kRstd].unsqueeze(-1),
                                                 t[kWeight], {true, true});
    put(t[kDx], std::move(dx));
    put(t[kDw], std::move(dw));
    return;
  }
  const at::Tensor dy = wide(t[kDy]), r = t[kRstd].unsqueeze(-1);
  const at::Tensor normalised = wide(t[kX]) * r;
  const at::Tensor g = dy * wide(t[kWeight]);
  at::Tensor dx = (g - normalised * (g * normalised).mean(at::IntArrayRef{-1}, true)) * r;
  at::Tensor dw = (dy * normalised).flatten(0, -2).sum(at::IntArrayRef{0});
  put_narrow(t[kDx], std::move(dx), t[kX].scalar_type());
  put_narrow(t[kDw], std::move(dw), t[kX].scalar_type());
}

// One product dy * x serves both sums; `kMatrixVector`: as matrix-vector products, which need no temporary.
template <bool kMatrixVector>
void run_formula(const Definition&, at::Tensor* t) {
  const at::Tensor dy = wide(t[kDy]), x = wide(t[kX]), w = wide(t[kWeight]), r = t[kRstd].unsqueeze(-1);
  const at::Tensor product = dy * x;
  at::Tensor coefficient, dw;
  if constexpr (kMatrixVector) {
    const at::Tensor rows = product.flatten(0, -2);
    coefficient = at::mv(rows, w).view(r.sizes());
    dw = at::mv(rows.t(), r.flatten());
  } else {
    coefficient = (product * w).sum(at::IntArrayRef{-1}, true);
    dw = (product * r).flatten(0, -2).sum(at::IntArrayRef{0});
  }
  coefficient.mul_(r).mul_(r).mul_(r).mul_(1.0 / static_cast<double>(x.size(-1)));
  at::Tensor dx;
  if (t[kDx].defined() && t[kDx].scalar_type() == x.scalar_type())
    dx = at::mul_out(t[kDx], dy, w);
  else
    dx = dy * w;
  dx.mul_(r).addcmul_(x, coefficient, -1);
  if (!dx.is_same(t[kDx])) put_narrow(t[kDx], std::move(dx), t[kX].scalar_type());
  put_narrow(t[kDw], std::move(dw), t[kX].scalar_type());
}

AtenOp::Table table() {
  AtenOp::Table t;
  t.schema = {"rms_norm_backward",
              {{"M", kVar}, {"N", kConst}},
              {{"dy", kIn, "T", {0, 1}},
               {"x", kIn, "T", {0, 1}},
               {"weight", kIn, "T", {1}, false, true},
               {"rstd", kIn, "f32", {0}},
               {"dx", kOut, "T", {0, 1}},
               {"dw", kOut, "T", {1}}},
              {},
              {"f32", "f16", "bf16"}};
  t.flops = [](const Problem& p) {
    return 10 * static_cast<double>(p.axes[0]) * static_cast<double>(p.axes[1]);
  };
  t.tolerance = [](const Definition& d) {
    return float_tolerance(d, 16, 0x1p-16,
                           "fp32: 16 times the library's error: dw adds M rows one after another (23 ulp at "
                           "M=130 where the signs agree; "
                           "at::mv does the same) while the composite sums in a cascade; floor 2^-16 for "
                           "lane sums on rows with one "
                           "outlier, as for rms_norm; a tf32 downgrade errs some 1000 times as much");
  };
  t.distributions = shape_names();
  t.fill = [](const Problem& p, int distribution, Rng& rng, std::span<const DLTensor> args) {
    const auto shape = static_cast<Shape>(distribution);
    fill(args[kDy], shape == Shape::kExtremes ? Shape::kModel : shape, rng);
    fill(args[kX], shape, rng);
    fill(args[kWeight], Shape::kModel, rng, 1, 1, 0.1);
    const int64_t rows = p.axes[0], width = p.axes[1];
    for (int64_t m = 0; m < rows; ++m) {  // what the forward pass saved for this x
      double squares = 0;
      for (int64_t n = 0; n < width; ++n) {
        const double v = load(args[kX], m * width + n);
        squares += v * v;
      }
      store(args[kRstd], m, 1 / std::sqrt(squares / static_cast<double>(width) + 1e-6));
    }
  };
  t.reference = run_composite;
  t.forms = {
      {"composite", run_composite}, {"formula,sum", run_formula<false>}, {"formula,mv", run_formula<true>}};
  return t;
}

}  // namespace

void add_norm_backward_ops(OpList& ops) { ops.push_back(std::make_shared<AtenOp>(table())); }

}  // namespace niche::ops
