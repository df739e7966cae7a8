// Corner points of every CUDA family compile for every architecture that its Guard names. NVRTC needs no GPU;
// what the kernels compute is checked on one (bench/cuda).
#include <gtest/gtest.h>

#include "evolve/toolchain/cuda_toolchain.h"
#include "runtime/ops/cuda/families.h"
#include "tests/runtime/ops_cuda/cases.h"

namespace niche::ops_cuda_test {
namespace {

using evolve::CudaTarget;
using evolve::Point;

class CompileTest : public ::testing::TestWithParam<const char*> {};

TEST_P(CompileTest, CornerPointsCompileWithinTheirRegisters) {
  const auto toolchain = evolve::CudaToolchain::find({});
  ASSERT_TRUE(toolchain.ok()) << toolchain.status().to_string();
  const CudaTarget target = CudaTarget::named(GetParam());
  // The architecture that is measured is compiled in full, the others by a sample.
  const size_t most = std::string(GetParam()) == "sm_90a" ? 10 : 3;
  evolve::CudaFamilyRegistry registry;
  ops_cuda::register_cuda_families(registry);
  int compiled = 0, spilled = 0;
  for (const Case& c : cases())
    for (const std::string& dtype : c.dtypes) {
      const auto d = definition(c, dtype);
      for (const auto* family : registry.for_op(c.op)) {
        const size_t limit = dtype == c.dtypes.front() ? most : 2;
        for (const Point& p : thinned(corners(*family, *d, target), limit)) {
          const auto source = family->render(*d, target, p);
          const auto cubin = (*toolchain)->compile(source.kernel_name, source.text, target.arch);
          EXPECT_TRUE(cubin.ok()) << cubin.status().to_string();
          if (!cubin.ok()) break;
          ++compiled;
          for (const auto& phase : source.plan.phases) {
            const auto* k = cubin->info.find(phase.symbol);
            ASSERT_NE(k, nullptr) << source.kernel_name << ": no entry " << phase.symbol;
            EXPECT_LE(k->registers * phase.threads, 65536) << source.kernel_name;
            EXPECT_LE(k->static_shared_bytes + phase.shared_bytes, target.shared_bytes_per_block)
                << source.kernel_name;
            spilled += k->spill_store_bytes > 0 ? 1 : 0;
          }
        }
      }
    }
  RecordProperty("compiled", compiled);
  RecordProperty("spilled", spilled);
  EXPECT_GT(compiled, 30);
  EXPECT_LT(spilled * 10, compiled) << spilled << " of " << compiled
                                    << " spill: the spaces' limits are too wide";
}

INSTANTIATE_TEST_SUITE_P(Architectures, CompileTest, ::testing::Values("sm_90a", "sm_80", "sm_100a"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace niche::ops_cuda_test
