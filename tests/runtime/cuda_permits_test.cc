// How many permits a device session needs to its first verified kernel: the judge itself over the fake driver, with a
// gate that counts. The scenario is that of the ranker's map_id on an H200 (docs/cuda.md): a batch of eight candidates
// screened, two judged, eight problems seen.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "evolve/judge/evaluate_file.h"
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
    device.peaks = peaks;
    device.profiler = profiler;
    evolve::EvaluatorOptions options;
    options.seed = 7;
    options.judge_seconds_max = options.screen_seconds_max = 120;
    options.keep_going = keep_going;
    auto made = evolve::make_device_evaluator(std::move(spec), std::move(options), std::move(device));
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(*made);
  }
  SystemClock clock;
  Counting gate;
  evolve::DevicePeaks peaks;
  evolve::ProfilerOptions profiler;
  std::function<bool()> keep_going;
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

// The digest of what is timed, computed from the cubin that NVRTC made, the plan, the counts and the device's time.
TEST_F(CudaPermits, WhatIsTimedHasADigest) {
  fake_cuda::reset();
  const auto found = CudaInfo::discover(*fake_cuda::driver());
  ASSERT_TRUE(found.ok());
  peaks = evolve::DevicePeaks::of(found->at(0));
  auto e = evaluator();
  const std::vector<evolve::Candidate> batch = {candidate(3, 0), candidate(1, 1)};
  const auto verdicts = e->screen(batch);
  ASSERT_TRUE(verdicts[0].digest.has_value()) << verdicts[0].reason;
  EXPECT_FALSE(verdicts[1].digest.has_value()) << "a wrong one is not timed";
  const auto judged = e->judge(batch[0]).verdict;
  ASSERT_TRUE(judged.digest.has_value()) << judged.reason;
  const evolve::Digest& d = *judged.digest;
  EXPECT_EQ(d.var_axes, std::vector<int64_t>{200}) << "the heaviest problem";
  EXPECT_NEAR(d.kernel_us, kFastUs, 0.5);
  EXPECT_LT(d.dram, 0) << "it stays in the L2";
  EXPECT_NEAR(d.l2, 8.0 * 200 * kN / (d.kernel_us * 1e3) / peaks.l2, 1e-9);
  EXPECT_NEAR(d.fma, 2.0 * 200 * kN / (d.kernel_us * 1e3) / peaks.fma32, 1e-9);
  EXPECT_EQ(d.symbol, "affine_fast");
  EXPECT_GT(d.registers, 0);
  EXPECT_EQ(d.threads, 128);
  EXPECT_EQ(d.blocks, 50);
  EXPECT_EQ(d.blocks_per_sm, 16) << "2,048 threads";
  EXPECT_EQ(evolve::diagnose(d).bottleneck, "grid") << "50 blocks on 132 multiprocessors";
}

// What `niche evaluate --device` does with a text.
TEST_F(CudaPermits, AProgramInAFileIsJudgedByTheDevicesJudge) {
  const std::string path = ::testing::TempDir() + "/program_" + std::to_string(::getpid()) + ".cu";
  const auto write = [&](const std::string& symbol, const std::string& entry) {
    std::ofstream(path) << "// niche: preamble\n// niche: phase " << symbol << " grid=M/4 threads=128\n"
                        << "// niche: align 4\n"
                        << entry << " void " << symbol
                        << "(const Args a) {\n"
                           "  if (threadIdx.x < a.n[0]) ((float*)a.p[3])[threadIdx.x] = 9.5f;\n}\n";
  };
  auto op = std::make_shared<AffineOp>();
  op->on_device = true;
  evolve::CudaTarget target;
  target.arch = "sm_90a";
  evolve::EvaluatorSpec spec;
  spec.op = op;
  spec.definition = Definition::make(op->schema(), kF32, {{"N", kN}}, {{"has_b", 1}}).value();
  spec.problems = {{{8}, 1, false}, {{64}, 1, false}};
  spec.target.device = "cuda.sm_90a";
  spec.target.cuda = std::make_shared<const evolve::CudaTarget>(target);
  const evolve::EvaluatorFactory make = [&](evolve::EvaluatorSpec s, evolve::EvaluatorOptions o) {
    evolve::DeviceEvaluatorOptions device;
    device.probe.program = NICHE_TEST_CUDA_PROGRAM;
    device.probe.args = {"probe"};
    device.permits = &gate;
    device.clock = &clock;
    device.l2_bytes = 1 << 20;
    return evolve::make_device_evaluator(std::move(s), std::move(o), std::move(device));
  };
  evolve::EvaluatorOptions options;
  options.seed = 7;
  write("affine_fast", "extern \"C\" __global__");
  auto judged = evolve::evaluate_file(path, spec, options, make);
  ASSERT_TRUE(judged.ok()) << judged.status().to_string();
  EXPECT_EQ(judged->judgement.verdict.status, evolve::VerdictStatus::kFaster)
      << judged->judgement.verdict.to_json();
  EXPECT_FALSE(judged->judgement.verdict.failed_case);
  ASSERT_TRUE(judged->source.cuda);
  EXPECT_FALSE(judged->judgement.artefact.empty());

  write("affine_wrong", "extern \"C\" __global__");
  judged = evolve::evaluate_file(path, spec, options, make);
  ASSERT_TRUE(judged.ok()) << judged.status().to_string();
  EXPECT_EQ(judged->judgement.verdict.status, evolve::VerdictStatus::kRejected);
  EXPECT_EQ(judged->judgement.verdict.failed_gate, evolve::Gate::kSmoke);
  ASSERT_TRUE(judged->judgement.verdict.failed_case);

  write("affine_past_end", "extern \"C\" __global__");
  judged = evolve::evaluate_file(path, spec, options, make);
  ASSERT_TRUE(judged.ok()) << judged.status().to_string();
  EXPECT_EQ(judged->judgement.verdict.status, evolve::VerdictStatus::kRejected);
  EXPECT_TRUE(judged->judgement.verdict.failed_case) << "of a launch that did not end well as well";

  write("affine_fast", "extern \"C\"");
  judged = evolve::evaluate_file(path, spec, options, make);
  ASSERT_TRUE(judged.ok()) << judged.status().to_string();
  EXPECT_EQ(judged->judgement.verdict.failed_gate, evolve::Gate::kCompile);
  EXPECT_NE(judged->judgement.verdict.reason.find("__global__"), std::string::npos);
  ::unlink(path.c_str());
}

