// AffineOp: y[M,N] = x[M,N] * w[N] + b[N], in plain C++: an operator for tests of the runtime. Its library
// forms count their runs, can be slowed down and can throw, as a library may.
#pragma once

#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "dispatch/base/hash.h"
#include "dispatch/op_spec.h"

namespace niche::testing_ops {

using namespace dispatch;  // NOLINT: a test's vocabulary

class AffineOp final : public OpSpec {
 public:
  explicit AffineOp(std::string name = "affine") {
    auto s = std::make_shared<OpSchema>();
    s->op = std::move(name);
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
    return axes[0] >= 0 ? Status() : invalid("affine: M is negative");
  }
  Cost cost(const Problem& p) const override {
    const auto n = static_cast<double>(p.arg_elements(0));
    return {2 * n, 8 * n};
  }
  Tolerance tolerance(const Definition&) const override {
    return {false, 2.0, 1e-6, "a multiplication and an addition"};
  }
  int distributions() const override { return 1; }
  std::string_view distribution_name(int) const override { return "uniform"; }
  Status make_inputs(const Problem&, int, uint64_t seed, std::span<const DLTensor> args) const override {
    for (size_t a = 0; a < 3; ++a) {
      if (args[a].data == nullptr) continue;
      int64_t n = 1;
      for (int d = 0; d < args[a].ndim; ++d) n *= args[a].shape[d];
      for (int64_t i = 0; i < n; ++i)
        static_cast<float*>(args[a].data)[i] = static_cast<float>(
            static_cast<double>(mix64(seed + static_cast<uint64_t>(i)) >> 11) / 9007199254740992.0 - 0.5);
    }
    return {};
  }
  Status reference(const Problem& p, std::span<const DLTensor> args,
                   std::span<const DLTensor> out) const override {
    const auto* x = static_cast<const float*>(args[0].data);
    const auto* w = static_cast<const float*>(args[1].data);
    const auto* b = static_cast<const float*>(args[2].data);
    auto* y = static_cast<double*>(out[0].data);
    const int64_t n = p.axes[1];
    for (int64_t i = 0; i < p.axes[0] * n; ++i)
      y[i] = static_cast<double>(x[i]) * w[i % n] + (b != nullptr ? b[i % n] : 0.0);
    return {};
  }
  int fallback_count() const override { return 2; }
  bool runs_on_device() const override { return on_device; }
  std::string_view fallback_name(int form) const override { return form == 0 ? "columns" : "rows"; }
  void run_fallback(int form, const CallFrame& frame) const override {
    runs[form].fetch_add(1, std::memory_order_relaxed);
    ++runs_of_thread;
    if (on_run) on_run(form);
    if (throws.load(std::memory_order_relaxed)) throw std::out_of_range("index out of range in self");
    void* const* p = frame.args->p;
    const auto* x = static_cast<const float*>(p[0]);
    const auto* w = static_cast<const float*>(p[1]);
    const auto* b = static_cast<const float*>(p[2]);
    auto* y = static_cast<float*>(p[3]);
    const long rows = frame.args->n[0], n = frame.args->n[1];
    // Column order, and element by element (volatile): a library form that a kernel can beat.
    const auto at = [&](long i, long j) {
      volatile float v = x[i * n + j] * w[j];
      y[i * n + j] = v + (b != nullptr ? b[j] : 0.0F);
    };
    if (form == 0) {
      for (long j = 0; j < n; ++j)
        for (long i = 0; i < rows; ++i) at(i, j);
    } else {
      for (long i = 0; i < rows; ++i)
        for (long j = 0; j < n; ++j) at(i, j);
    }
  }
  std::unique_ptr<NativeArgs> wrap(const Problem&, void* const*) const override { return nullptr; }

  mutable std::atomic<int> runs[2] = {};
  // Of all operators, on this thread: what a caller was answered by, without what niche measures beside it.
  static inline thread_local int runs_of_thread = 0;
  std::atomic<bool> throws{false};
  std::function<void(int form)> on_run;
  bool on_device = false;  // a fake device's memory is this process's

 private:
  std::shared_ptr<const OpSchema> schema_;
};

// A float tensor with its DLPack view.
class Floats {
 public:
  explicit Floats(std::vector<int64_t> shape, float fill = 0) : shape_(std::move(shape)) {
    int64_t n = 1;
    for (int64_t s : shape_) n *= s;
    data_.assign(static_cast<size_t>(n) + 16, fill);
    // 64-byte aligned, as serving engines' allocators give it.
    at_ = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(data_.data()) + 63) / 64 * 64);
    size_ = static_cast<size_t>(n);
  }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  float& operator[](size_t i) { return at_[i]; }
  size_t size() const { return size_; }
  float* data() { return at_; }
  void fill(uint64_t seed) {
    for (size_t i = 0; i < size_; ++i)
      at_[i] =
          static_cast<float>(static_cast<double>(mix64(seed * 7919 + i) >> 11) / 9007199254740992.0 - 0.5);
  }
  DLTensor view() {
    DLTensor t{};
    t.data = at_;
    t.device = {kDLCPU, 0};
    t.ndim = static_cast<int>(shape_.size());
    t.dtype = kF32;
    t.shape = shape_.data();
    return t;
  }

 private:
  std::vector<int64_t> shape_;
  std::vector<float> data_;
  float* at_ = nullptr;
  size_t size_ = 0;
};

// One call's tensors: x random, w and b given, y poisoned.
struct AffineCall {
  AffineCall(int64_t m, int64_t n, uint64_t seed = 1) : x({m, n}), w({n}), b({n}), y({m, n}, NAN) {
    x.fill(seed);
    w.fill(seed + 1);
    b.fill(seed + 2);
  }
  std::vector<DLTensor> args() { return {x.view(), w.view(), b.view(), y.view()}; }
  // Largest |y - (x*w+b)|.
  double error() {
    double worst = 0;
    const size_t n = w.size();
    for (size_t i = 0; i < y.size(); ++i) {
      const double e =
          std::abs(static_cast<double>(y[i]) - (static_cast<double>(x[i]) * w[i % n] + b[i % n]));
      if (!(e <= worst)) worst = std::isnan(e) ? INFINITY : e;
    }
    return worst;
  }
  Floats x, w, b, y;
};

}  // namespace niche::testing_ops
