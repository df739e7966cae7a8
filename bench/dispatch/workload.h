// What every subject of bench/dispatch serves: one operator's problems, the kernels that answer them, and
// streams of calls.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "dispatch/dispatcher.h"

namespace niche::bench {

using dispatch::Kernel;
using dispatch::kMaxVarAxes;

// The raw axes of one call.
struct Axes {
  int64_t v[kMaxVarAxes];
};

class BenchOp final : public dispatch::OpSpec {
 public:
  BenchOp() {
    auto s = std::make_shared<dispatch::OpSchema>();
    s->op = "bench";
    s->axes = {
        {"B", dispatch::AxisKind::kVar}, {"L", dispatch::AxisKind::kVar}, {"N", dispatch::AxisKind::kConst}};
    s->args = {{"x", dispatch::ArgRole::kIn, "T", {0, 1, 2}}, {"y", dispatch::ArgRole::kOut, "T", {0, 1, 2}}};
    s->dtypes = {"f32"};
    schema_ = s;
  }
  const std::shared_ptr<const dispatch::OpSchema>& schema() const override { return schema_; }
  dispatch::Status derive_axes(const dispatch::Definition&, std::span<int64_t>) const override { return {}; }
  dispatch::Cost cost(const dispatch::Problem&) const override { return {}; }
  dispatch::Tolerance tolerance(const dispatch::Definition&) const override { return {}; }
  int distributions() const override { return 1; }
  std::string_view distribution_name(int) const override { return "none"; }
  dispatch::Status make_inputs(const dispatch::Problem&, int, uint64_t,
                               std::span<const DLTensor>) const override {
    return {};
  }
  dispatch::Status reference(const dispatch::Problem&, std::span<const DLTensor>,
                             std::span<const DLTensor>) const override {
    return {};
  }
  int fallback_count() const override { return 1; }
  std::string_view fallback_name(int) const override { return "library"; }
  void run_fallback(int, const dispatch::CallFrame&) const override {}
  std::unique_ptr<dispatch::NativeArgs> wrap(const dispatch::Problem&, void* const*) const override {
    return nullptr;
  }

 private:
  std::shared_ptr<const dispatch::OpSchema> schema_;
};

struct Workload {
  explicit Workload(uint32_t routes_in) : routes(routes_in), op(std::make_shared<BenchOp>()) {
    definition = *dispatch::Definition::make(op->schema(), dispatch::kF32, {{"N", 4096}});
    std::mt19937_64 rng(routes);
    // Shapes as a server has them: small batches, lengths up to some thousand; all distinct.
    for (uint32_t i = 0; i < routes; ++i) hits.push_back({{1 + i % 64, 1 + i / 64, 0, 0, 0}});
    for (uint32_t i = 0; i < 4096; ++i) misses.push_back({{65 + i % 64, 1 + i, 0, 0, 0}});
    kernels.resize(std::min<uint32_t>(routes, 4096));
    for (auto& k : kernels) {
      auto made = std::make_shared<Kernel>();
      made->launch = [](const Kernel&, dispatch::CallFrame&, const dispatch::Executor&) {};
      made->kind = dispatch::KernelKind::kCpu;
      made->id = dispatch::next_kernel_id();
      made->name = "bench.f32";
      made->definition = definition;
      made->guard.var_count = 2;
      made->guard.var[0] = {1, 64, 1};
      made->guard.var[1] = {1, int64_t{1} << 30, 1};
      made->guard.alignment_bytes = 16;
      k = made;
    }
    for (uint32_t i = 0; i < kCalls; ++i) {
      random.push_back(hits[rng() % routes]);
      repeat.push_back(hits[routes / 2]);
      missing.push_back(misses[rng() % misses.size()]);
    }
  }
  const std::shared_ptr<const Kernel>& kernel(uint32_t route) const {
    return kernels[route % kernels.size()];
  }

  static constexpr uint32_t kCalls = 1 << 15;
  uint32_t routes;
  std::shared_ptr<BenchOp> op;
  std::shared_ptr<const dispatch::Definition> definition;
  std::vector<Axes> hits, misses;
  std::vector<std::shared_ptr<const Kernel>> kernels;
  std::vector<Axes> random, repeat, missing;  // streams of kCalls calls
};

}  // namespace niche::bench
