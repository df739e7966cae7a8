// conv1d: stride 1, dilation 1, groups 1, any kernel size and padding.
#include <ATen/Context.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/mkldnn_convolution.h>

#include <array>

#include "runtime/ops/aten_op.h"
#include "runtime/ops/builtin_ops.h"
#include "runtime/ops/tolerances.h"

namespace niche::ops {
namespace {

using namespace niche::dispatch;
using enum ArgRole;
using enum AxisKind;

// Axes and arguments by number.
enum Axis { B, L, Ci, Co, K, Lo };
enum Arg { kX, kWeight, kBias, kY };

std::array<int64_t, 2> pair(int64_t a, int64_t b) { return {a, b}; }
int64_t padding(const Definition& d) { return static_cast<int64_t>(d.attrs()[0]); }
std::optional<at::Tensor> bias(const at::Tensor* t) {
  return t[kBias].defined() ? std::optional(t[kBias]) : std::nullopt;
}

void run_conv1d(const Definition& d, at::Tensor* t) {
  put(t[kY], at::conv1d(t[kX], t[kWeight], bias(t), 1, padding(d)));
}

void run_conv2d(const Definition& d, at::Tensor* t) {
  put(t[kY], at::conv2d(t[kX].unsqueeze(2), t[kWeight].unsqueeze(2), bias(t), pair(1, 1), pair(0, padding(d)))
                 .squeeze(2));
}

// The layout oneDNN computes in; both conversions are part of the call, since the operator's tensors are
// contiguous.
void run_conv2d_channels_last(const Definition& d, at::Tensor* t) {
  const auto cl = at::MemoryFormat::ChannelsLast;
  const at::Tensor x = t[kX].unsqueeze(2).contiguous(cl);
  const at::Tensor w = t[kWeight].unsqueeze(2).contiguous(cl);
  put(t[kY], at::conv2d(x, w, bias(t), pair(1, 1), pair(0, padding(d))).squeeze(2).contiguous());
}

// at::conv1d leaves small problems on one thread to im2col and a GEMM; oneDNN's direct kernel can be faster
// there too.
void run_mkldnn(const Definition& d, at::Tensor* t) {
  put(t[kY], at::mkldnn_convolution(t[kX].unsqueeze(2), t[kWeight].unsqueeze(2), bias(t), {0, padding(d)},
                                    {1, 1}, {1, 1}, 1)
                 .squeeze(2));
}
bool is_f32(const Definition& d) { return same_dtype(d.dtype(), kF32); }
bool has_mkldnn(const Definition& d) { return at::Context::hasMKLDNN() && is_f32(d); }

at::Tensor padded(const Definition& d, const at::Tensor& x) {
  return padding(d) == 0 ? x : at::constant_pad_nd(x, {padding(d), padding(d)}, 0);
}

at::Tensor bias_3d(const at::Tensor& b) { return b.view({1, -1, 1}); }

void run_unfold_bmm(const Definition& d, at::Tensor* t) {
  const int64_t batch = t[kX].size(0), taps = t[kWeight].size(2), out = t[kWeight].size(0);
  const at::Tensor columns =
      padded(d, t[kX]).unfold(2, taps, 1).permute({0, 1, 3, 2}).reshape({batch, t[kX].size(1) * taps, -1});
  const at::Tensor w = t[kWeight].reshape({1, out, -1}).expand({batch, out, -1});
  if (t[kBias].defined()) {
    if (t[kY].defined())
      at::baddbmm_out(t[kY], bias_3d(t[kBias]), w, columns);
    else
      t[kY] = at::baddbmm(bias_3d(t[kBias]), w, columns);
  } else if (t[kY].defined()) {
    at::bmm_out(t[kY], w, columns);
  } else {
    t[kY] = at::bmm(w, columns);
  }
}

// One product a tap over shifted views: no column matrix. Not for 16 bits, whose sum would be rounded after each
// tap.
void run_shifted_bmm(const Definition& d, at::Tensor* t) {
  const int64_t batch = t[kX].size(0), taps = t[kWeight].size(2), out = t[kWeight].size(0);
  const at::Tensor x = padded(d, t[kX]);
  const int64_t length = x.size(2) - taps + 1;
  const at::Tensor w = t[kWeight].permute({2, 0, 1}).contiguous();
  for (int64_t k = 0; k < taps; ++k) {
    const at::Tensor wk = w.select(0, k).unsqueeze(0).expand({batch, out, -1});
    const at::Tensor xk = x.narrow(2, k, length);
    if (k > 0)
      t[kY].baddbmm_(wk, xk);
    else if (t[kBias].defined())
      put(t[kY], at::baddbmm(bias_3d(t[kBias]), wk, xk));
    else
      put(t[kY], at::bmm(wk, xk));
  }
}

AtenOp::Table conv1d_table() {
  AtenOp::Table t;
  t.schema = {"conv1d",
              {{"B", kVar}, {"L", kVar}, {"Ci", kConst}, {"Co", kConst}, {"K", kConst}, {"Lo", kDerived}},
              {{"x", kIn, "T", {B, Ci, L}},
               {"weight", kIn, "T", {Co, Ci, K}, false, true},
               {"bias", kIn, "T", {Co}, true, true},
               {"y", kOut, "T", {B, Co, Lo}}},
              {{"padding", 1, 0, 1 << 20, true}, {"has_bias", 1}},
              {"f32", "f16", "bf16"}};
  t.derive = [](const Definition& d, std::span<int64_t> axes) {
    axes[Lo] = axes[L] + 2 * padding(d) - axes[K] + 1;
    if (padding(d) >= 0 && axes[Lo] >= 1) return Status();
    return invalid("operator 'conv1d': L=" + std::to_string(axes[L]) + " with padding " +
                   std::to_string(padding(d)) + " and kernel size " + std::to_string(axes[K]) +
                   " has no output");
  };
  t.flops = [](const Problem& p) {
    return 2.0 * static_cast<double>(p.axes[B] * p.axes[Lo]) *
           static_cast<double>(p.axes[Ci] * p.axes[Co] * p.axes[K]);
  };
  t.tolerance = [](const Definition& d) {
    return float_tolerance(
        d, 16, 0,
        "fp32: 16 times the library's error, so that Winograd F(4,3) may live (4e-6 of the largest "
        "output where direct convolution errs by 5e-7; the paper allows 5e-4; tf32 errs by 1e-3)");
  };
  t.distributions = shape_names();
  t.fill = [](const Problem&, int distribution, Rng& rng, std::span<const DLTensor> args) {
    // The published distribution of the convolutional transformer.
    const auto shape = static_cast<Shape>(distribution);
    fill(args[kX], shape, rng, 1, 0.006413, 0.041105);
    // Weights are a model's parameters: not single taps a million times their neighbours. With both sides
    // extreme the product of a border's last input with a tap that reaches beyond it is in no output, but in
    // Winograd's sums.
    fill(args[kWeight], shape == Shape::kExtremes ? Shape::kModel : shape, rng, 0.05, -0.000024, 0.047870);
    fill(args[kBias], shape, rng, 0.03, -0.003198, 0.033662);
  };
  t.reference = run_conv1d;
  t.forms = {{"conv1d", run_conv1d},
             {"conv2d", run_conv2d},
             {"conv2d channels-last", run_conv2d_channels_last},
             {"mkldnn_convolution", run_mkldnn, has_mkldnn},
             {"unfold;baddbmm", run_unfold_bmm},
             {"shifted baddbmm", run_shifted_bmm, is_f32}};
  return t;
}

}  // namespace

void add_conv_ops(OpList& ops) { ops.push_back(std::make_shared<AtenOp>(conv1d_table())); }

}  // namespace niche::ops
