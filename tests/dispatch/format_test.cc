#include "dispatch/base/format.h"

#include <gtest/gtest.h>

namespace niche::dispatch {
namespace {

TEST(Format, KeepsTextsOfAnyLength) {
  EXPECT_EQ(format("%d of %s, %.2f", 3, "four", 0.5), "3 of four, 0.50");
  EXPECT_EQ(format("%s", ""), "");
  for (const size_t bytes : {255u, 256u, 257u, 100'000u}) {
    const std::string text(bytes, 'x');
    EXPECT_EQ(format("[%s]", text.c_str()), '[' + text + ']') << bytes;
  }
}

}  // namespace
}  // namespace niche::dispatch
