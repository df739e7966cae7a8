// gelu_mul, rope, linear, sdpa_decode: the parts of a transformer's decode step that are not norms.
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
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

double axis(const Problem& p, int i) { return static_cast<double>(p.axes[static_cast<size_t>(i)]); }
bool is_f32(const Definition& d) { return same_dtype(d.dtype(), kF32); }

// --- gelu_mul: gate up y

c10::string_view approximation(const Definition& d) { return d.attrs()[0] != 0 ? "tanh" : "none"; }

AtenOp::Table gelu_mul_table() {
  AtenOp::Table t;
  t.schema = {"gelu_mul",
              {{"M", kVar}, {"N", kConst}},
              {{"gate", kIn, "T", {0, 1}}, {"up", kIn, "T", {0, 1}}, {"y", kOut, "T", {0, 1}}},
              {{"tanh", 0, 0, 1, true}},
              {"f32", "f16", "bf16"}};
  t.flops = [](const Problem& p) { return 25 * axis(p, 0) * axis(p, 1); };
  t.tolerance = [](const Definition& d) {
    return float_tolerance(d, 2, 0, "fp32: twice the library's error, whose erf is within 1 ulp");
  };
  t.distributions = shape_names();
  t.fill = [](const Problem&, int distribution, Rng& rng, std::span<const DLTensor> args) {
    fill(args[0], static_cast<Shape>(distribution), rng, 4);  // reaches both ends of erf
    fill(args[1], static_cast<Shape>(distribution), rng);
  };
  t.reference = [](const Definition& d, at::Tensor* t) {
    t[2].copy_(at::gelu(t[0], approximation(d)) * t[1]);
  };
  t.forms = {{"gelu*up",
              [](const Definition& d, at::Tensor* t) {
                const at::Tensor gate = at::gelu(t[0], approximation(d));
                if (t[2].defined())
                  at::mul_out(t[2], gate, t[1]);
                else
                  t[2] = at::mul(gate, t[1]);
              }},
             {"gelu,mul_", [](const Definition& d, at::Tensor* t) {
                if (t[2].defined())
                  at::gelu_out(t[2], t[0], approximation(d));
                else
                  t[2] = at::gelu(t[0], approximation(d));
                t[2].mul_(t[1]);
              }}};
  return t;
}

// --- rope: x cos_sin positions y

namespace rope {
enum Axis { T, H, D, P };

// [T, 1, D / 2] each.
std::pair<at::Tensor, at::Tensor> angles(const at::Tensor* t) {
  const at::Tensor rows = at::index_select(t[1], 0, t[2]).unsqueeze(1);
  const int64_t half = rows.size(2) / 2;
  return {rows.narrow(2, 0, half), rows.narrow(2, half, half)};
}

void run(const Definition& d, at::Tensor* t) {
  const auto [c, s] = angles(t);
  const int64_t half = t[0].size(2) / 2;
  const bool pairs = d.attrs()[0] != 0;
  const at::Tensor x = pairs ? t[0].unflatten(2, {half, 2}) : t[0];
  const at::Tensor a = pairs ? x.select(3, 0) : x.narrow(2, 0, half);
  const at::Tensor b = pairs ? x.select(3, 1) : x.narrow(2, half, half);
  const at::Tensor u = a * c - b * s, v = b * c + a * s;
  put(t[3], pairs ? at::stack({u, v}, 3).flatten(2) : at::cat({u, v}, 2));
}

// x cos + (x turned by a right angle) sin, with both tables at full width: the form that models are written
// in.
void run_rotated(const Definition& d, at::Tensor* t) {
  auto [c, s] = angles(t);
  const int64_t half = t[0].size(2) / 2;
  if (d.attrs()[0] != 0) {
    const at::Tensor x = t[0].unflatten(2, {half, 2});
    const at::Tensor turned = at::stack({-x.select(3, 1), x.select(3, 0)}, 3).flatten(2);
    put(t[3], t[0] * at::repeat_interleave(c, 2, 2) + turned * at::repeat_interleave(s, 2, 2));
  } else {
    const at::Tensor turned = at::cat({-t[0].narrow(2, half, half), t[0].narrow(2, 0, half)}, 2);
    put(t[3], t[0] * at::cat({c, c}, 2) + turned * at::cat({s, s}, 2));
  }
}

AtenOp::Table table() {
  AtenOp::Table t;
  t.schema = {"rope",
              {{"T", kVar}, {"H", kConst}, {"D", kConst}, {"P", kConst}},
              {{"x", kIn, "T", {T, H, D}},
               {"cos_sin", kIn, "T", {P, D}, false, true},
               {"positions", kIn, "i64", {T}},
               {"y", kOut, "T", {T, H, D}}},
              {{"interleaved", 0, 0, 1, true}},
              {"f32", "f16", "bf16"}};
  t.derive = [](const Definition& d, std::span<int64_t> axes) {
    if (axes[D] % 2 == 0) return Status();
    return invalid("operator 'rope': " + d.name() + " has heads of " + std::to_string(axes[D]) +
                   " elements, which are no pairs");
  };
  t.flops = [](const Problem& p) { return 3 * axis(p, T) * axis(p, H) * axis(p, D); };
  t.bytes = [](const Problem& p) {
    const double row = axis(p, D) * static_cast<double>(dtype_bytes(p.definition->dtype()));
    return row * (2 * axis(p, T) * axis(p, H) + std::min(axis(p, T), axis(p, P))) + 8 * axis(p, T);
  };
  t.tolerance = [](const Definition& d) {
    return float_tolerance(d, 2, 0, "fp32: twice the library's error: two products and a sum");
  };
  t.distributions = shape_names();
  t.fill = [](const Problem& p, int distribution, Rng& rng, std::span<const DLTensor> args) {
    fill(args[0], static_cast<Shape>(distribution), rng);
    const int64_t d = p.axes[D], half = d / 2;
    for (int64_t i = 0; i < p.axes[P]; ++i)
      for (int64_t j = 0; j < half; ++j) {
        const double angle =
            static_cast<double>(i) * std::pow(10000.0, -2 * static_cast<double>(j) / static_cast<double>(d));
        store(args[1], i * d + j, std::cos(angle));
        store(args[1], i * d + half + j, std::sin(angle));
      }
    // One sequence's next tokens, or tokens of many sequences.
    const int64_t first = rng.below(p.axes[P]);
    for (int64_t i = 0; i < p.axes[T]; ++i)
      i64(args[2])[i] = distribution % 2 == 0 ? (first + i) % p.axes[P] : rng.below(p.axes[P]);
  };
  t.reference = run;
  t.forms = {{"x*cos+rotated*sin", run_rotated}, {"pairs turned", run}};
  return t;
}
}  // namespace rope