TEST_F(CudaPermits, ACompilerAndAProfilerEndWithTheSessionsTime) {
  const std::string ncu = ::testing::TempDir() + "/slow_ncu_" + std::to_string(::getpid());
  const std::string begun = ncu + ".begun";
  std::ofstream(ncu) << "#!/bin/sh\n: > " << begun << "\nsleep 600\n";
  ASSERT_EQ(::chmod(ncu.c_str(), 0700), 0);
  profiler.ncu = ncu;
  profiler.program = NICHE_TEST_CUDA_PROGRAM;
  profiler.args = {"probe"};
  bool go = true;
  keep_going = [&] { return go && ::access(begun.c_str(), F_OK) != 0; };
  auto e = evaluator();
  const auto profile = e->profile(candidate(3, 0));
  EXPECT_EQ(profile.status().code(), Code::kBusy) << profile.status().to_string();
  EXPECT_NE(profile.status().message().find("the time was up"), std::string::npos);
  ::unlink(begun.c_str());
  ::unlink(ncu.c_str());

  go = false;
  const std::vector<evolve::Candidate> batch = {candidate(3, 0), candidate(3, 1)};
  for (const auto& v : e->screen(batch)) {
    EXPECT_EQ(v.status, evolve::VerdictStatus::kAmbiguous) << "nothing is said against it";
    EXPECT_EQ(v.reason, "not compiled: the time was up");
  }
  go = true;
  for (const auto& v : e->screen(batch)) EXPECT_EQ(v.failed_gate, evolve::Gate::kNone) << v.reason;
}

// A profiler of shell text in Nsight Compute's place: it runs what it is given, and prints its report.
TEST_F(CudaPermits, AProfilerSeesTheLastLaunchesOfOneProcess) {
  const std::string ncu = ::testing::TempDir() + "/fake_ncu_" + std::to_string(::getpid());
  const auto write = [&](const std::string& then) {
    std::ofstream(ncu) << "#!/bin/sh\necho \"$@\" > " << ncu << ".args\n"
                       << "while [ \"$1\" != \"--launch-count\" ]; do shift; done; shift 2\n\"$@\" > " << ncu
                       << ".out || exit 9\n"
                       << then;
    ASSERT_EQ(::chmod(ncu.c_str(), 0700), 0);
  };
  const auto read = [](const std::string& path) {
    std::ifstream in(path);
    return std::string{std::istreambuf_iterator<char>(in), {}};
  };
  profiler.ncu = ncu;
  profiler.program = NICHE_TEST_CUDA_PROGRAM;
  profiler.args = {"probe"};
  profiler.seconds_max = 60;
  auto e = evaluator();
  write(
      "printf '\"ID\",\"Kernel "
      "Name\",\"gpu__time_duration.sum\",\"dram__throughput.avg.pct_of_peak_sustained_elapsed\"\\n'\n"
      "printf '\"\",\"\",\"us\",\"%%\"\\n\"0\",\"affine_fast\",\"6.5\",\"42\"\\n'\n");
  const auto digest = e->profile(candidate(3, 0));
  ASSERT_TRUE(digest.ok()) << digest.status().to_string();
  ASSERT_TRUE(digest->counters.has_value());
  EXPECT_DOUBLE_EQ(digest->counters->us, 6.5);
  EXPECT_DOUBLE_EQ(digest->counters->dram, 0.42);
  // Residence, the checked launch, then the one that is looked at.
  EXPECT_EQ(read(ncu + ".out"), "launches affine_fast affine_fast affine_fast\n");
  const std::string args = read(ncu + ".args");
  EXPECT_NE(args.find("--launch-skip 2 --launch-count 1 "), std::string::npos) << args;
  EXPECT_NE(args.find("--cache-control none"), std::string::npos) << args;

  write("echo '==ERROR== ERR_NVGPUCTRPERM'\n");
  const auto refused = e->profile(candidate(3, 0));
  EXPECT_EQ(refused.status().code(), Code::kDevice);
  EXPECT_NE(refused.status().message().find("ERR_NVGPUCTRPERM"), std::string::npos)
      << refused.status().message();
  // A kernel that writes out of bounds ends its own process with a word on what it did.
  const auto broken = e->profile(candidate(2, 0));
  EXPECT_EQ(broken.status().code(), Code::kDevice);
  EXPECT_NE(broken.status().message().find("out_of_bounds"), std::string::npos) << broken.status().message();
  profiler.ncu.clear();
  EXPECT_EQ(evaluator()->profile(candidate(3, 0)).status().code(), Code::kUnsupported);
  for (const char* end : {"", ".args", ".out"}) ::unlink((ncu + end).c_str());
}

}  // namespace
}  // namespace niche::testing_ops
