#include "kernels_cache/environment.h"

#include <gtest/gtest.h>

#include "test_support.h"

namespace niche::kernels_cache {
namespace {

TEST(Environment, OrderAndRepeatsOfSetsDoNotMatter) {
  Environment a = test_environment(), b = a;
  b.isa_flags = {"fma", "avx2", "fma"};
  EXPECT_EQ(a.canonical_text(), b.canonical_text());
  EXPECT_EQ(a.directory_name(), b.directory_name());
}

TEST(Environment, EveryFieldChangesTheName) {
  const Environment base = test_environment();
  const std::function<void(Environment&)> changes[] = {
      [](Environment& e) { e.device_class = "cuda.sm90"; },
      [](Environment& e) { e.device_model += "x"; },
      [](Environment& e) { e.isa_flags.push_back("avx512f"); },
      [](Environment& e) { e.driver = "580"; },
      [](Environment& e) { e.libraries = {"torch 2.12.0"}; },
      [](Environment& e) { e.op_libraries = {"my.so ab"}; },
      [](Environment& e) { e.kernel_abi += 1; },
      [](Environment& e) { e.compiler = "g++ 13"; },
  };
  for (const auto& change : changes) {
    Environment e = base;
    change(e);
    EXPECT_NE(e.directory_name(), base.directory_name());
    EXPECT_FALSE(describe_difference(e.canonical_text(), base.canonical_text()).empty());
  }
}

TEST(Environment, AValueCannotPretendToBeAnotherLine) {
  Environment a = test_environment(), b = a;
  a.device_model = "X\ndriver: 580";
  b.device_model = "X";
  b.driver = "580";
  EXPECT_NE(a.canonical_text(), b.canonical_text());
}

TEST(Environment, NameIsAPlainFileName) {
  Environment e = test_environment();
  e.device_class = "../../etc";
  EXPECT_EQ(e.directory_name().find('/'), std::string::npos);
  EXPECT_NE(e.directory_name()[0], '.');
}

TEST(Environment, DifferenceNamesTheLine) {
  Environment a = test_environment(), b = a;
  b.driver = "580.1";
  EXPECT_EQ(describe_difference(a.canonical_text(), b.canonical_text()), "driver: '' != '580.1'");
}

}  // namespace
}  // namespace niche::kernels_cache