// --- linear: x weight bias y

namespace linear {
enum Axis { M, N, K };

int activation(const Definition& d) { return static_cast<int>(d.attrs()[1]); }

void activate_(const Definition& d, at::Tensor& y) {
  if (activation(d) == 1) y.relu_();
  if (activation(d) == 2) at::gelu_(y);
  if (activation(d) == 3) at::silu_(y);
}
void run(const Definition& d, at::Tensor* t) {
  const std::optional<at::Tensor> bias = t[2].defined() ? std::optional<at::Tensor>(t[2]) : std::nullopt;
  if (t[3].defined())
    at::linear_out(t[3], t[0], t[1], bias);
  else
    t[3] = at::linear(t[0], t[1], bias);
  activate_(d, t[3]);
}
void run_mm(const Definition& d, at::Tensor* t) {
  if (t[3].defined())
    at::mm_out(t[3], t[0], t[1].t());
  else
    t[3] = at::mm(t[0], t[1].t());
  if (t[2].defined()) t[3].add_(t[2]);
  activate_(d, t[3]);
}
// The weight on the left, as libraries read it fastest for a few rows of x; its answer has to be turned.
void run_turned(const Definition& d, at::Tensor* t) {
  const at::Tensor turned =
      t[2].defined() ? at::addmm(t[2].unsqueeze(1), t[1], t[0].t()) : at::mm(t[1], t[0].t());
  put(t[3], turned.t().contiguous());
  activate_(d, t[3]);
}
// Sums rounded to 16 bits before the bias is added err by one rounding more.
bool mm_applies(const Definition& d) { return is_f32(d) || d.attrs()[0] == 0; }

AtenOp::Table table() {
  AtenOp::Table t;
  t.schema = {"linear",
              {{"M", kVar}, {"N", kConst}, {"K", kConst}},
              {{"x", kIn, "T", {M, K}},
               {"weight", kIn, "T", {N, K}, false, true},
               {"bias", kIn, "T", {N}, true, true},
               {"y", kOut, "T", {M, N}}},
              {{"has_bias", 1}, {"activation", 0, 0, 3, true}},  // 0: none, 1: relu, 2: gelu, 3: silu
              {"f32", "f16", "bf16"}};
  t.flops = [](const Problem& p) { return 2 * axis(p, M) * axis(p, N) * axis(p, K); };
  t.tolerance = [](const Definition& d) {
    return float_tolerance(
        d, 4, 0x1p-19,
        "fp32: 4 times the library's error: forms add K products in different orders; a "
        "tf32 downgrade errs some 1000 times as much; floor 2^-19, two roundings at 16: "
        "where rows repeat, one sum is the whole output, and the library's is exact by luck");
  };
  t.distributions = shape_names();
  t.fill = [](const Problem& p, int distribution, Rng& rng, std::span<const DLTensor> args) {
    const auto shape = static_cast<Shape>(distribution);
    const double scale = 1 / std::sqrt(axis(p, K));
    fill(args[0], shape, rng);
    fill(args[1], shape, rng, scale, 0, scale);
    fill(args[2], shape, rng, 0.1, 0, 0.1);
  };
  t.reference = run;
  t.forms = {{"linear", run}, {"mm,add_", run_mm, mm_applies}, {"weight*x', turned", run_turned}};
  return t;
}
}  // namespace linear

