#include "evolve/judge/compare.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

namespace niche::evolve::judge {
namespace {

using dispatch::Tolerance;

// Reference rows of different size: the first row's values are 1e6 times the second's.
struct Case {
  std::vector<double> reference;
  std::vector<float> library, kernel;
  int64_t row = 64;
};
Case make_case() {
  Case c;
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  for (int i = 0; i < 128; ++i) {
    c.reference.push_back(normal(random) * (i < 64 ? 1e6 : 1));
    // The library: two roundings.
    c.library.push_back(static_cast<float>(c.reference.back() * (1 + 0x1p-23 * normal(random))));
  }
  c.kernel = c.library;
  return c;
}
Comparison compare(const Case& c, double factor = 2, bool exact = false) {
  const OutputView v{dispatch::kF32, static_cast<int64_t>(c.reference.size()), c.row, c.reference.data()};
  return compare_output(v, c.kernel.data(), c.library.data(), fallback_error(v, c.library.data()),
                        Tolerance{exact, factor, 0, ""});
}

TEST(Compare, TheLibraryItselfPasses) {
  const Comparison c = compare(make_case());
  EXPECT_TRUE(c.ok) << c.reason;
  EXPECT_LE(c.max_error, 1);
  EXPECT_GT(c.max_error, 0);
}

TEST(Compare, ErrorInASmallRowIsSeenBesideALargeOne) {
  Case c = make_case();
  c.kernel[100] += 0.05F;  // below the large row's rounding, 5 % of the small row's values
  const Comparison r = compare(c);
  EXPECT_FALSE(r.ok);
  EXPECT_NE(r.reason.find("relative to its row"), std::string::npos) << r.reason;
}

TEST(Compare, Tf32AndBf16FailUnderEveryFactor) {
  for (const uint32_t mask : {0xffffe000U, 0xffff0000U})
    for (const double factor : {2.0, 16.0}) {
      Case c = make_case();
      for (float& v : c.kernel) v = std::bit_cast<float>(std::bit_cast<uint32_t>(v) & mask);
      EXPECT_FALSE(compare(c, factor).ok) << mask << " " << factor;
    }
}

TEST(Compare, ManySmallErrorsFailTheRms) {
  Case c = make_case();
  const Comparison before = compare(c);
  // Everywhere as bad as the library's worst element.
  const OutputView v{dispatch::kF32, 128, 64, c.reference.data()};
  const double worst = fallback_error(v, c.library.data()).max_abs;
  for (size_t i = 0; i < 64; ++i) c.kernel[i] = static_cast<float>(c.reference[i] + 1.5 * worst);
  const Comparison r = compare(c);
  EXPECT_TRUE(before.ok);
  EXPECT_FALSE(r.ok);
  EXPECT_GT(r.rms_error, 1);
}

TEST(Compare, NonFiniteValuesStandWhereTheReferenceHasThem) {
  Case c = make_case();
  c.reference[3] = INFINITY;
  c.library[3] = c.kernel[3] = INFINITY;
  EXPECT_TRUE(compare(c).ok);
  c.kernel[3] = -INFINITY;
  EXPECT_FALSE(compare(c).ok);
  c.kernel[3] = 1e30F;
  EXPECT_FALSE(compare(c).ok);
  c.kernel[3] = INFINITY;
  c.kernel[70] = NAN;
  const Comparison r = compare(c);
  EXPECT_FALSE(r.ok);
  EXPECT_NE(r.reason.find("element 70 of 128: NaN where the reference has finite"), std::string::npos)
      << r.reason;
  c.library[70] = NAN;  // the library's own policy
  EXPECT_TRUE(compare(c).ok);
}

TEST(Compare, ReferenceBeyondTheTypeIsAnInfinityThere) {
  Case c = make_case();
  c.reference[0] = 1e39;
  c.library[0] = c.kernel[0] = INFINITY;
  EXPECT_TRUE(compare(c).ok) << compare(c).reason;
  c.kernel[0] = 3.4e38F;
  EXPECT_FALSE(compare(c).ok);
}

TEST(Compare, ExactMeansEveryBit) {
  Case c = make_case();
  for (size_t i = 0; i < c.kernel.size(); ++i) c.reference[i] = c.kernel[i];
  EXPECT_TRUE(compare(c, 2, true).ok);
  c.kernel[9] = std::nextafter(c.kernel[9], 1e9F);
  EXPECT_NE(compare(c, 2, true).reason.find("element 9"), std::string::npos);
  const std::vector<int64_t> want = {1, int64_t{1} << 60}, got = {1, (int64_t{1} << 60) + 1};
  const OutputView v{dispatch::kI64, 2, 2, want.data()};
  EXPECT_TRUE(compare_output(v, want.data(), want.data(), {}, {}).ok);
  EXPECT_FALSE(compare_output(v, got.data(), want.data(), {}, {}).ok) << "lost in a double";
}

TEST(Compare, HalfPrecisionElementsAreReadRight) {
  const uint16_t f16[] = {0x3c00, 0xc000, 0x0001, 0x7c00, 0x7e00, 0x7bff};
  EXPECT_EQ(load_element(f16, dispatch::kF16, 0), 1);
  EXPECT_EQ(load_element(f16, dispatch::kF16, 1), -2);
  EXPECT_EQ(load_element(f16, dispatch::kF16, 2), std::ldexp(1, -24));
  EXPECT_EQ(load_element(f16, dispatch::kF16, 3), INFINITY);
  EXPECT_TRUE(std::isnan(load_element(f16, dispatch::kF16, 4)));
  EXPECT_EQ(load_element(f16, dispatch::kF16, 5), 65504);
  const uint16_t bf16[] = {0x3f80, 0xbf80};
  EXPECT_EQ(load_element(bf16, dispatch::kBf16, 0), 1);
  EXPECT_EQ(load_element(bf16, dispatch::kBf16, 1), -1);
}

}  // namespace
}  // namespace niche::evolve::judge
