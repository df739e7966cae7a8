// What the data plane's tests share: an operator of two variable axes whose kernels do nothing but leave
// their mark.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/dispatcher.h"

namespace niche::dispatch::testing {

inline std::shared_ptr<const OpSchema> toy_schema() {
  static const auto schema = [] {
    auto s = std::make_shared<OpSchema>();
    s->op = "toy";
    s->axes = {{"B", AxisKind::kVar}, {"L", AxisKind::kVar}, {"N", AxisKind::kConst}};
    s->args = {{"x", ArgRole::kIn, "T", {0, 1, 2}}, {"y", ArgRole::kOut, "T", {0, 1, 2}}};
    s->dtypes = {"f32"};
    return std::shared_ptr<const OpSchema>(s);
  }();
  return schema;
}

// Two library forms; each counts its runs.
class ToyOp final : public OpSpec {
 public:
  const std::shared_ptr<const OpSchema>& schema() const override { return schema_; }
  Status derive_axes(const Definition&, std::span<int64_t>) const override { return {}; }
  Cost cost(const Problem&) const override { return {1, 1}; }
  Tolerance tolerance(const Definition&) const override { return {}; }
  int distributions() const override { return 1; }
  std::string_view distribution_name(int) const override { return "plain"; }
  Status make_inputs(const Problem&, int, uint64_t, std::span<const DLTensor>) const override { return {}; }
  Status reference(const Problem&, std::span<const DLTensor>, std::span<const DLTensor>) const override {
    return {};
  }
  int fallback_count() const override { return 2; }
  std::string_view fallback_name(int form) const override { return form == 0 ? "first" : "second"; }
  void run_fallback(int form, const CallFrame&) const override {
    runs[form].fetch_add(1, std::memory_order_relaxed);
    if (throws) throw std::runtime_error("library");
  }
  std::unique_ptr<NativeArgs> wrap(const Problem&, void* const*) const override { return nullptr; }

  mutable std::atomic<int> runs[2] = {};
  bool throws = false;

 private:
  std::shared_ptr<const OpSchema> schema_ = toy_schema();
};

inline std::shared_ptr<const Definition> toy_definition(int64_t n = 64) {
  return *Definition::make(toy_schema(), kF32, {{"N", n}});
}

inline Guard box(int64_t b_lo, int64_t b_hi, int64_t l_lo, int64_t l_hi, int64_t l_multiple = 1) {
  Guard g;
  g.var[0] = {b_lo, b_hi, 1};
  g.var[1] = {l_lo, l_hi, l_multiple};
  g.var_count = 2;
  g.alignment_bytes = 16;
  return g;
}

// An evolved kernel without code. `tag` is told by frame.workspace_bytes after a launch.
inline std::shared_ptr<Kernel> toy_kernel(std::shared_ptr<const Definition> d, int tag = 0,
                                          Guard guard = box(1, 1 << 20, 1, 1 << 20)) {
  auto k = std::make_shared<Kernel>();
  k->launch = [](const Kernel& kernel, CallFrame& frame, const Executor&) {
    frame.workspace_bytes = kernel.phase_count;
  };
  k->phase_count = tag;
  k->kind = KernelKind::kCpu;
  k->id = next_kernel_id();
  k->name = "toy.f32.tag" + std::to_string(tag);
  k->definition = std::move(d);
  k->guard = guard;
  return k;
}

class DataPlane : public ::testing::Test {
 protected:
  void SetUp() override { start({}); }

  void start(DispatcherOptions options) {
    options.clock = &clock;
    auto made = Dispatcher::make(options);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    d = *made;
    definition = toy_definition();
    number = *d->define(op, definition);
    site = d->call_site(number, {});
  }

  WideProblem problem(int64_t b, int64_t l) const {
    return {site.prefix(), LayoutClass::plain(6), {b, l, 0, 0, 0}};
  }
  std::shared_ptr<Route> route(std::shared_ptr<const Kernel> incumbent,
                               std::shared_ptr<const Kernel> challenger = nullptr,
                               RolloutState state = RolloutState::kIncumbent, double share = 0) {
    auto r = d->make_route({definition, d->fallback(number, 1), std::move(incumbent), std::move(challenger),
                            state, share, "test"});
    EXPECT_TRUE(r.ok()) << r.status().to_string();
    return *r;
  }
  void publish(int64_t b, int64_t l, std::shared_ptr<Route> r) {
    const Status s = d->publisher().put(problem(b, l), std::move(r));
    ASSERT_TRUE(s.ok()) << s.to_string();
    const Status c = d->publisher().commit();
    ASSERT_TRUE(c.ok()) << c.to_string();
  }
  Decision decide(int64_t b, int64_t l) { return decide_at(site, b, l); }
  Decision decide_at(const CallSite& s, int64_t b, int64_t l, LayoutClass layout = LayoutClass::plain(6)) {
    const int64_t var[kMaxVarAxes] = {b, l};
    Dispatcher::Call call(*d);
    return call.decide(s, layout, var);
  }

  ManualClock clock{1};
  std::shared_ptr<ToyOp> op = std::make_shared<ToyOp>();
  std::shared_ptr<Dispatcher> d;
  std::shared_ptr<const Definition> definition;
  uint32_t number = 0;
  CallSite site;
};

}  // namespace niche::dispatch::testing
