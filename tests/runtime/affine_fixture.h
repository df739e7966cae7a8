// What the runtime's tests share: a Runtime with the operator of affine_op.h, and kernels for it from
// affine_kernels.c.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "dispatch/devices/cpu/cpu_kernel.h"
#include "dispatch/devices/cpu/cpu_module.h"
#include "runtime/core.h"
#include "runtime/handle_state.h"
#include "runtime/runtime.h"
#include "tests/runtime/affine_op.h"

namespace niche::testing_ops {

inline std::vector<uint8_t> affine_artefact() {
  std::ifstream in(NICHE_TEST_AFFINE_KERNELS, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline Guard rows(int64_t lo, int64_t hi) {
  Guard g;
  g.var_count = 1;
  g.var[0] = {lo, hi, 1};
  g.alignment_bytes = 4;
  return g;
}

inline LaunchPlan affine_plan(const std::string& symbol, int64_t n) {
  LaunchPlan plan;
  plan.phases = {{symbol, {{0, 1}}, 1 << 30}};
  if (symbol == "affine_packed") {
    plan.pack_symbol = "affine_packed_pack";
    plan.packed_bytes = 8 * n;
  }
  return plan;
}

inline std::shared_ptr<const Kernel> affine_kernel(const OpHandle& h, const std::string& symbol, Guard guard,
                                                   int pack_slot = Kernel::kNoPackSlot) {
  auto module = CpuModule::load_bytes(affine_artefact(), "affine");
  EXPECT_TRUE(module.ok()) << module.status().to_string();
  CpuKernelSpec spec;
  spec.name = "affine.f32." + symbol;
  spec.definition = h.state()->definition();
  spec.guard = guard;
  spec.plan = affine_plan(symbol, h.definition().const_extents()[1]);
  spec.pack_slot = pack_slot;
  auto kernel = load_cpu_kernel(spec, *module);
  EXPECT_TRUE(kernel.ok()) << kernel.status().to_string();
  return *kernel;
}

class AffineRuntime : public ::testing::Test {
 protected:
  static constexpr int64_t kN = 64;

  RuntimeConfig config() {
    RuntimeConfig c;
    c.ops = {op};
    c.evolve = false;
    return c;
  }
  void start(RuntimeConfig c) {
    auto made = Runtime::create(std::move(c));
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    runtime = *std::move(made);
    auto h = runtime->op("affine", kF32, {{"N", kN}});
    ASSERT_TRUE(h.ok()) << h.status().to_string();
    handle = *h;
  }
  // Publishes by hand, as the control plane would after a rollout.
  void publish(const std::shared_ptr<const Kernel>& kernel) {
    Dispatcher& d = runtime->dispatcher();
    auto route = d.make_route({kernel->definition, d.fallback(handle.id(), 0), kernel, nullptr,
                               RolloutState::kIncumbent, 0, "test"});
    ASSERT_TRUE(route.ok()) << route.status().to_string();
    const auto region = d.publisher().put_region({handle.state()->site().prefix(), kernel->guard, *route});
    ASSERT_TRUE(region.ok()) << region.status().to_string();
    ASSERT_TRUE(d.publisher().commit().ok());
  }
  Status call(AffineCall& c) { return handle.call(c.args()); }
  uint64_t rung(Rung r) { return runtime->dispatcher().totals().by_rung[static_cast<int>(r)]; }
  uint64_t reason(FallbackReason r) { return runtime->dispatcher().totals().by_reason[static_cast<int>(r)]; }

  std::shared_ptr<AffineOp> op = std::make_shared<AffineOp>();
  std::unique_ptr<Runtime> runtime;
  OpHandle handle;
};

}  // namespace niche::testing_ops
