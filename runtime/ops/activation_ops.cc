// silu_mul (SwiGLU) and softmax.
#include <ATen/ops/_softmax.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/TensorOperators.h>

#include "runtime/ops/aten_op.h"
#include "runtime/ops/builtin_ops.h"
#include "runtime/ops/tolerances.h"

namespace niche::ops {
namespace {

using namespace niche::dispatch;
using enum ArgRole;
using enum AxisKind;

double elements_mn(const Problem& p) {
  return static_cast<double>(p.axes[0]) * static_cast<double>(p.axes[1]);
}

// --- silu_mul: gate up y

AtenOp::Table silu_mul_table() {
  AtenOp::Table t;
  t.schema = {"silu_mul",
              {{"M", kVar}, {"N", kConst}},
              {{"gate", kIn, "T", {0, 1}}, {"up", kIn, "T", {0, 1}}, {"y", kOut, "T", {0, 1}}},
              {},
              {"f32", "f16", "bf16"}};
  t.flops = [](const Problem& p) {
    return 20 * elements_mn(p);
  };  // exp as a degree-6 polynomial, one division
  t.tolerance = [](const Definition& d) {
    return float_tolerance(
        d, 2, 0, "fp32: twice the library's error, whose exp is within 1 ulp and which rounds three times");
  };
  t.distributions = shape_names();
  t.fill = [](const Problem&, int distribution, Rng& rng, std::span<const DLTensor> args) {
    // 8 reaches both ends of the sigmoid; 4096 * 8 saturates exp.
    fill(args[0], static_cast<Shape>(distribution), rng, 8);
    fill(args[1], static_cast<Shape>(distribution), rng);
  };
  t.reference = [](const Definition&, at::Tensor* t) { t[2].copy_(t[0] * t[0].sigmoid() * t[1]); };
  t.forms = {{"silu*up",
              [](const Definition&, at::Tensor* t) {
                if (t[2].defined())
                  at::mul_out(t[2], at::silu(t[0]), t[1]);
                else
                  t[2] = at::mul(at::silu(t[0]), t[1]);
              }},
             {"silu,mul_",
              [](const Definition&, at::Tensor* t) {
                if (t[2].defined())
                  at::silu_out(t[2], t[0]);
                else
                  t[2] = at::silu(t[0]);
                t[2].mul_(t[1]);
              }},
             {"silu_out,mul_", [](const Definition&, at::Tensor* t) {
                if (!t[2].defined()) t[2] = at::empty_like(t[0]);
                at::silu_out(t[2], t[0]);
                t[2].mul_(t[1]);
              }}};
  return t;
}

// --- softmax: x y

AtenOp::Table softmax_table() {
  AtenOp::Table t;
  t.schema = {"softmax",
              {{"M", kVar}, {"N", kConst}},
              {{"x", kIn, "T", {0, 1}}, {"y", kOut, "T", {0, 1}}},
              {},
              {"f32", "f16", "bf16"}};
  t.flops = [](const Problem& p) { return 20 * elements_mn(p); };
  t.tolerance = [](const Definition& d) {
    return float_tolerance(
        d, 2, 0x1p-24,
        "fp32: twice the library's error; floor 2^-24 (probabilities are at most 1) for an exp that "
        "errs by 1 ulp more than the library's");
  };
  t.distributions = shape_names();
  t.fill = [](const Problem&, int distribution, Rng& rng, std::span<const DLTensor> args) {
    // Logits: deviation 1 for the model; 10 elsewhere, so that most terms vanish beside the maximum.
    fill(args[0], static_cast<Shape>(distribution), rng, 10);
  };
  t.reference = [](const Definition&, at::Tensor* t) { at::_softmax_out(t[1], t[0], -1, false); };
  t.forms = {{"softmax",
              [](const Definition&, at::Tensor* t) {
                if (t[1].defined())
                  at::softmax_out(t[1], t[0], -1);
                else
                  t[1] = at::softmax(t[0], -1);
              }},
             {"_softmax", [](const Definition&, at::Tensor* t) {
                if (t[1].defined())
                  at::_softmax_out(t[1], t[0], -1, false);
                else
                  t[1] = at::_softmax(t[0], -1, false);
              }}};
  return t;
}

}  // namespace

void add_activation_ops(OpList& ops) {
  ops.push_back(std::make_shared<AtenOp>(silu_mul_table()));
  ops.push_back(std::make_shared<AtenOp>(softmax_table()));
}

}  // namespace niche::ops
