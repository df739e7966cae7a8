// rms_norm, fused_add_rms_norm (both forms), layer_norm: normalisation over the last axis.
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/TensorOperators.h>

#include "runtime/ops/aten_op.h"
#include "runtime/ops/builtin_ops.h"
#include "runtime/ops/rms.h"
#include "runtime/ops/tensors.h"
#include "runtime/ops/tolerances.h"

namespace niche::ops {
namespace {

using namespace niche::dispatch;
using enum ArgRole;
using enum AxisKind;

// Results are of order 1, up to sqrt(N) on a row with one outlier. Where the terms are alike (constant rows)
// or one dominates, the partial sums of one SIMD lane drift the same way at each of N/32 steps:
// at::linalg_vector_norm errs by 12 ulp at N=4096 where at::mean, which sums in a cascade, errs by 2.
constexpr double kNormFloor = 0x1p-16;
constexpr const char* kNormReason =
    "fp32: twice the library's error; floor 2^-16 (results up to 2^5) because plain lane sums drift by some "
    "N/256 ulp "
    "on constant or outlier rows where the library sums in a cascade; a tf32 or bf16 downgrade errs by 2^-11";

Tolerance norm_tolerance(const Definition& d) { return float_tolerance(d, 2, kNormFloor, kNormReason); }

double eps(const Definition& d) { return d.attrs()[0]; }
double elements_mn(const Problem& p) {
  return static_cast<double>(p.axes[0]) * static_cast<double>(p.axes[1]);
}

// Weights are near 1, as trained ones are; the shapes of trouble are for the activations.
void fill_norm(const Problem& p, int distribution, Rng& rng, std::span<const DLTensor> args) {
  const auto& schema = p.definition->schema();
  for (size_t i = 0; i < schema.args.size() && i < args.size(); ++i) {
    if (schema.args[i].role == kOut) continue;
    if (schema.args[i].constant)
      fill(args[i], Shape::kModel, rng, 1, schema.args[i].name == "bias" ? 0 : 1, 0.1);
    else
      fill(args[i], static_cast<Shape>(distribution), rng);
  }
}

// --- rms_norm: x weight y

template <Rms kForm>
void run_rms_norm(const Definition& d, at::Tensor* t) {
  rms_norm<kForm>(t[2], t[0], t[1], eps(d));
}

AtenOp::Table rms_norm_table() {
  AtenOp::Table t;
  t.schema = {"rms_norm",
              {{"M", kVar}, {"N", kConst}},
              {{"x", kIn, "T", {0, 1}}, {"weight", kIn, "T", {1}, false, true}, {"y", kOut, "T", {0, 1}}},
              {{"eps", 1e-6, 0, 1}},
              {"f32", "f16", "bf16"}};
  t.flops = [](const Problem& p) { return 4 * elements_mn(p); };
  t.tolerance = norm_tolerance;
  t.distributions = shape_names();
  t.fill = fill_norm;
  t.reference = [](const Definition& d, at::Tensor* t) {
    t[2].copy_(rms_norm_reference(t[0], t[1], eps(d)));
  };
  t.forms = {{"rms_norm", run_rms_norm<Rms::kLibrary>},
             {"vector_norm,mul_", run_rms_norm<Rms::kVectorNorm>},
             {"pow,mean,mul_", run_rms_norm<Rms::kPowMean>}};
  return t;
}

// --- fused_add_rms_norm: x residual weight y residual_out

template <Rms kForm>
void run_add_rms_norm(const Definition& d, at::Tensor* t) {
  if (t[4].defined())
    at::add_out(t[4], t[0], t[1]);
  else
    t[4] = at::add(t[0], t[1]);
  rms_norm<kForm>(t[3], t[4], t[2], eps(d));
}

// x + residual as the operator defines it: rounded to the element type before it is normalised.
at::Tensor rounded_sum(const Definition& d, const at::Tensor& a, const at::Tensor& b) {
  return (a + b).to(scalar_type(d.dtype())).to(at::kDouble);
}

AtenOp::Table add_rms_norm_table() {
  AtenOp::Table t;
  t.schema = {"fused_add_rms_norm",
              {{"M", kVar}, {"N", kConst}},
              {{"x", kIn, "T", {0, 1}},
               {"residual", kIn, "T", {0, 1}},
               {"weight", kIn, "T", {1}, false, true},
               {"y", kOut, "T", {0, 1}},
               {"residual_out", kOut, "T", {0, 1}}},
              {{"eps", 1e-6, 0, 1}},
              {"f32", "f16", "bf16"}};
  t.flops = [](const Problem& p) { return 5 * elements_mn(p); };
  t.tolerance = norm_tolerance;
  t.distributions = shape_names();
  t.fill = fill_norm;
  t.reference = [](const Definition& d, at::Tensor* t) {
    t[4].copy_(rounded_sum(d, t[0], t[1]));
    t[3].copy_(rms_norm_reference(t[4], t[2], eps(d)));
  };
  t.forms = {{"add;rms_norm", run_add_rms_norm<Rms::kLibrary>},
             {"add;vector_norm,mul_", run_add_rms_norm<Rms::kVectorNorm>},
             {"add;pow,mean,mul_", run_add_rms_norm<Rms::kPowMean>}};
  return t;
}

// --- fused_add_rms_norm_inplace: weight x residual; the form serving engines use

template <Rms kForm>
void run_add_rms_norm_inplace(const Definition& d, at::Tensor* t) {
  t[2].add_(t[1]);
  rms_norm<kForm>(t[1], t[2], t[0], eps(d));
}

AtenOp::Table add_rms_norm_inplace_table() {
  AtenOp::Table t;
  t.schema = {
      "fused_add_rms_norm_inplace",
      {{"M", kVar}, {"N", kConst}},
      {{"weight", kIn, "T", {1}, false, true}, {"x", kInOut, "T", {0, 1}}, {"residual", kInOut, "T", {0, 1}}},
      {{"eps", 1e-6, 0, 1}},
      {"f32", "f16", "bf16"}};
  t.flops = [](const Problem& p) { return 5 * elements_mn(p); };
  t.tolerance = norm_tolerance;
  t.distributions = shape_names();
  t.fill = fill_norm;
  t.reference = [](const Definition& d, at::Tensor* t) {
    t[2].copy_(rounded_sum(d, t[1], t[2]));
    t[1].copy_(rms_norm_reference(t[2], t[0], eps(d)));
  };
  t.forms = {{"add_;rms_norm;copy_", run_add_rms_norm_inplace<Rms::kLibrary>},
             {"add_;vector_norm,mul_", run_add_rms_norm_inplace<Rms::kVectorNorm>},
             {"add_;pow,mean,mul_", run_add_rms_norm_inplace<Rms::kPowMean>}};
  return t;
}

// --- layer_norm: x weight bias y

AtenOp::Table layer_norm_table() {
  AtenOp::Table t;
  t.schema = {"layer_norm",
              {{"M", kVar}, {"N", kConst}},
              {{"x", kIn, "T", {0, 1}},
               {"weight", kIn, "T", {1}, false, true},
               {"bias", kIn, "T", {1}, false, true},
               {"y", kOut, "T", {0, 1}}},
              {{"eps", 1e-5, 0, 1}},
              {"f32", "f16", "bf16"}};
  t.flops = [](const Problem& p) { return 7 * elements_mn(p); };
  t.tolerance = [](const Definition& d) {
    return float_tolerance(
        d, 2, 0x1p-13,
        "fp32: twice the library's error; floor 2^-13 because on a constant row the variance is 0 and "
        "1/sqrt(eps) = 316 magnifies the mean's last bits, at |x| of order 1 (a tf32 downgrade errs by "
        "2^-11 |x| before that)");
  };
  t.distributions = shape_names();
  t.fill = fill_norm;
  t.reference = [](const Definition& d, at::Tensor* t) {
    const at::Tensor centred = t[0] - t[0].mean(at::IntArrayRef{-1}, true);
    const at::Tensor r = (centred * centred).mean(at::IntArrayRef{-1}, true).add_(eps(d)).rsqrt_();
    t[3].copy_(centred * r * t[1] + t[2]);
  };
  t.forms = {{"layer_norm",
              [](const Definition& d, at::Tensor* t) {
                put(t[3], at::layer_norm(t[0], {t[0].size(-1)}, t[1], t[2], eps(d)));
              }},
             {"native_layer_norm", [](const Definition& d, at::Tensor* t) {
                if (!t[3].defined()) {
                  t[3] = std::get<0>(at::native_layer_norm(t[0], {t[0].size(-1)}, t[1], t[2], eps(d)));
                  return;
                }
                at::Tensor mean = at::empty({0}, t[0].options());
                at::Tensor rstd = at::empty({0}, t[0].options());
                at::native_layer_norm_out(t[3], mean, rstd, t[0], {t[0].size(-1)}, t[1], t[2], eps(d));
              }}};
  return t;
}

}  // namespace

void add_norm_ops(OpList& ops) {
  ops.push_back(std::make_shared<AtenOp>(rms_norm_table()));
  ops.push_back(std::make_shared<AtenOp>(add_rms_norm_table()));
  ops.push_back(std::make_shared<AtenOp>(add_rms_norm_inplace_table()));
  ops.push_back(std::make_shared<AtenOp>(layer_norm_table()));
}

}  // namespace niche::ops
