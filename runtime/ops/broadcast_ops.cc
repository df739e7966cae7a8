// ikbo_linear_compression: out[b] = Wc Ec[b] + Wu Eu[user[b]]; many candidates share one user.
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <cmath>

#include "runtime/ops/aten_op.h"
#include "runtime/ops/builtin_ops.h"
#include "runtime/ops/tolerances.h"

namespace niche::ops {
namespace {

using namespace niche::dispatch;
using enum ArgRole;
using enum AxisKind;

enum Axis { M, N, Kc, Ku, B, U };
enum Arg { kWc, kWu, kEc, kEu, kUser, kOutput };

double axis(const Problem& p, int i) { return static_cast<double>(p.axes[static_cast<size_t>(i)]); }
at::Tensor batched(const at::Tensor& w, int64_t batch) {
  return w.unsqueeze(0).expand({batch, w.size(0), w.size(1)});
}

// Both weights side by side against each candidate with its user's rows below: the form a model is written
// in.
void run_concatenated(const Definition&, at::Tensor* t) {
  const at::Tensor w = at::cat({t[kWc], t[kWu]}, 1);
  const at::Tensor e = at::cat({t[kEc], at::index_select(t[kEu], 0, t[kUser])}, 1);
  if (t[kOutput].defined())
    at::bmm_out(t[kOutput], batched(w, e.size(0)), e);
  else
    t[kOutput] = at::bmm(batched(w, e.size(0)), e);
}

// out starts as each candidate's share of the user part; the candidate part is added in place.
void start_from_users(at::Tensor* t, const at::Tensor& users) {
  if (t[kOutput].defined())
    at::index_select_out(t[kOutput], users, 0, t[kUser]);
  else
    t[kOutput] = at::index_select(users, 0, t[kUser]);
}
at::Tensor user_part(const at::Tensor* t) { return at::bmm(batched(t[kWu], t[kEu].size(0)), t[kEu]); }

void run_decomposed(const Definition&, at::Tensor* t) {
  start_from_users(t, user_part(t));
  t[kOutput].baddbmm_(batched(t[kWc], t[kEc].size(0)), t[kEc]);
}

// The reduction padded to a multiple of 16, as vendors' GEMMs like it; the padding is paid on each call.
void run_padded(const Definition&, at::Tensor* t) {
  const int64_t pad = (16 - t[kWc].size(1) % 16) % 16;
  start_from_users(t, user_part(t));
  t[kOutput].baddbmm_(batched(at::constant_pad_nd(t[kWc], {0, pad}), t[kEc].size(0)),
                      at::constant_pad_nd(t[kEc], {0, 0, 0, pad}));
}
bool needs_padding(const Definition& d) { return d.const_extents()[Kc] % 16 != 0; }

// matmul folds the batch into one wide product, after a copy.
void run_matmul(const Definition&, at::Tensor* t) {
  const at::Tensor users = at::matmul(t[kWu], t[kEu]);
  at::Tensor candidates = at::matmul(t[kWc], t[kEc]);
  put(t[kOutput], candidates.add_(at::index_select(users, 0, t[kUser])).contiguous());
}
bool is_f32(const Definition& d) { return same_dtype(d.dtype(), kF32); }

AtenOp::Table table() {
  AtenOp::Table t;
  t.schema = {"ikbo_linear_compression",
              {{"M", kConst}, {"N", kConst}, {"Kc", kConst}, {"Ku", kConst}, {"B", kVar}, {"U", kVar}},
              {{"Wc", kIn, "T", {M, Kc}, false, true},
               {"Wu", kIn, "T", {M, Ku}, false, true},
               {"Ec", kIn, "T", {B, Kc, N}},
               {"Eu", kIn, "T", {U, Ku, N}},
               {"user", kIn, "i64", {B}},
               {"out", kOut, "T", {B, M, N}}},
              {},
              {"f32", "f16", "bf16"}};
  // Each user's part once, however many candidates share it.
  t.flops = [](const Problem& p) {
    return 2 * axis(p, M) * axis(p, N) *
           (axis(p, B) * axis(p, Kc) + std::min(axis(p, U), axis(p, B)) * axis(p, Ku));
  };
  t.tolerance = [](const Definition& d) {
    return float_tolerance(
        d, 4, 0,
        "fp32: 4 times the library's error, whose forms add the two sums in different orders and "
        "differ among themselves by 2 where terms cancel; a tf32 downgrade errs some 1000 times as much");
  };
  t.distributions = shape_names();
  t.fill = [](const Problem& p, int distribution, Rng& rng, std::span<const DLTensor> args) {
    const auto shape = static_cast<Shape>(distribution);
    const double scale = 1 / std::sqrt(axis(p, Kc) + axis(p, Ku));
    for (int i : {kWc, kWu}) fill(args[static_cast<size_t>(i)], shape, rng, scale, 0, scale);
    for (int i : {kEc, kEu}) fill(args[static_cast<size_t>(i)], shape, rng);
    // A request's candidates stand together; trouble comes in any order, and all for one user.
    const int64_t batch = p.axes[B], users = p.axes[U], one = rng.below(users);
    for (int64_t b = 0; b < batch; ++b)
      i64(args[kUser])[b] = distribution % 3 == 0   ? b * users / batch
                            : distribution % 3 == 1 ? rng.below(users)
                                                    : one;
  };
  t.reference = run_decomposed;
  t.forms = {{"cat;bmm", run_concatenated},
             {"bmm;index_select;baddbmm_", run_decomposed},
             {"padded bmm;index_select;baddbmm_", run_padded, needs_padding},
             {"matmul;index_select,add_", run_matmul, is_f32}};
  return t;
}

}  // namespace

void add_broadcast_ops(OpList& ops) { ops.push_back(std::make_shared<AtenOp>(table())); }

}  // namespace niche::ops
