// CUDA programs as text: what a phase line may say, and what is refused.
#include <gtest/gtest.h>

#include "evolve/candidate_text.h"
#include "evolve/cuda_plan_text.h"

namespace niche::evolve {
namespace {

using dispatch::Definition;

std::shared_ptr<const Definition> definition() {
  using enum dispatch::ArgRole;
  using enum dispatch::AxisKind;
  auto schema = std::make_shared<const dispatch::OpSchema>(
      dispatch::OpSchema{"scale",
                         {{"M", kVar}, {"L", kVar}, {"N", kConst}},
                         {{"x", kIn, "T", {0, 1, 2}}, {"y", kOut, "T", {0, 1, 2}}},
                         {},
                         {"f32"}});
  auto d = Definition::make(schema, dispatch::kF32, {{"N", 100}}, {});
  EXPECT_TRUE(d.ok()) << d.status().to_string();
  return *d;
}

CudaTarget target() { return CudaTarget(); }  // an H200's figures

dispatch::Result<Candidate> parse(const std::string& text, const CudaTarget& t = target()) {
  return candidate_from_text(*definition(), "k.cu", text, &t);
}

constexpr const char* kKernel = "extern \"C\" __global__ void run(const __grid_constant__ Args a) {}\n";

TEST(CudaProgramText, GoodProgramGetsItsLaunchPlan) {
  const auto c = parse(
      std::string("// niche: preamble\n// niche: name scale.f32.mine\n"
                  "// niche: phase run grid=M*L/200*N threads=320 shared=222720 per_sm=1 cluster=2 overlap\n"
                  "// niche: phase add grid=M\n// niche: workspace 4096\n// niche: limit L=4..4096%4\n") +
      kKernel);
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  const KernelSource& s = c->source;
  ASSERT_NE(s.cuda, nullptr);
  EXPECT_TRUE(s.text.starts_with(cuda_preamble()));
  ASSERT_EQ(s.cuda->phases.size(), 2u);
  const dispatch::CudaPhase& p = s.cuda->phases[0];
  EXPECT_EQ(p.symbol, "run");
  ASSERT_EQ(p.factors.size(), 3u);
  EXPECT_EQ(p.factors[1].axis, 1);
  EXPECT_EQ(p.factors[1].divisor, 200);
  EXPECT_EQ(p.threads, 320);
  EXPECT_EQ(p.shared_bytes, 222720);
  EXPECT_EQ(p.blocks_per_sm, 1);
  EXPECT_EQ(p.cluster, 2);
  EXPECT_TRUE(p.overlap);
  EXPECT_EQ(s.cuda->phases[1].threads, 256);
  EXPECT_EQ(s.cuda->workspace_bytes, 4096);
  EXPECT_EQ(s.plan.phases.size(), 2u) << "tiles, for the judge's points";
  EXPECT_EQ(s.limits.alignment_bytes, 16);
  EXPECT_EQ(s.limits.var[0].hi, INT32_MAX);
  EXPECT_EQ(s.limits.var[1].multiple_of, 4);
}

TEST(CudaProgramText, WhatIsWrittenIsReadBack) {
  const auto c = parse(
      std::string("// niche: preamble\n// niche: phase run grid=M*L/200 threads=128 shared=1024 per_sm=2\n"
                  "// niche: align 4\n// niche: limit M=1..64\n") +
      kKernel);
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  const std::string text = candidate_to_text(*definition(), c->source);
  const auto again = parse(text);
  ASSERT_TRUE(again.ok()) << again.status().to_string() << text;
  EXPECT_EQ(candidate_to_text(*definition(), again->source), text);
  EXPECT_EQ(again->source.text, std::string(cuda_preamble()) + text);
  EXPECT_EQ(again->source.limits.alignment_bytes, 4);
  EXPECT_EQ(again->source.cuda->phases[0].blocks_per_sm, 2);
  KernelSource renamed = again->source;
  rename_entries(renamed, "_k7");
  EXPECT_EQ(renamed.text, again->source.text) << "a device's candidates are modules of their own";
}

TEST(CudaProgramText, BadLaunchesAreNamed) {
  const struct {
    const char *text, *reason;
  } cases[] = {
      {"", "0 lines `// niche: phase"},
      {"// niche: phase run grid=Q\n", "line 1: unknown axis 'Q' in grid"},
      {"// niche: phase run grid=M/0\n", "bad divisor in 'M/0'"},
      {"// niche: phase run grid=M/x\n", "bad divisor in 'M/x'"},
      {"// niche: phase run grid=\n", "grid=: a product of axes"},
      {"// niche: phase run threads=2000\n", "threads=2000: 1 to 1024 are possible"},
      {"// niche: phase run threads=\n", "threads=: 1 to 1024 are possible"},
      {"// niche: phase run threads=12x\n", "threads=12x: 1 to 1024 are possible"},
      {"// niche: phase run shared=232449\n", "shared=232449: 0 to 232448 are possible"},
      {"// niche: phase run cluster=3\n", "cluster=3: 1, and from sm_90 on 2, 4 or 8"},
      {"// niche: phase run per_sm=3 threads=1024\n", "per_sm=3: so many blocks of 1024 threads"},
      {"// niche: phase run per_sm=2 shared=150000\n", "do not fit a multiprocessor"},
      {"// niche: phase run tasks=M\n", "phase: unknown word 'tasks=M'"},
      {"// niche: phase 9run\n", "the name of a kernel is needed first"},
      {"// niche: phase run\n// niche: phase run\n", "two phases are named 'run'"},
      {"// niche: phase a\n// niche: phase b\n// niche: phase c\n// niche: phase d\n// niche: phase e\n",
       "5 lines"},
      {"// niche: phase run\n// niche: pack p bytes=4\n", "line 2: 'pack': not for a kernel on a device"},
      {"// niche: phase run\n// niche: flag -O3\n", "line 2: 'flag': not for a kernel on a device"},
  };
  for (const auto& c : cases) {
    const auto r = parse(c.text);
    ASSERT_FALSE(r.ok()) << c.text;
    EXPECT_EQ(r.status().code(), dispatch::Code::kInvalid);
    EXPECT_NE(r.status().message().find(c.reason), std::string::npos)
        << r.status().message() << " lacks " << c.reason;
    EXPECT_NE(r.status().message().find("k.cu"), std::string::npos) << r.status().message();
  }
}

TEST(CudaProgramText, OlderDeviceHasNoClustersAndNoDependentLaunches) {
  CudaTarget old = target();
  old.capability = 80;
  old.arch = "sm_80";
  EXPECT_FALSE(parse("// niche: phase run cluster=2\n", old).ok());
  EXPECT_FALSE(parse("// niche: phase run overlap\n", old).ok());
  EXPECT_TRUE(parse("// niche: phase run\n", old).ok());
}

TEST(CudaProgramText, GridIsBoundedForEveryProblem) {
  dispatch::CudaPhase p;
  p.factors = {{0, 1}, {1, 3}};
  int64_t axes[] = {4, 7, 100};
  EXPECT_EQ(cuda_blocks_wanted(p, axes), 12);
  axes[0] = INT64_C(1) << 31;
  EXPECT_EQ(cuda_blocks_wanted(p, axes), -1);
  axes[0] = INT64_MAX / 2, axes[1] = INT64_MAX / 2;
  EXPECT_EQ(cuda_blocks_wanted(p, axes), -1) << "no overflow on the way";
  axes[0] = 0, axes[1] = 7;
  EXPECT_EQ(cuda_blocks_wanted(p, axes), 0);
}

// The same text, without a device, is a CPU kernel's: the directives are its own.
TEST(CudaProgramText, DeviceDirectivesAreNotTheCpus) {
  const auto r = candidate_from_text(*definition(), "k.cc", "// niche: phase run grid=M\n");
  ASSERT_FALSE(r.ok());
  EXPECT_NE(r.status().message().find("unknown word 'grid=M'"), std::string::npos);
}

}  // namespace
}  // namespace niche::evolve
