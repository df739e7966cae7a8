// The CUDA families' schemas are the operators' own: a kernel's p[1] must be what a caller passes as argument 1.
#include <gtest/gtest.h>

#include "runtime/ops/builtin.h"
#include "runtime/ops/cuda/schemas.h"

namespace niche::ops {
namespace {

TEST(CudaSchemas, EqualTheOperatorsSchemas) {
  dispatch::OpRegistry registry;
  ASSERT_TRUE(register_builtin_ops(registry).ok());
  for (std::string_view name : ops_cuda::cuda_ops()) {
    const dispatch::OpSpec* op = registry.find(name);
    ASSERT_NE(op, nullptr) << name;
    const dispatch::OpSchema &ours = *ops_cuda::cuda_schema(name), &theirs = *op->schema();
    EXPECT_TRUE(ours.validate().ok()) << name;
    EXPECT_EQ(ours.dtypes, theirs.dtypes) << name;
    ASSERT_EQ(ours.axes.size(), theirs.axes.size()) << name;
    for (size_t i = 0; i < ours.axes.size(); ++i) {
      EXPECT_EQ(ours.axes[i].name, theirs.axes[i].name) << name;
      EXPECT_EQ(ours.axes[i].kind, theirs.axes[i].kind) << name;
    }
    ASSERT_EQ(ours.args.size(), theirs.args.size()) << name;
    for (size_t i = 0; i < ours.args.size(); ++i) {
      const dispatch::ArgSpec &a = ours.args[i], &b = theirs.args[i];
      EXPECT_EQ(a.name, b.name) << name;
      EXPECT_EQ(a.role, b.role) << name << ": " << a.name;
      EXPECT_EQ(a.dtype, b.dtype) << name << ": " << a.name;
      EXPECT_EQ(a.shape, b.shape) << name << ": " << a.name;
      EXPECT_EQ(a.optional, b.optional) << name << ": " << a.name;
      EXPECT_EQ(a.constant, b.constant) << name << ": " << a.name;
    }
    ASSERT_EQ(ours.attrs.size(), theirs.attrs.size()) << name;
    for (size_t i = 0; i < ours.attrs.size(); ++i) {
      EXPECT_EQ(ours.attrs[i].name, theirs.attrs[i].name) << name;
      EXPECT_EQ(ours.attrs[i].default_value, theirs.attrs[i].default_value) << name;
    }
  }
}

}  // namespace
}  // namespace niche::ops
