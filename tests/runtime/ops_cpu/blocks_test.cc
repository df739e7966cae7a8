// tightest(): the same blocks by a smaller bound, so that points which cut alike are one text.
#include <gtest/gtest.h>

#include <set>

#include "runtime/ops/cpu/gemm_families.h"
#include "runtime/ops/cpu/gemm_text.h"
#include "tests/runtime/ops_cpu/harness.h"

namespace niche::ops_cpu_test {
namespace {

using ops_cpu::tightest;
using ops_cpu::tightest_strips;

// As Blocks of gemm_text.cc: how many, and how long the longest is.
std::pair<int64_t, int64_t> blocks(int64_t n, int64_t most) {
  const int64_t count = (n + most - 1) / most;
  return {count, count == 0 ? 0 : (n + count - 1) / count};
}

TEST(Tightest, CutsEveryLengthAlikeAndNoSmallerBoundDoes) {
  for (int64_t a = 1; a <= 60; ++a)
    for (int64_t b = 0; b <= 60; b += 7)
      for (int64_t most = 1; most <= 70; ++most) {
        const int64_t bound = tightest({a, b}, most);
        ASSERT_LE(bound, most);
        ASSERT_EQ(blocks(a, bound), blocks(a, most)) << a << ' ' << most;
        ASSERT_EQ(blocks(b, bound), blocks(b, most)) << b << ' ' << most;
        ASSERT_TRUE(bound == 1 || blocks(a, bound - 1) != blocks(a, most) ||
                    blocks(b, bound - 1) != blocks(b, most))
            << a << ' ' << b << ' ' << most << ": " << bound - 1 << " would do";
      }
}
TEST(Tightest, StripsCountTheLastChunk) {
  EXPECT_EQ(tightest_strips(32, 32, 8, 3), 2);    // four vectors: two strips of two
  EXPECT_EQ(tightest_strips(32, 32, 16, 4), 2);   // two vectors: one strip
  EXPECT_EQ(tightest_strips(160, 64, 8, 4), 4);   // chunks of eight vectors and of four
  EXPECT_EQ(tightest_strips(149, 128, 8, 3), 3);  // sixteen vectors in strips of 2 and 3, then three
}

// Of the points that differ from a seed in `param` alone, `mr` being what is given: how many are valid, and their texts.
std::pair<int, std::set<std::string>> texts(const evolve::TemplateFamily& family,
                                            const dispatch::Definition& d, int mr, std::string_view param) {
  const evolve::CpuTarget target = native_target(1);
  std::pair<int, std::set<std::string>> found;
  evolve::Point p = family.seeds(d, target).back();
  const auto& params = family.params();
  for (size_t i = 0; i < p.size(); ++i)
    if (params[i].name == "mr")
      for (size_t v = 0; v < params[i].values.size(); ++v)
        if (params[i].values[v] == mr) p[i] = static_cast<int>(v);
  for (size_t i = 0; i < p.size(); ++i)
    if (params[i].name == param)
      for (p[i] = 0; p[i] < static_cast<int>(params[i].values.size()); ++p[i])
        if (family.valid(d, target, p))
          ++found.first, found.second.insert(family.render(d, target, p, "_k").text);
  return found;
}

TEST(Tightest, FamiliesRenderOneTextForWhatCutsAlike) {
  evolve::FamilyRegistry registry;
  ops_cpu::add_ikbo(registry);
  OpTest ikbo;
  ikbo.schema = make_schema("ikbo_linear_compression", "M:c N:c Kc:c Ku:c B:v U:v",
                            {"Wc:in:T:0,2:c", "Wu:in:T:0,3:c", "Ec:in:T:4,2,1", "Eu:in:T:5,3,1",
                             "user:in:i64:4", "out:out:T:4,0,1"},
                            {}, {"f32"});
  const auto d = make_definition(ikbo, {"f32", {{"M", 54}, {"N", 32}, {"Kc", 108}, {"Ku", 147}}, {}, {}});
  const evolve::TemplateFamily& panels = *registry.find("ikbo_linear_compression.panels");
  // 160, 192, 256, 320 and 448 rows hold all of Ku; 128 cut it in two, 64 in three.
  const auto depths = texts(panels, *d, 6, "depth");
  EXPECT_EQ(depths.first, 7);
  EXPECT_EQ(depths.second.size(), 3U);
  // Strips of two or of three of the four vectors are two strips of two.
  const auto strips = texts(panels, *d, 4, "nr");
  EXPECT_EQ(strips.first, 2);
  EXPECT_EQ(strips.second.size(), 1U);
}

}  // namespace
}  // namespace niche::ops_cpu_test
