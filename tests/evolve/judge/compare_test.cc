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

uint16_t f16(double v) { return std::bit_cast<uint16_t>(static_cast<_Float16>(v)); }
double from_f16(uint16_t h) { return static_cast<double>(std::bit_cast<_Float16>(h)); }

// fp16: one rounding passes under every factor, a bf16 (8 bits of significand) or fp8 answer under none.
TEST(Compare, Fp16IsHeldToItsOwnRounding) {
  std::vector<double> reference(128);
  std::vector<uint16_t> library(128), once(128), bf16(128);
  for (size_t i = 0; i < 128; ++i) {
    reference[i] = std::sin(0.7 * static_cast<double>(i) + 0.3) * 3;
    library[i] = f16(reference[i]);
    once[i] = f16(static_cast<float>(reference[i]) * 1.0000001F);
    const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(reference[i])) + 0x8000U;
    bf16[i] = f16(std::bit_cast<float>(bits & 0xffff0000U));
  }
  const OutputView v{dispatch::kF16, 128, 64, reference.data()};
  const ErrorStats yardstick = fallback_error(v, library.data());
  EXPECT_LE(yardstick.max_abs, 0x1p-11 * 2) << "half a unit in the last place below 4";
  for (const double factor : {1.0, 2.0, 3.0}) {
    const dispatch::Tolerance t{false, factor, 0, ""};
    EXPECT_TRUE(compare_output(v, once.data(), library.data(), yardstick, t).ok);
    const Comparison r = compare_output(v, bf16.data(), library.data(), yardstick, t);
    EXPECT_FALSE(r.ok) << factor;
    EXPECT_GT(r.max_error, 1) << factor;
  }
}

// fp16 ends at 65504. A value so near it that the bound reaches across may be either; further away it may not, and
// what lies beyond is no scale for the errors of the rest.
TEST(Compare, Fp16AtTheEndOfItsRange) {
  std::vector<double> reference = {1, 2, 65500, -65530, 1e9, 3};
  std::vector<uint16_t> library;
  for (double r : reference) library.push_back(f16(r));
  ASSERT_TRUE(std::isinf(from_f16(library[3])));
  const OutputView v{dispatch::kF16, 6, 6, reference.data()};
  const ErrorStats yardstick = fallback_error(v, library.data());
  EXPECT_EQ(yardstick.scale_max, 65500) << "1e9 is an infinity in fp16";
  EXPECT_EQ(yardstick.max_abs, 4) << "65500 is 65504 in fp16";
  const dispatch::Tolerance t{false, 2, 0, ""};
  const auto verdict = [&](size_t at, double value) {
    std::vector<uint16_t> kernel = library;
    kernel[at] = f16(value);
    return compare_output(v, kernel.data(), library.data(), yardstick, t);
  };
  EXPECT_TRUE(verdict(0, 1).ok);
  EXPECT_TRUE(verdict(2, INFINITY).ok) << "rounded up across the end";
  EXPECT_TRUE(verdict(3, -65504).ok) << "rounded down across the end";
  EXPECT_FALSE(verdict(2, -INFINITY).ok);
  EXPECT_FALSE(verdict(2, NAN).ok);
  EXPECT_FALSE(verdict(4, 65504).ok) << "1e9 is nowhere near it";
  EXPECT_FALSE(verdict(5, INFINITY).ok);
  // 60 at 2, in a row whose largest value is 65500: the row's own bound would hide it if 1e9 were its scale.
  EXPECT_FALSE(verdict(1, 62).ok) << verdict(1, 62).max_error;
}

// Below 6e-5 fp16 has steps of 2^-24, however small the row: one of them wrong is one too many, half is not.
TEST(Compare, Fp16DenormalsAreRoundedToTheirSteps) {
  const std::vector<double> reference = {3.4e-8, 1e-7, 5e-8, 2e-7};
  const std::vector<double> exact = {0x1p-24, 0x1p-23, 0x1p-24, 3 * 0x1p-24};
  std::vector<uint16_t> library, kernel;
  for (double v : exact) library.push_back(f16(v));
  kernel = library;
  const OutputView v{dispatch::kF16, 4, 4, reference.data()};
  const dispatch::Tolerance t{false, 1, 0, ""};
  const ErrorStats none;  // a library that is right by luck
  kernel[2] = f16(0x1p-24);
  EXPECT_TRUE(compare_output(v, kernel.data(), library.data(), none, t).ok)
      << compare_output(v, kernel.data(), library.data(), none, t).reason;
  kernel[2] = f16(3 * 0x1p-24);
  EXPECT_FALSE(compare_output(v, kernel.data(), library.data(), none, t).ok);
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
