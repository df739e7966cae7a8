// selective_state_update: Mamba's decode step. dt = softplus(dt + dt_bias); state = state exp(dt A) + dt B x;
// y = sum over S of state C, + D x, times silu(z). The state is updated in place.
#include <ATen/ops/add.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
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

enum Axis { B, D, S };
enum Arg { kX, kDt, kA, kB, kC, kD, kZ, kDtBias, kState, kY };
enum Attr { kHasD, kHasZ, kHasDtBias, kDtSoftplus };

// bf16 arguments are computed in fp32, as the model's own kernel does; others as they are.
at::Tensor wide(const at::Tensor& v) { return v.scalar_type() == at::kBFloat16 ? v.to(at::kFloat) : v; }

at::Tensor time_step(const Definition& d, const at::Tensor* t) {
  at::Tensor dt = wide(t[kDt]);
  if (t[kDtBias].defined()) dt = dt + wide(t[kDtBias]);
  return d.attrs()[kDtSoftplus] != 0 ? at::softplus(dt) : dt;
}

// y += D x, y *= silu(z), and out in the operator's type.
void finish(at::Tensor* t, at::Tensor&& y, const at::Tensor& x) {
  if (t[kD].defined()) y.addcmul_(x, wide(t[kD]));
  if (t[kZ].defined()) y.mul_(at::silu(wide(t[kZ])));
  if (t[kY].defined() || y.scalar_type() == t[kX].scalar_type())
    put(t[kY], std::move(y));
  else
    t[kY] = y.to(t[kX].scalar_type());
}

void run_einsum(const Definition& d, at::Tensor* t) {
  const at::Tensor dt = time_step(d, t), x = wide(t[kX]);
  const at::Tensor decay = at::einsum("bd,ds->bds", {dt, wide(t[kA])}).exp();
  const at::Tensor input = at::einsum("bd,bs,bd->bds", {dt, wide(t[kB]), x});
  const at::Tensor state = wide(t[kState]) * decay + input;
  finish(t, at::einsum("bds,bs->bd", {state, wide(t[kC])}).contiguous(), x);
  t[kState].copy_(state);
}

// `kOuter`: the rank-1 update as a batched product; else as a broadcast. `kProduct`: the contraction with C
// likewise.
template <bool kOuter, bool kProduct>
void run_in_place(const Definition& d, at::Tensor* t) {
  const at::Tensor dt = time_step(d, t), x = wide(t[kX]);
  at::Tensor state = wide(t[kState]);  // the tensor itself where no widening is needed
  const at::Tensor b = wide(t[kB]).unsqueeze(1), c = wide(t[kC]);
  state.mul_((dt.unsqueeze(-1) * wide(t[kA])).exp_());
  if constexpr (kOuter)
    state.baddbmm_((dt * x).unsqueeze(-1), b);
  else
    state.addcmul_((dt * x).unsqueeze(-1), b);
  if constexpr (kProduct)
    finish(t, at::bmm(state, c.unsqueeze(-1)).squeeze(-1), x);
  else
    finish(t, (state * c.unsqueeze(1)).sum(at::IntArrayRef{-1}), x);
  if (!state.is_same(t[kState])) t[kState].copy_(state);
}

void fill_inputs(const Problem& p, int distribution, Rng& rng, std::span<const DLTensor> args) {
  const auto shape = static_cast<Shape>(distribution);
  const bool softplus = p.definition->attrs()[kDtSoftplus] != 0;
  for (int i : {kX, kB, kC, kZ, kState}) fill(args[static_cast<size_t>(i)], shape, rng);
  // A is -(1 .. S) in trained models, so that the state decays. Without softplus, dt itself is positive.
  fill_uniform(args[kA], rng, -16, -0.5);
  if (softplus)
    fill(args[kDt], shape, rng, 8, -2, 1);  // 8: both branches of softplus, whose threshold is 20
  else
    fill_uniform(args[kDt], rng, 0, distribution == 0 ? 0.1 : 8);
  if (softplus)
    fill(args[kDtBias], Shape::kModel, rng, 1, -2, 1);
  else
    fill_uniform(args[kDtBias], rng, 0, 0.01);
  fill(args[kD], Shape::kModel, rng, 1, 1, 0.1);
}

AtenOp::Table table() {
  AtenOp::Table t;
  t.schema = {"selective_state_update",
              {{"B", kVar}, {"D", kConst}, {"S", kConst}},
              {{"x", kIn, "T", {B, D}},
               {"dt", kIn, "T", {B, D}},
               {"A", kIn, "T", {D, S}, false, true},
               {"B", kIn, "T", {B, S}},
               {"C", kIn, "T", {B, S}},
               {"D", kIn, "T", {D}, true, true},
               {"z", kIn, "T", {B, D}, true},
               {"dt_bias", kIn, "T", {D}, true, true},
               {"state", kInOut, "T", {B, D, S}},
               {"y", kOut, "T", {B, D}}},
              {{"has_D", 1}, {"has_z", 1}, {"has_dt_bias", 1}, {"dt_softplus", 1, 0, 1, true}},
              {"f32", "bf16"}};
  t.flops = [](const Problem& p) {
    const double rows = static_cast<double>(p.axes[B] * p.axes[D]);
    return rows * (static_cast<double>(p.axes[S]) * 20 + 40);
  };
  t.tolerance = [](const Definition& d) {
    return float_tolerance(d, 4, 0x1p-18,
                           "fp32: 4 times the library's error: exp(dt A) within 2 ulp, and sums over S that "
                           "each library form orders "
                           "differently; floor 2^-18 (results of order 1 to 30) for small outputs on which "
                           "one form happens to err by "
                           "less than one rounding; a tf32 downgrade errs some 1000 times as much");
  };
  t.distributions = shape_names();
  t.fill = fill_inputs;
  t.reference = run_einsum;
  t.forms = {{"einsum", run_einsum},
             {"broadcast in place,sum", run_in_place<false, false>},
             {"broadcast in place,bmm", run_in_place<false, true>},
             {"baddbmm_,bmm", run_in_place<true, true>}};
  return t;
}

}  // namespace

void add_state_space_ops(OpList& ops) { ops.push_back(std::make_shared<AtenOp>(table())); }

}  // namespace niche::ops
