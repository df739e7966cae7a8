#include "examples/ranker/niche_ops.h"

#include <array>

#include "runtime/torch/torch.h"

namespace ranker {
namespace {

using niche::OpHandle;
using niche::Runtime;
using niche::Status;
using niche::torch_call;

class NicheOps final : public Ops {
 public:
  NicheOps(Runtime& runtime, const Weights& w) : w_(w) { resolve(runtime); }
  const Status& status() const { return status_; }

  at::Tensor map_id(const at::Tensor& values) override { return torch_call(map_id_, values, w_.id_table); }
  at::Tensor mbdt(const at::Tensor& dense) override { return torch_call(mbdt_, dense, w_.borders); }
  at::Tensor embedding_bag(const at::Tensor& indices, const at::Tensor& offsets) override {
    return torch_call(embedding_bag_, w_.embedding, indices, offsets);
  }
  at::Tensor conv1d(int layer, const at::Tensor& x) override {
    const auto l = static_cast<size_t>(layer);
    return torch_call(conv_[l], x, w_.conv_w[l], w_.conv_b[l]);
  }
  at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) override {
    return torch_call(silu_mul_, gate, up);
  }
  std::pair<at::Tensor, at::Tensor> add_norm(int norm, const at::Tensor& x,
                                             const at::Tensor& residual) override {
    const auto n = static_cast<size_t>(norm);
    auto [y, sum] = niche::torch_calls<2>(add_norm_[n], x, residual, norm_weight(n));
    return {std::move(y), std::move(sum)};
  }
  at::Tensor layer_norm(const at::Tensor& x) override { return torch_call(layer_norm_, x, w_.ln_w, w_.ln_b); }
  at::Tensor pffn(int layer, const at::Tensor& x, const at::Tensor& w1, const at::Tensor& w2) override {
    const auto l = static_cast<size_t>(layer);
    return torch_call(pffn_[l], x, w1, w_.pffn_b1[l], w2, w_.pffn_b2[l]);
  }
  at::Tensor optimized_fm(const at::Tensor& x, const at::Tensor& y) override { return torch_call(fm_, x, y); }
  at::Tensor rms_norm(const at::Tensor& x) override { return torch_call(rms_norm_, x, w_.fm_norm); }
  at::Tensor softmax(const at::Tensor& x) override { return torch_call(softmax_, x); }

 private:
  const at::Tensor& norm_weight(size_t norm) const {
    return norm == 0 ? w_.event_norm : w_.token_norm[norm - 1];
  }

  void resolve(Runtime& r) {
    using niche::kF32;
    using niche::kI64;
    open(r, &map_id_, "map_id", kI64, {{"T", kTableIds}}, {});
    bind(map_id_, "table", w_.id_table);
    open(r, &mbdt_, "mbdt", kF32, {{"F", kDense}, {"K", kBorders}}, {});
    bind(mbdt_, "borders", w_.borders);
    open(r, &embedding_bag_, "embedding_bag", kF32, {{"V", w_.embedding.size(0)}, {"D", kChannels}}, {});
    bind(embedding_bag_, "weight", w_.embedding);
    for (size_t i = 0; i < conv_.size(); ++i) {
      open(r, &conv_[i], "conv1d", kF32, {{"Ci", kChannels}, {"Co", kChannels}, {"K", 3}}, {{"padding", 1}});
      bind(conv_[i], "weight", w_.conv_w[i]);
      bind(conv_[i], "bias", w_.conv_b[i]);
    }
    open(r, &silu_mul_, "silu_mul", kF32, {{"N", kChannels}}, {});
    for (size_t i = 0; i < add_norm_.size(); ++i) {
      open(r, &add_norm_[i], "fused_add_rms_norm", kF32, {{"N", kChannels}}, {{"eps", kEps}});
      bind(add_norm_[i], "weight", norm_weight(i));
    }
    open(r, &layer_norm_, "layer_norm", kF32, {{"N", kChannels}}, {{"eps", 1e-5}});
    bind(layer_norm_, "weight", w_.ln_w);
    bind(layer_norm_, "bias", w_.ln_b);
    for (size_t i = 0; i < pffn_.size(); ++i) {
      open(r, &pffn_[i], "pffn", kF32, {{"N", kTokens}, {"D", kChannels}, {"K", kHidden}}, {{"eps", kEps}});
      bind(pffn_[i], "b1", w_.pffn_b1[i]);
      bind(pffn_[i], "b2", w_.pffn_b2[i]);
    }
    open(r, &fm_, "optimized_fm", kF32, {{"N", kFmRows}, {"D", kFmInner}, {"K", kFmCols}}, {});
    open(r, &rms_norm_, "rms_norm", kF32, {{"N", kFmCols}}, {{"eps", kEps}});
    bind(rms_norm_, "weight", w_.fm_norm);
    open(r, &softmax_, "softmax", kF32, {{"N", kFmCols}}, {});
  }

  void open(Runtime& r, OpHandle* handle, const char* op, DLDataType dtype, const niche::Axes& axes,
            const niche::Attrs& attrs) {
    auto h = r.op(op, dtype, axes, attrs);
    if (h.ok())
      *handle = *h;
    else if (status_.ok())
      status_ = h.status();
  }
  // Constants are packed for kernels of the host alone; those of a device read weights as they come.
  void bind(const OpHandle& handle, const char* arg, const at::Tensor& t) {
    if (!status_.ok() || !t.is_cpu()) return;
    status_ = niche::bind_constant(handle, arg, t);
  }

  const Weights& w_;
  Status status_;
  OpHandle map_id_, mbdt_, embedding_bag_, silu_mul_, layer_norm_, fm_, rms_norm_, softmax_;
  std::array<OpHandle, 4> conv_;
  std::array<OpHandle, 3> add_norm_;
  std::array<OpHandle, 2> pffn_;
};

}  // namespace

niche::Result<std::unique_ptr<Ops>> make_niche_ops(Runtime& runtime, const Weights& weights) {
  auto ops = std::make_unique<NicheOps>(runtime, weights);
  if (!ops->status().ok()) return ops->status();
  return std::unique_ptr<Ops>(std::move(ops));
}

}  // namespace ranker
