// What the CUDA families promise about their spaces, without a compiler.
#include <gtest/gtest.h>

#include <set>

#include "runtime/ops/cuda/families.h"
#include "tests/runtime/ops_cuda/cases.h"

namespace niche::ops_cuda_test {
namespace {

using evolve::CudaTarget;

evolve::CudaFamilyRegistry registry() {
  evolve::CudaFamilyRegistry r;
  ops_cuda::register_cuda_families(r);
  return r;
}

TEST(CudaFamilies, EveryCaseHasSeedsOnEveryArchitecture) {
  const auto r = registry();
  for (const Case& c : cases())
    for (const std::string& dtype : c.dtypes)
      for (const char* arch : {"sm_80", "sm_90a", "sm_100a"}) {
        const auto d = definition(c, dtype);
        const CudaTarget t = CudaTarget::named(arch);
        size_t seeds = 0;
        for (const auto* family : r.for_op(c.op)) {
          const auto points = family->seeds(*d, t);
          seeds += points.size();
          std::set<evolve::Point> unique(points.begin(), points.end());
          EXPECT_EQ(unique.size(), points.size()) << family->name();
          for (const auto& p : points) EXPECT_TRUE(family->valid(*d, t, p)) << family->name();
        }
        EXPECT_GT(seeds, 0u) << d->name() << " " << arch;
      }
}

TEST(CudaFamilies, SpacesAreWorthSearching) {
  const auto r = registry();
  for (const char* op : {"rms_norm", "layer_norm", "softmax", "silu_mul", "rms_norm_backward"})
    for (const Case& c : cases()) {
      if (c.op != op || c.dtypes.size() < 3) continue;
      const auto d = definition(c, "bf16");
      EXPECT_GE(r.for_op(op)[0]->count_valid(*d, CudaTarget::named("sm_90a")), 200) << op;
    }
}

TEST(CudaFamilies, NamesAreUniqueAndPlansFitTheDevice) {
  const auto r = registry();
  const CudaTarget t = CudaTarget::named("sm_90a");
  std::set<std::string> names;
  size_t points = 0;
  for (const Case& c : cases())
    for (const std::string& dtype : c.dtypes) {
      const auto d = definition(c, dtype);
      for (const auto* family : r.for_op(c.op))
        for (const auto& p : family->seeds(*d, t)) {
          const auto s = family->render(*d, t, p);
          names.insert(d->name() + s.kernel_name);
          ++points;
          EXPECT_EQ(s.limits.var_count, static_cast<int>(d->var_axes().size()));
          ASSERT_FALSE(s.plan.phases.empty());
          for (const auto& phase : s.plan.phases) {
            EXPECT_NE(s.text.find(" " + phase.symbol + "("), std::string::npos) << s.kernel_name;
            EXPECT_LE(phase.threads, 1024);
            EXPECT_EQ(phase.threads % 32, 0);
            EXPECT_LE(phase.shared_bytes, t.shared_bytes_per_block);
          }
        }
    }
  EXPECT_EQ(names.size(), points);
}

}  // namespace
}  // namespace niche::ops_cuda_test
