// How many permits a device session needs to its first verified kernel: the judge itself over the fake driver, with a
// gate that counts. The scenario is that of the ranker's map_id on an H200 (docs/cuda.md): a batch of eight candidates
// screened, two judged, eight problems seen.
#include <gtest/gtest.h>

#include "evolve/judge_device/device_evaluator.h"
#include "tests/runtime/cuda_affine.h"

namespace niche::testing_ops {
namespace {

constexpr int64_t kN = 64;

// `number` differs in its machine code alone; what it does on the fake device is its symbol's.
evolve::Candidate candidate(size_t variant, int number) {
  const AffineCudaFamily family;
  evolve::CudaTarget target;
  target.arch = "sm_90a";
  evolve::CudaKernelSource from =
      family.render(*Definition::make(AffineOp().schema(), kF32, {{"N", kN}}, {{"has_b", 1}}).value(), target,
                    {static_cast<int>(variant)});
  const size_t at = from.text.find("= 1.0f");
  from.text.replace(at, 6, "= " + std::to_string(number) + ".5f");
  evolve::Candidate c;
  c.id = from.kernel_name + "." + std::to_string(number);
  c.source.text = from.text;
  c.source.limits = from.limits;
  c.source.kernel_name = c.id;
  c.source.plan.phases = {{from.plan.phases[0].symbol, from.plan.phases[0].factors, 2}};
  c.source.cuda = std::make_shared<const CudaLaunchPlan>(from.plan);
  return c;
}

class Counting final : public evolve::PermitSource {
 public:
  evolve::Permit ask(int64_t wanted_ns) override {
    out = true;
    return {++permits, std::min<int64_t>(wanted_ns, 300'000), 0};
  }
  void give_back(const evolve::Permit&) override { out = false; }
  void revoke(const evolve::Permit&) override { out = false, ++revoked; }
  uint64_t permits = 0, revoked = 0;
  bool out = false;
};

class CudaPermits : public ::testing::Test {
 protected:
  std::unique_ptr<evolve::Evaluator> evaluator() {
    auto op = std::make_shared<AffineOp>();
    op->on_device = true;
    evolve::EvaluatorSpec spec;
    spec.op = op;
    spec.definition = Definition::make(op->schema(), kF32, {{"N", kN}}, {{"has_b", 1}}).value();
    for (int64_t m : {3, 8, 17, 33, 64, 100, 128, 200})
      spec.problems.push_back({{m}, static_cast<double>(m), false});
    evolve::DeviceEvaluatorOptions device;
    device.probe.program = NICHE_TEST_CUDA_PROGRAM;
    device.probe.args = {"probe"};
    device.permits = &gate;
    device.clock = &clock;
    device.l2_bytes = 1 << 20;
    evolve::EvaluatorOptions options;
    options.seed = 7;
    options.judge_seconds_max = options.screen_seconds_max = 120;
    auto made = evolve::make_device_evaluator(std::move(spec), std::move(options), std::move(device));
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(*made);
  }
  SystemClock clock;
  Counting gate;
};

TEST_F(CudaPermits, FirstVerifiedKernelTakesFewPermits) {
  auto e = evaluator();
  ASSERT_TRUE(e->baselines().ok());
  const uint64_t baselines = gate.permits;
  std::vector<evolve::Candidate> batch;
  for (int i = 0; i < 8; ++i) batch.push_back(candidate(i % 2 == 0 ? 3 : 0, i));
  const auto verdicts = e->screen(batch);
  const uint64_t screened = gate.permits;
  for (size_t i = 0; i < batch.size(); ++i) {
    EXPECT_EQ(verdicts[i].failed_gate, i % 2 == 0 ? evolve::Gate::kNone : evolve::Gate::kScreen)
        << verdicts[i].reason;
    EXPECT_EQ(verdicts[i].timing.size(), 3u);
  }
  const auto first = e->judge(batch[0]);
  EXPECT_EQ(first.verdict.status, evolve::VerdictStatus::kFaster) << first.verdict.reason;
  const uint64_t judged = gate.permits;
  const auto second = e->judge(batch[2]);
  EXPECT_EQ(second.verdict.status, evolve::VerdictStatus::kFaster) << second.verdict.reason;
  std::printf("permits: baselines %d, screen of 8 %d, a judgement %d, the next %d, in all %d\n%s\n",
              static_cast<int>(baselines), static_cast<int>(screened - baselines),
              static_cast<int>(judged - screened), static_cast<int>(gate.permits - judged),
              static_cast<int>(gate.permits), e->spent().c_str());
  // When each step asked for a permit of its own: 24, 339, 288, 288, in all 939.
  EXPECT_LE(judged, 300u);
  EXPECT_LE(gate.permits, 400u);
  EXPECT_EQ(gate.revoked, 0u);
  EXPECT_FALSE(gate.out);
}

}  // namespace
}  // namespace niche::testing_ops
