// CUDA programs of models, without a GPU: the recorded answers (tests/fixtures/free_form_cuda) go through the parsers that a
// session uses, are compiled by NVRTC, and run on the host against fp64, with the bound of runtime/ops' tolerances around what
// fused multiply-adds err.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "evolve/candidate_text.h"
#include "evolve/proposer/reply_parser.h"
#include "evolve/toolchain/cuda_toolchain.h"
#include "tests/runtime/ops_cuda/cases.h"
#include "tests/runtime/ops_cuda/emulated_arguments.h"
#include "tests/runtime/ops_cuda/emulated_kernel.h"
#include "tests/runtime/ops_cuda/references.h"

namespace niche::ops_cuda_test {
namespace {

using dispatch::Problem;

struct Program {
  std::string row;
  Case c;
  std::vector<std::vector<int64_t>> var;
  int answer = 1;
};

std::vector<Program> programs() {
  return {
      {"conv1d", {"conv1d", {{"Ci", 96}, {"Co", 96}, {"K", 3}}, {"f32"}}, {{1, 1}, {2, 201}}},
      {"pffn_150", {"pffn", {{"N", 150}, {"D", 96}, {"K", 192}}, {"f32"}}, {{1}}},
      {"pffn_37", {"pffn", {{"N", 37}, {"D", 100}, {"K", 120}}, {"f32"}}, {{2}}},
      {"optimized_fm_40", {"optimized_fm", {{"N", 40}, {"D", 224}, {"K", 448}}, {"f32"}}, {{2}}},
      {"optimized_fm_24", {"optimized_fm", {{"N", 24}, {"D", 224}, {"K", 2198}}, {"f32"}}, {{1}}},
      {"pffn_37", {"pffn", {{"N", 37}, {"D", 100}, {"K", 120}}, {"f32"}}, {{1}}, 2},
      {"optimized_fm_24", {"optimized_fm", {{"N", 24}, {"D", 224}, {"K", 2198}}, {"f32"}}, {{1}}, 2},
  };
}

std::string reply_of(const Program& p) {
  std::ifstream in(std::string(NICHE_TEST_FIXTURES) + "/free_form_cuda/" + p.row + "/" +
                   std::to_string(p.answer) + ".reply.md");
  std::stringstream s;
  s << in.rdbuf();
  return s.str();
}

evolve::CudaKernelSource source_of(const evolve::Candidate& c) {
  evolve::CudaKernelSource s;
  s.text = c.source.text;
  s.plan = *c.source.cuda;
  s.limits = c.source.limits;
  s.kernel_name = c.source.kernel_name;
  return s;
}

struct Errors {
  double worst = 0, rms = 0;  // of the largest output
};
Errors errors(const std::vector<double>& want, const Arguments& args, int out) {
  Errors e;
  double top = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = std::abs(args.value(out, static_cast<int64_t>(i)) - want[i]);
    if (!(d <= e.worst)) e.worst = d;
    e.rms += d * d;
    top = std::max(top, std::abs(want[i]));
  }
  e.worst /= top;
  e.rms = std::sqrt(e.rms / static_cast<double>(want.size())) / top;
  return e;
}

class FreeFormTest : public ::testing::TestWithParam<Program> {
 protected:
  void SetUp() override {
    definition_ = definition(GetParam().c, "f32");
    const auto found = evolve::proposer::parse_reply(reply_of(GetParam()), "");
    ASSERT_TRUE(found.ok()) << found.status().to_string();
    ASSERT_EQ(found->size(), 1u);
    text_ = (*found)[0].code;
  }
  evolve::CudaKernelSource parse(const std::string& text) {
    const auto target = evolve::CudaTarget::named("sm_90a");
    const auto parsed = evolve::candidate_from_text(*definition_, "program", text, &target);
    EXPECT_TRUE(parsed.ok()) << parsed.status().to_string();
    return parsed.ok() ? source_of(*parsed) : evolve::CudaKernelSource();
  }
  void run(EmulatedKernel& kernel, const Problem& p, Arguments& args, bool falling) {
    args.poison(out());
    const auto s =
        kernel.run(args.pointers(), {p.axes.data(), definition_->schema().axes.size()}, nullptr, falling);
    ASSERT_TRUE(s.ok()) << s.to_string();
    EXPECT_TRUE(args.fences_intact()) << p.to_string();
  }
  int out() const { return static_cast<int>(definition_->schema().args.size()) - 1; }

  std::shared_ptr<const dispatch::Definition> definition_;
  std::string text_;
};

TEST_P(FreeFormTest, ProgramComputesTheOperatorAsFp32Does) {
  auto kernel = EmulatedKernel::compile(parse(text_));
  ASSERT_TRUE(kernel.ok()) << kernel.status().to_string();
  for (const auto& var : GetParam().var) {
    const Problem p = problem(definition_, var);
    Arguments args(p, 7);
    run(**kernel, p, args, false);
    const auto rising = args.bytes(out());
    const auto want = reference(p, out(), [&](int a, int64_t i) { return args.value(a, i); });
    const Errors e = errors(want, args, out());
    EXPECT_LE(e.worst, 1e-6) << p.to_string();
    EXPECT_LE(e.rms, 2e-7) << p.to_string();
    if (var != GetParam().var[0]) continue;
    run(**kernel, p, args, true);
    EXPECT_EQ(rising, args.bytes(out())) << "the order of a block's threads shows";
  }
}

// The bound is one that a downgrade to tf32 fails: the same program without its small products.
TEST_P(FreeFormTest, PlainTf32IsFarOutsideTheBound) {
  std::string text = text_;
  const std::string split = "lo = __float_as_uint(v - __uint_as_float(hi));";
  int found = 0;
  for (size_t at = 0; (at = text.find(split, at)) != std::string::npos; ++found)
    text.replace(at, split.size(), "lo = 0;");
  ASSERT_EQ(found, 2);
  auto kernel = EmulatedKernel::compile(parse(text));
  ASSERT_TRUE(kernel.ok()) << kernel.status().to_string();
  const Problem p = problem(definition_, GetParam().var[0]);
  Arguments args(p, 7);
  run(**kernel, p, args, false);
  const auto want = reference(p, out(), [&](int a, int64_t i) { return args.value(a, i); });
  EXPECT_GT(errors(want, args, out()).worst, 4e-5);
}

TEST_P(FreeFormTest, ProgramCompilesForTheDeviceAndSpillsLittle) {
  auto toolchain = evolve::CudaToolchain::find({});
  if (!toolchain.ok()) GTEST_SKIP() << toolchain.status().to_string();
  const auto source = parse(text_);
  const auto cubin = (*toolchain)->compile(source.kernel_name, source.text, "sm_90a");
  ASSERT_TRUE(cubin.ok()) << cubin.status().to_string();
  ASSERT_EQ(cubin->info.kernels.size(), 1u);
  EXPECT_EQ(cubin->info.kernels[0].symbol, source.plan.phases[0].symbol);
  EXPECT_LE(cubin->info.kernels[0].spill_store_bytes, 64);
  EXPECT_LE(cubin->info.kernels[0].registers * source.plan.phases[0].threads, 65536);
}

INSTANTIATE_TEST_SUITE_P(Programs, FreeFormTest, ::testing::ValuesIn(programs()), [](const auto& info) {
  return info.param.row + "_" + std::to_string(info.param.answer);
});

}  // namespace
}  // namespace niche::ops_cuda_test
