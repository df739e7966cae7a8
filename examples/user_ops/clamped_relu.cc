// An operator of one's own in C++: y = min(max(x, 0), limit). Written over ATen with niche's own base,
// AtenOp; any class that implements dispatch::OpSpec will do. docs/operator_tutorial.md walks through this
// file.
#include <ATen/ops/clamp.h>
#include <ATen/ops/relu.h>

#include "runtime/ops/aten_op.h"
#include "runtime/ops/tolerances.h"
#include "runtime/ops/user_op.h"

namespace {

using namespace niche::dispatch;
using niche::ops::AtenOp;
using niche::ops::Rng;

double limit(const Definition& d) { return d.attrs()[0]; }

AtenOp::Table clamped_relu() {
  AtenOp::Table t;
  // Order is ABI: kernels see p[0] = x, p[1] = y; n[0] = M, n[1] = N; a[0] = limit.
  t.schema = {"clamped_relu",
              {{"M", AxisKind::kVar}, {"N", AxisKind::kConst}},
              {{"x", ArgRole::kIn, "T", {0, 1}}, {"y", ArgRole::kOut, "T", {0, 1}}},
              {{"limit", 6}},
              {"f32", "bf16"}};
  t.flops = [](const Problem& p) { return 2.0 * static_cast<double>(p.axes[0] * p.axes[1]); };
  t.tolerance = [](const Definition& d) {
    return niche::ops::float_tolerance(d, 1, 0, "comparisons round nothing");
  };
  t.distributions = niche::ops::shape_names();
  t.fill = [](const Problem&, int distribution, Rng& rng, std::span<const DLTensor> args) {
    niche::ops::fill(args[0], static_cast<niche::ops::Shape>(distribution), rng, 8);
  };
  // The same source serves as reference, on tensors upcast to fp64.
  t.reference = [](const Definition& d, at::Tensor* t) { t[1].copy_(at::clamp(t[0], 0, limit(d))); };
  // The form one writes first, then a better one: the best of them is what a kernel has to beat.
  t.forms = {
      {"relu,clamp_max_", [](const Definition& d,
                             at::Tensor* t) { niche::ops::put(t[1], at::relu(t[0]).clamp_max_(limit(d))); }},
      {"clamp", [](const Definition& d, at::Tensor* t) {
         if (t[1].defined())
           at::clamp_out(t[1], t[0], 0, limit(d));
         else
           t[1] = at::clamp(t[0], 0, limit(d));
       }}};
  return t;
}

Status add_ops(OpRegistry& registry) { return registry.add(std::make_shared<AtenOp>(clamped_relu())); }

}  // namespace

NICHE_REGISTER_OPS(add_ops)