// --- sdpa_decode: q k v y

namespace sdpa {
enum Axis { B, S, Hq, Hk, D };

double scale_of(const Definition& d) {
  return d.attrs()[0] != 0 ? d.attrs()[0] : 1 / std::sqrt(static_cast<double>(d.const_extents()[D]));
}
void run(const Definition& d, at::Tensor* t) {
  const bool grouped = t[0].size(1) != t[1].size(1);
  const at::Tensor y =
      at::scaled_dot_product_attention(t[0].unsqueeze(2), t[1], t[2], {}, 0.0, false, scale_of(d), grouped);
  put(t[3], y.squeeze(2).contiguous());
}
void run_repeated(const Definition& d, at::Tensor* t) {
  const int64_t group = t[0].size(1) / t[1].size(1);
  const at::Tensor k = at::repeat_interleave(t[1], group, 1), v = at::repeat_interleave(t[2], group, 1);
  put(t[3], at::scaled_dot_product_attention(t[0].unsqueeze(2), k, v, {}, 0.0, false, scale_of(d))
                .squeeze(2)
                .contiguous());
}
// The query heads of a key head as the rows of one attention: no repeated keys.
void run_rows(const Definition& d, at::Tensor* t) {
  const at::Tensor q = t[0].view({t[0].size(0), t[1].size(1), -1, t[0].size(2)});
  const at::Tensor y = at::scaled_dot_product_attention(q, t[1], t[2], {}, 0.0, false, scale_of(d));
  put(t[3], y.contiguous().view(t[0].sizes()));
}
bool is_16_bit(const Definition& d) { return dtype_bytes(d.dtype()) == 2; }
bool is_grouped(const Definition& d) { return d.const_extents()[Hq] != d.const_extents()[Hk]; }
// The query heads of a key head as rows of one product.
void run_bmm(const Definition& d, at::Tensor* t) {
  const int64_t heads = t[1].size(0) * t[1].size(1), s = t[1].size(2), width = t[1].size(3);
  const at::Tensor q = t[0].reshape({heads, -1, width});
  const at::Tensor weight =
      at::softmax(at::bmm(q * scale_of(d), t[1].reshape({heads, s, width}).transpose(1, 2)), -1);
  put(t[3], at::bmm(weight, t[2].reshape({heads, s, width})).view(t[0].sizes()));
}

AtenOp::Table table() {
  AtenOp::Table t;
  t.schema = {"sdpa_decode",
              {{"B", kVar}, {"S", kVar}, {"Hq", kConst}, {"Hk", kConst}, {"D", kConst}},
              {{"q", kIn, "T", {B, Hq, D}},
               {"k", kIn, "T", {B, Hk, S, D}},
               {"v", kIn, "T", {B, Hk, S, D}},
               {"y", kOut, "T", {B, Hq, D}}},
              {{"scale", 0, 0}},
              {"f32", "f16", "bf16"}};
  t.derive = [](const Definition&, std::span<int64_t> axes) {
    if (axes[Hq] % axes[Hk] == 0) return Status();
    return invalid("operator 'sdpa_decode': " + std::to_string(axes[Hq]) +
                   " query heads are no multiple of " + std::to_string(axes[Hk]) + " key heads");
  };
  t.flops = [](const Problem& p) { return axis(p, B) * axis(p, S) * axis(p, Hq) * (4 * axis(p, D) + 20); };
  t.tolerance = [](const Definition& d) {
    return float_tolerance(d, 4, 0x1p-22,
                           "fp32: 4 times the library's error: scores are summed in other orders, and exp "
                           "magnifies what they differ by; floor 2^-22 for exp itself");
  };
  t.distributions = shape_names();
  t.fill = [](const Problem&, int distribution, Rng& rng, std::span<const DLTensor> args) {
    // Scores of some hundreds have errors that no bound on the answer makes sense of: extremes go to v alone.
    const auto shape = static_cast<Shape>(distribution);
    fill(args[0], Shape::kModel, rng);
    fill(args[1], shape == Shape::kExtremes || shape == Shape::kWide ? Shape::kModel : shape, rng);
    fill(args[2], shape, rng);
  };
  t.reference = run_bmm;
  t.forms = {{"sdpa", run},
             {"repeated keys, sdpa", run_repeated, is_grouped},
             {"bmm;softmax;bmm", run_bmm, is_f32},
             {"sdpa of grouped rows", run_rows, is_16_bit}};
  return t;
}
}  // namespace sdpa

}  // namespace

void add_decoder_ops(OpList& ops) {
  for (auto&& table : {gelu_mul_table(), rope::table(), linear::table(), sdpa::table()})
    ops.push_back(std::make_shared<AtenOp>(table));
}

}  // namespace niche::ops
