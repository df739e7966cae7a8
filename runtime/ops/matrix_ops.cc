// optimized_fm (WuKong's factorisation machine) and pffn (InterFormer): chains of batched products.
#include <ATen/ops/add.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/gelu.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>

#include "runtime/ops/aten_op.h"
#include "runtime/ops/builtin_ops.h"
#include "runtime/ops/rms.h"
#include "runtime/ops/tolerances.h"

namespace niche::ops {
namespace {

using namespace niche::dispatch;
using enum ArgRole;
using enum AxisKind;

enum Axis { B, N, D, K };

double axis(const Problem& p, int i) { return static_cast<double>(p.axes[static_cast<size_t>(i)]); }

void bmm_into(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  if (out.defined())
    at::bmm_out(out, a, b);
  else
    out = at::bmm(a, b);
}

// --- optimized_fm: X Y out

AtenOp::Table fm_table() {
  AtenOp::Table t;
  t.schema = {"optimized_fm",
              {{"B", kVar}, {"N", kConst}, {"D", kConst}, {"K", kConst}},
              {{"X", kIn, "T", {B, N, D}}, {"Y", kIn, "T", {B, N, K}}, {"out", kOut, "T", {B, N, K}}},
              {},
              {"f32", "f16", "bf16"}};
  // The cheaper of the two associations: what the problem needs, not what one form spends.
  t.flops = [](const Problem& p) {
    const double as_written = 4 * axis(p, N) * axis(p, D) * axis(p, K);
    const double gram = 2 * axis(p, N) * axis(p, N) * (axis(p, D) + axis(p, K));
    return axis(p, B) * std::min(as_written, gram);
  };
  t.tolerance = [](const Definition& d) {
    return float_tolerance(
        d, 4, 0,
        "fp32: 4 times the library's error: the two associations round different sums, and where terms "
        "cancel "
        "either may err twice as much as the other; a tf32 downgrade errs some 1000 times as much");
  };
  t.distributions = shape_names();
  t.fill = [](const Problem&, int distribution, Rng& rng, std::span<const DLTensor> args) {
    for (size_t i = 0; i < 2; ++i) fill(args[i], static_cast<Shape>(distribution), rng);
  };
  t.reference = [](const Definition&, at::Tensor* t) {
    t[2].copy_(at::bmm(t[0], at::bmm(t[0].transpose(1, 2), t[1])));
  };
  t.forms = {{"X(X'Y)", [](const Definition&,
                           at::Tensor* t) { bmm_into(t[2], t[0], at::bmm(t[0].transpose(1, 2), t[1])); }},
             {"(XX')Y", [](const Definition&, at::Tensor* t) {
                bmm_into(t[2], at::bmm(t[0], t[0].transpose(1, 2)), t[1]);
              }}};
  return t;
}

// --- pffn: X W1 b1 W2 b2 y; weights are per sample

constexpr bool kAddbmm = true, kSeparateAdd = false;

// rms_norm(gelu(X W1 + b1)) W2 + b2, normalised again. The norms work in place where the form allows it.
template <bool kFusedBias, Rms kNorm>
void run_pffn(const Definition& d, at::Tensor* t) {
  const double eps = d.attrs()[0];
  at::Tensor h = kFusedBias ? at::baddbmm(t[2], t[0], t[1]) : at::bmm(t[0], t[1]).add_(t[2]);
  at::gelu_(h);
  if constexpr (kNorm == Rms::kLibrary) {
    at::Tensor n;
    rms_norm<kNorm>(n, h, {}, eps);
    h = std::move(n);
  } else {
    rms_norm<kNorm>(h, h, {}, eps);
  }
  at::Tensor o = kFusedBias ? at::baddbmm(t[4], h, t[3]) : at::bmm(h, t[3]).add_(t[4]);
  if constexpr (kNorm == Rms::kLibrary) {
    rms_norm<kNorm>(t[5], o, {}, eps);
  } else if (t[5].defined()) {
    rms_norm<kNorm>(t[5], o, {}, eps);
  } else {
    rms_norm<kNorm>(o, o, {}, eps);
    t[5] = std::move(o);
  }
}

AtenOp::Table pffn_table() {
  AtenOp::Table t;
  t.schema = {"pffn",
              {{"B", kVar}, {"N", kConst}, {"D", kConst}, {"K", kConst}},
              {{"X", kIn, "T", {B, N, D}},
               {"W1", kIn, "T", {B, D, K}},
               {"b1", kIn, "T", {K}, false, true},
               {"W2", kIn, "T", {B, K, D}},
               {"b2", kIn, "T", {D}, false, true},
               {"y", kOut, "T", {B, N, D}}},
              {{"eps", 1e-6, 0, 1}},
              {"f32", "f16", "bf16"}};
  t.flops = [](const Problem& p) {
    return axis(p, B) * axis(p, N) * (4 * axis(p, D) * axis(p, K) + 24 * axis(p, K) + 5 * axis(p, D));
  };
  t.tolerance = [](const Definition& d) {
    Tolerance tol = float_tolerance(d, 8, 0x1p-18,
                                    "fp32: 8 times the library's error: where a row's activations lie in "
                                    "GELU's negative tail the norm scales the "
                                    "rounding of whatever order the products were summed in by up to 1000, "
                                    "so one such row rules the maximum, and "
                                    "right programs differ there by some 3; floor 2^-18 because lane sums of "
                                    "a constant row drift where the library "
                                    "sums in a cascade; a tf32 downgrade errs some 1000 times as much");
    if (!same_dtype(d.dtype(), kF32)) {
      tol.factor = 3;
      tol.reason =
          "bf16, fp16: 3 times the library's error; library forms of the chain round to 16 bits five or six "
          "times and differ among themselves by that much";
    }
    return tol;
  };
  t.distributions = shape_names();
  t.fill = [](const Problem& p, int distribution, Rng& rng, std::span<const DLTensor> args) {
    // Weights as initialised (1 / sqrt of the fan-in); trouble in the activations and, milder, in the
    // weights.
    const auto shape = static_cast<Shape>(distribution);
    const double w1 = 1 / std::sqrt(axis(p, D)), w2 = 1 / std::sqrt(axis(p, K));
    fill(args[0], shape, rng);
    fill(args[1], shape == Shape::kExtremes ? Shape::kModel : shape, rng, w1, 0, w1);
    fill(args[2], Shape::kModel, rng, 1, 0, 0.1);
    fill(args[3], shape == Shape::kExtremes ? Shape::kModel : shape, rng, w2, 0, w2);
    fill(args[4], Shape::kModel, rng, 1, 0, 0.1);
  };
  t.reference = [](const Definition& d, at::Tensor* t) {
    const at::Tensor h = rms_norm_reference(at::gelu(at::bmm(t[0], t[1]) + t[2]), {}, d.attrs()[0]);
    t[5].copy_(rms_norm_reference(at::bmm(h, t[3]) + t[4], {}, d.attrs()[0]));
  };
  t.forms = {{"bmm,add;gelu;rms_norm",
              [](const Definition& d, at::Tensor* t) {
                at::Tensor h;
                rms_norm<Rms::kLibrary>(h, at::gelu(at::bmm(t[0], t[1]) + t[2]), {}, d.attrs()[0]);
                rms_norm<Rms::kLibrary>(t[5], at::bmm(h, t[3]) + t[4], {}, d.attrs()[0]);
              }},
             {"baddbmm;gelu_;rms_norm", run_pffn<kAddbmm, Rms::kLibrary>},
             {"baddbmm;gelu_;vector_norm,mul_", run_pffn<kAddbmm, Rms::kVectorNorm>},
             {"bmm,add_;gelu_;vector_norm,mul_", run_pffn<kSeparateAdd, Rms::kVectorNorm>},
             {"baddbmm;gelu_;pow,mean,mul_", run_pffn<kAddbmm, Rms::kPowMean>}};
  return t;
}

}  // namespace

void add_matrix_ops(OpList& ops) {
  ops.push_back(std::make_shared<AtenOp>(fm_table()));
  ops.push_back(std::make_shared<AtenOp>(pffn_table()));
}

}  // namespace niche::ops
