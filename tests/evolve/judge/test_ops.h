// Operators in plain C++ for tests of the evaluator: a row norm (a reduction, with a weight), an in-place
// update and an exact gather. Their library forms are honest scalar loops.
#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "dispatch/op_spec.h"

namespace niche::evolve::test_ops {

using namespace dispatch;  // NOLINT: a test's vocabulary

// Outputs that the operator allocates itself, as a server's tensors would.
class PlainNative final : public NativeArgs {
 public:
  PlainNative(const Problem& p, void* const* args) {
    const auto& schema = p.definition->schema();
    for (size_t i = 0; i < schema.args.size(); ++i) {
      p_[i] = args[i];
      if (schema.args[i].role == ArgRole::kOut)
        out_.emplace_back(i, static_cast<size_t>(p.arg_bytes(static_cast<int>(i))));
    }
  }
  void* get() override { return this; }
  void drop_outputs() override {
    for (auto& o : out_) o.memory.reset();
  }
  void make_outputs() override {
    for (auto& o : out_)
      if (!o.memory) o.memory.reset(static_cast<char*>(std::aligned_alloc(64, (o.bytes + 63) / 64 * 64)));
  }
  void outputs(void** p) override {
    for (auto& o : out_)
      if (o.memory) p[o.arg] = o.memory.get();
  }
  void* const* pointers() {
    make_outputs();
    outputs(p_);
    return p_;
  }

 private:
  struct Out {
    Out(size_t a, size_t b) : arg(a), bytes(b) {}
    size_t arg, bytes;
    std::unique_ptr<char, void (*)(void*)> memory{nullptr, std::free};
  };
  void* p_[kMaxArgs] = {};
  std::vector<Out> out_;
};

class PlainOp : public OpSpec {
 public:
  const std::shared_ptr<const OpSchema>& schema() const override { return schema_; }
  Status derive_axes(const Definition&, std::span<int64_t> axes) const override {
    return axes[0] > 0 ? Status() : invalid("M must be positive");
  }
  Cost cost(const Problem& p) const override {
    const auto n = static_cast<double>(p.arg_elements(0));
    return {3 * n, 8 * n};
  }
  std::unique_ptr<NativeArgs> wrap(const Problem& p, void* const* args) const override {
    return std::make_unique<PlainNative>(p, args);
  }
  int distributions() const override { return 3; }
  std::string_view distribution_name(int d) const override {
    return d == 0 ? "normal" : d == 1 ? "wide" : "signs";
  }

 protected:
  static void* const* pointers(const CallFrame& f) {
    return f.native != nullptr ? static_cast<PlainNative*>(f.native)->pointers() : f.args->p;
  }
  static void fill(const DLTensor& t, int distribution, std::mt19937_64& random) {
    int64_t n = 1;
    for (int i = 0; i < t.ndim; ++i) n *= t.shape[i];
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> exponent(-6, 6);
    for (int64_t i = 0; i < n; ++i) {
      float v = normal(random);
      if (distribution == 1) v *= std::exp2(exponent(random));
      if (distribution == 2) v = i % 2 != 0 ? -v : v;
      static_cast<float*>(t.data)[i] = v;
    }
  }
  std::shared_ptr<const OpSchema> schema_;
};

// y[m,n] = x[m,n] * w[n] / sqrt(mean_n x[m,n]^2 + eps)
class NormOp : public PlainOp {
 public:
  NormOp() {
    auto s = std::make_shared<OpSchema>();
    s->op = "test_norm";
    s->axes = {{"M", AxisKind::kVar}, {"N", AxisKind::kConst}};
    s->args = {{"x", ArgRole::kIn, "T", {0, 1}},
               {"w", ArgRole::kIn, "T", {1}, false, true},
               {"y", ArgRole::kOut, "T", {0, 1}}};
    s->attrs = {{"eps", 1e-6}};
    s->dtypes = {"f32"};
    schema_ = s;
  }
  Tolerance tolerance(const Definition&) const override { return {false, 2.0, 0, "one reduction a row"}; }
  Status make_inputs(const Problem&, int distribution, uint64_t seed,
                     std::span<const DLTensor> args) const override {
    std::mt19937_64 random(seed);
    fill(args[0], distribution, random);
    fill(args[1], 0, random);
    return {};
  }
  Status reference(const Problem& p, std::span<const DLTensor> args,
                   std::span<const DLTensor> out) const override {
    const auto* x = static_cast<const float*>(args[0].data);
    const auto* w = static_cast<const float*>(args[1].data);
    auto* y = static_cast<double*>(out[0].data);
    const int64_t m = p.axes[0], n = p.axes[1];
    for (int64_t i = 0; i < m; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < n; ++j) sum += static_cast<double>(x[i * n + j]) * x[i * n + j];
      const double scale = 1 / std::sqrt(sum / static_cast<double>(n) + p.definition->attr("eps"));
      for (int64_t j = 0; j < n; ++j) y[i * n + j] = x[i * n + j] * scale * w[j];
    }
    return {};
  }
  int fallback_count() const override { return 2; }
  std::string_view fallback_name(int form) const override { return form == 0 ? "as written" : "row by row"; }
  void run_fallback(int form, const CallFrame& frame) const override {
    void* const* p = pointers(frame);
    const long m = frame.args->n[0], n = frame.args->n[1];
    const int passes = form == 0 ? 3 : 1;  // as written: the reduction is done for each of three temporaries
    rows(static_cast<const float*>(p[0]), static_cast<const float*>(p[1]), static_cast<float*>(p[2]), m, n,
         static_cast<float>(frame.args->a[0]), passes);
  }

