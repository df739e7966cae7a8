// ToyOp: y = max(x * w + b, 0) over rows, in plain C++: an operator for tests of what stands above operators.
// Its library forms are honest but slow (one strided, one scalar), so that a generated kernel can beat them.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "dispatch/op_spec.h"
#include "evolve/search/rng.h"

namespace niche::evolve::testing_ops {

using namespace dispatch;  // NOLINT: a test's vocabulary

// Memory of one wrapped call.
class ToyNative final : public NativeArgs {
 public:
  ToyNative(const Problem& p, void* const* args) : y_elements_(p.arg_elements(3)) {
    for (int i = 0; i < 3; ++i) p_[i] = args[i];
  }
  void* get() override { return this; }
  void drop_outputs() override { y_.reset(); }
  void make_outputs() override { y(); }
  void outputs(void** p) override {
    if (y_) p[3] = y_.get();
  }
  void* const* pointers() {
    p_[3] = y();
    return p_;
  }

 private:
  float* y() {
    if (!y_) y_ = std::make_unique<float[]>(static_cast<size_t>(y_elements_));
    return y_.get();
  }
  void* p_[4] = {};
  int64_t y_elements_;
  std::unique_ptr<float[]> y_;
};

class ToyOp final : public OpSpec {
 public:
  ToyOp() {
    auto s = std::make_shared<OpSchema>();
    s->op = "toy_affine_relu";
    s->axes = {{"M", AxisKind::kVar}, {"N", AxisKind::kConst}};
    s->args = {{"x", ArgRole::kIn, "T", {0, 1}},
               {"w", ArgRole::kIn, "T", {1}, false, true},
               {"b", ArgRole::kIn, "T", {1}, true, true},
               {"y", ArgRole::kOut, "T", {0, 1}}};
    s->attrs = {{"has_b", 1}};
    s->dtypes = {"f32"};
    schema_ = s;
  }
  const std::shared_ptr<const OpSchema>& schema() const override { return schema_; }
  Status derive_axes(const Definition&, std::span<int64_t> axes) const override {
    return axes[0] > 0 ? Status() : invalid("toy_affine_relu: M must be positive");
  }
  Cost cost(const Problem& p) const override {
    const auto n = static_cast<double>(p.arg_elements(0));
    return {2 * n, 8 * n};
  }
  Tolerance tolerance(const Definition&) const override {
    return {false, 2.0, 1e-6, "one fused multiply-add"};
  }
  int distributions() const override { return 2; }
  std::string_view distribution_name(int d) const override { return d == 0 ? "normal" : "wide"; }
  Status make_inputs(const Problem&, int distribution, uint64_t seed,
                     std::span<const DLTensor> args) const override {
    search::Rng rng(seed);
    for (int a = 0; a < 3; ++a) {
      if (args[static_cast<size_t>(a)].data == nullptr) continue;
      auto* data = static_cast<float*>(args[static_cast<size_t>(a)].data);
      for (int64_t i = 0; i < elements(args[static_cast<size_t>(a)]); ++i)
        data[i] =
            static_cast<float>(rng.uniform(-1, 1) * (distribution == 1 ? std::exp2(rng.uniform(-8, 8)) : 1));
    }
    return {};
  }
  Status reference(const Problem& p, std::span<const DLTensor> args,
                   std::span<const DLTensor> out) const override {
    const auto* x = static_cast<const float*>(args[0].data);
    const auto* w = static_cast<const float*>(args[1].data);
    const auto* b = static_cast<const float*>(args[2].data);
    auto* y = static_cast<double*>(out[0].data);
    const int64_t rows = p.axes[0], n = p.axes[1];
    for (int64_t i = 0; i < rows * n; ++i)
      y[i] = std::max(0.0, static_cast<double>(x[i]) * w[i % n] + (b != nullptr ? b[i % n] : 0.0));
    return {};
  }
  int fallback_count() const override { return 2; }
  std::string_view fallback_name(int form) const override { return form == 0 ? "column order" : "row order"; }
  void run_fallback(int form, const CallFrame& frame) const override {
    void* const* p =
        frame.native != nullptr ? static_cast<ToyNative*>(frame.native)->pointers() : frame.args->p;
    const auto* x = static_cast<const float*>(p[0]);
    const auto* w = static_cast<const float*>(p[1]);
    const auto* b = static_cast<const float*>(p[2]);
    auto* y = static_cast<float*>(p[3]);
    const long rows = frame.args->n[0], n = frame.args->n[1];
    const auto at = [&](long i, long j) {
      // volatile: a library's element-wise loop through a function pointer does not vectorise either.
      volatile float v = x[i * n + j] * w[j];
      const float s = v + (b != nullptr ? b[j] : 0.0F);
      y[i * n + j] = s > 0 ? s : 0.0F;
    };
    if (form == 0) {
      for (long j = 0; j < n; ++j)
        for (long i = 0; i < rows; ++i) at(i, j);
    } else {
      for (long i = 0; i < rows; ++i)
        for (long j = 0; j < n; ++j) at(i, j);
    }
  }
  std::unique_ptr<NativeArgs> wrap(const Problem& p, void* const* args) const override {
    return std::make_unique<ToyNative>(p, args);
  }

 private:
  static int64_t elements(const DLTensor& t) {
    int64_t n = 1;
    for (int i = 0; i < t.ndim; ++i) n *= t.shape[i];
    return n;
  }
  std::shared_ptr<const OpSchema> schema_;
};

}  // namespace niche::evolve::testing_ops
