// Corner points of every CUDA family compile for every architecture that its Guard names. NVRTC needs no GPU;
// what the kernels compute is checked on one (bench/cuda).
#include <gtest/gtest.h>

#include <set>

#include "evolve/toolchain/cuda_toolchain.h"
#include "runtime/ops/cuda/families.h"
#include "tests/runtime/ops_cuda/cases.h"

namespace niche::ops_cuda_test {
namespace {

using evolve::CudaTarget;
using evolve::Point;

// For each value of each parameter a valid point that has it, as near to the first seed as can be: so every
// branch of a text is compiled without compiling the space.
std::vector<Point> corners(const evolve::CudaTemplateFamily& family, const dispatch::Definition& d,
                           const CudaTarget& t) {
  const auto seeds = family.seeds(d, t);
  if (seeds.empty()) return {};
  std::set<Point> chosen{seeds.front()};
  const auto& params = family.params();
  for (size_t i = 0; i < params.size(); ++i)
    for (size_t value = 0; value < params[i].values.size(); ++value)
      for (const Point& seed : seeds) {
        Point p = seed;
        p[i] = static_cast<int>(value);
        if (!family.valid(d, t, p)) continue;
        chosen.insert(p);
        break;
      }
  return {chosen.begin(), chosen.end()};
}

// At most `most` of them, spread.
std::vector<Point> thinned(const std::vector<Point>& all, size_t most) {
  if (all.size() <= most) return all;
  std::vector<Point> some;
  for (size_t i = 0; i < most; ++i) some.push_back(all[i * all.size() / most]);
  return some;
}

class CompileTest : public ::testing::TestWithParam<const char*> {};

TEST_P(CompileTest, CornerPointsCompileWithinTheirRegisters) {
  const auto toolchain = evolve::CudaToolchain::find({});
  ASSERT_TRUE(toolchain.ok()) << toolchain.status().to_string();
  const CudaTarget target = CudaTarget::named(GetParam());
  // The architecture that is measured is compiled in full, the others by a sample.
  const size_t most = std::string(GetParam()) == "sm_90a" ? 16 : 4;
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