 private:
  __attribute__((noinline, optimize("no-tree-vectorize"))) static void rows(const float* x, const float* w,
                                                                            float* y, long m, long n,
                                                                            float eps, int passes) {
    for (long i = 0; i < m; ++i) {
      float scale = 0;
      for (int pass = 0; pass < passes; ++pass) {
        float sum = 0;
        for (long j = 0; j < n; ++j) sum += x[i * n + j] * x[i * n + j];
        scale = 1 / std::sqrt(sum / static_cast<float>(n) + eps);
      }
      for (long j = 0; j < n; ++j) y[i * n + j] = x[i * n + j] * scale * w[j];
    }
  }
};

// s[m,n] = s[m,n] * 0.5 + x[m,n], in place.
class UpdateOp final : public PlainOp {
 public:
  UpdateOp() {
    auto s = std::make_shared<OpSchema>();
    s->op = "test_update";
    s->axes = {{"M", AxisKind::kVar}, {"N", AxisKind::kConst}};
    s->args = {{"x", ArgRole::kIn, "T", {0, 1}}, {"s", ArgRole::kInOut, "T", {0, 1}}};
    s->dtypes = {"f32"};
    schema_ = s;
  }
  Tolerance tolerance(const Definition&) const override { return {false, 2.0, 0, "two roundings"}; }
  Status make_inputs(const Problem&, int distribution, uint64_t seed,
                     std::span<const DLTensor> args) const override {
    std::mt19937_64 random(seed);
    fill(args[0], distribution, random);
    fill(args[1], 0, random);
    return {};
  }
  Status reference(const Problem& p, std::span<const DLTensor> args,
                   std::span<const DLTensor> out) const override {
    for (int64_t i = 0; i < p.axes[0] * p.axes[1]; ++i)
      static_cast<double*>(out[0].data)[i] = static_cast<const float*>(args[1].data)[i] * 0.5 +
                                             static_cast<double>(static_cast<const float*>(args[0].data)[i]);
    return {};
  }
  int fallback_count() const override { return 1; }
  std::string_view fallback_name(int) const override { return "scalar loop"; }
  void run_fallback(int, const CallFrame& frame) const override {
    void* const* p = pointers(frame);
    rows(static_cast<const float*>(p[0]), static_cast<float*>(p[1]), frame.args->n[0] * frame.args->n[1]);
  }

 private:
  __attribute__((noinline, optimize("no-tree-vectorize"))) static void rows(const float* x, float* s,
                                                                            long n) {
    for (long i = 0; i < n; ++i) s[i] = s[i] * 0.5F + x[i];
  }
};

// y[m] = table[ids[m]], exact.
class GatherOp final : public PlainOp {
 public:
  GatherOp() {
    auto s = std::make_shared<OpSchema>();
    s->op = "test_gather";
    s->axes = {{"M", AxisKind::kVar}, {"K", AxisKind::kConst}};
    s->args = {{"ids", ArgRole::kIn, "i64", {0}},
               {"table", ArgRole::kIn, "i64", {1}},
               {"y", ArgRole::kOut, "i64", {0}}};
    s->dtypes = {"i64"};
    schema_ = s;
  }
  Tolerance tolerance(const Definition&) const override { return {true, 0, 0, "a gather"}; }
  Status make_inputs(const Problem& p, int, uint64_t seed, std::span<const DLTensor> args) const override {
    std::mt19937_64 random(seed);
    for (int64_t i = 0; i < p.axes[0]; ++i)
      static_cast<int64_t*>(args[0].data)[i] =
          static_cast<int64_t>(random() % static_cast<uint64_t>(p.axes[1]));
    for (int64_t i = 0; i < p.axes[1]; ++i)
      static_cast<int64_t*>(args[1].data)[i] = static_cast<int64_t>(random());
    return {};
  }
  Status reference(const Problem& p, std::span<const DLTensor> args,
                   std::span<const DLTensor> out) const override {
    for (int64_t i = 0; i < p.axes[0]; ++i)
      static_cast<int64_t*>(out[0].data)[i] =
          static_cast<const int64_t*>(args[1].data)[static_cast<const int64_t*>(args[0].data)[i]];
    return {};
  }
  int fallback_count() const override { return 1; }
  std::string_view fallback_name(int) const override { return "loop"; }
  void run_fallback(int, const CallFrame& frame) const override {
    void* const* p = pointers(frame);
    for (long i = 0; i < frame.args->n[0]; ++i)
      static_cast<int64_t*>(p[2])[i] =
          static_cast<const int64_t*>(p[1])[static_cast<const int64_t*>(p[0])[i]];
  }
};

}  // namespace niche::evolve::test_ops
