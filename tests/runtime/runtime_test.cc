#include <atomic>
#include <thread>

#include "tests/runtime/affine_fixture.h"

namespace niche::testing_ops {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class RuntimeCall : public AffineRuntime {
 protected:
  void SetUp() override { start(config()); }
};

TEST_F(RuntimeCall, WithoutKernelsTheLibraryAnswers) {
  AffineCall c(3, kN);
  ASSERT_TRUE(call(c).ok());
  EXPECT_LT(c.error(), 1e-6);
  EXPECT_EQ(op->runs[0], 1);
  EXPECT_EQ(reason(FallbackReason::kMiss), 1);
}

TEST_F(RuntimeCall, APublishedKernelAnswersInsideItsGuardAndTheLibraryOutside) {
  publish(affine_kernel(handle, "affine_rows", rows(1, 8)));
  AffineCall inside(8, kN), outside(9, kN);
  ASSERT_TRUE(call(inside).ok());
  EXPECT_EQ(op->runs[0], 0);
  EXPECT_LT(inside.error(), 1e-6);
  ASSERT_TRUE(call(outside).ok());
  EXPECT_EQ(op->runs[0], 1);
  EXPECT_LT(outside.error(), 1e-6);
  EXPECT_EQ(rung(Rung::kRegion), 1);
}

TEST_F(RuntimeCall, MisfitsNameArgumentDimensionAndAxis) {
  AffineCall c(3, kN);
  Floats narrow({kN - 1});
  auto args = c.args();
  args[1] = narrow.view();
  EXPECT_THAT(handle.call(args).message(),
              AllOf(HasSubstr("'w'"), HasSubstr("dimension 0 is 63, not 64"), HasSubstr("axis N")));
  args = c.args();
  args[0].dtype = kF16;
  EXPECT_THAT(handle.call(args).message(), AllOf(HasSubstr("'x'"), HasSubstr("not f32")));
  args = c.args();
  args[0].ndim = 1;
  EXPECT_THAT(handle.call(args).message(), HasSubstr("1 dimensions, not 2"));
  args = c.args();
  args[3].device.device_type = kDLCUDA;
  EXPECT_THAT(handle.call(args).message(), AllOf(HasSubstr("'y'"), HasSubstr("host memory")));
  args = c.args();
  args[2].data = nullptr;
  EXPECT_THAT(handle.call(args).message(), AllOf(HasSubstr("'b'"), HasSubstr("missing")));
  args.pop_back();
  EXPECT_THAT(handle.call(args).message(), HasSubstr("3 arguments given, the schema has 4"));
  EXPECT_EQ(op->runs[0], 0);
}

TEST_F(RuntimeCall, AnAbsentOptionalArgumentIsItsOwnDefinition) {
  auto bare = runtime->op("affine", kF32, {{"N", kN}}, {{"has_b", 0}});
  ASSERT_TRUE(bare.ok()) << bare.status().to_string();
  EXPECT_NE(bare->id(), handle.id());
  AffineCall c(2, kN);
  auto args = c.args();
  EXPECT_THAT(bare->call(args).message(), AllOf(HasSubstr("'b'"), HasSubstr("no such argument")));
  args[2].data = nullptr;
  EXPECT_TRUE(bare->call(args).ok());
  EXPECT_FLOAT_EQ(c.y[5], c.x[5] * c.w[5]);
}

TEST_F(RuntimeCall, StridedAndOverlappingTensorsAreServedByTheLibrary) {
  publish(affine_kernel(handle, "affine_rows", rows(1, 1000)));
  // x is the transpose of a [N, M] tensor, y every second row of a larger one.
  const int64_t m = 3;
  Floats xt({kN, m}), y2({2 * m, kN}, NAN);
  xt.fill(5);
  AffineCall c(m, kN);
  auto args = c.args();
  int64_t x_shape[] = {m, kN}, x_strides[] = {1, m}, y_strides[] = {2 * kN, 1};
  args[0] = xt.view();
  args[0].shape = x_shape;
  args[0].strides = x_strides;
  args[3] = y2.view();
  args[3].shape = x_shape;
  args[3].strides = y_strides;
  ASSERT_TRUE(handle.call(args).ok());
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < kN; ++j) {
      const size_t at = static_cast<size_t>(j);
      EXPECT_NEAR(y2[static_cast<size_t>(2 * i * kN + j)],
                  xt[static_cast<size_t>(j * m + i)] * c.w[at] + c.b[at], 1e-6);
      EXPECT_TRUE(std::isnan(y2[static_cast<size_t>((2 * i + 1) * kN + j)])) << "wrote between the rows";
    }
  EXPECT_EQ(reason(FallbackReason::kLayout), 1);
  // In place: y is x.
  args = c.args();
  args[3] = args[0];
  ASSERT_TRUE(handle.call(args).ok());
  EXPECT_EQ(reason(FallbackReason::kLayout), 2);
  EXPECT_EQ(rung(Rung::kRegion), 0);
}

TEST_F(RuntimeCall, ALibraryExceptionPassesAndTheNextCallWorks) {
  op->throws = true;
  AffineCall c(3, kN);
  EXPECT_THROW((void)call(c), std::out_of_range);
  op->throws = false;
  EXPECT_TRUE(call(c).ok());
}

TEST_F(RuntimeCall, AHandleOutlivesItsRuntimeAndServesTheLibrary) {
  publish(affine_kernel(handle, "affine_rows", rows(1, 1000)));
  AffineCall before(3, kN), after(3, kN);
  ASSERT_TRUE(call(before).ok());
  EXPECT_EQ(op->runs[0], 0);
  runtime.reset();
  ASSERT_TRUE(call(after).ok());
  EXPECT_LT(after.error(), 1e-6);
  EXPECT_EQ(op->runs[0], 1);
}

// A server that captures device graphs: what a graph replays is held, watched and reported.
TEST_F(RuntimeCall, ACapturedGraphHoldsWhatItReplaysAndSaysWhenItIsStale) {
  auto kernel = affine_kernel(handle, "affine_rows", rows(1, 8));
  const std::weak_ptr<const Kernel> code = kernel;
  publish(kernel);
  kernel.reset();
  std::atomic<int> told{0};
  auto graph = runtime->graph({.label = "decode", .owner = "model", .on_stale = [&](const StaleGraph& s) {
                                 EXPECT_EQ(s.uses.size(), 1u);
                                 ++told;
                               }});
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  AffineCall c(8, kN);
  {
    RequestScope capture(runtime->dispatcher(), {.capture = CaptureState::kCaptured, .graph = graph->get()});
    ASSERT_TRUE(call(c).ok());
  }
  EXPECT_LT(c.error(), 1e-6);
  EXPECT_EQ(op->runs[0], 0);
  ASSERT_EQ((*graph)->uses().size(), 1u);
  EXPECT_TRUE((*graph)->may_replay());
  EXPECT_TRUE(runtime->stale_graphs("model").empty());
  {
    const auto route = std::const_pointer_cast<Route>((*graph)->uses()[0].route);
    route->quarantine();
    ASSERT_TRUE(runtime->dispatcher().publisher().erase_route(*route).ok());
    ASSERT_TRUE(runtime->dispatcher().publisher().commit().ok());
  }
  EXPECT_FALSE((*graph)->may_replay());
  ASSERT_EQ(runtime->stale_graphs("model").size(), 1u);
  EXPECT_TRUE(runtime->stale_graphs("another").empty());
  while (told == 0) std::this_thread::yield();  // the control thread polls
  runtime.reset();
  EXPECT_FALSE(code.expired()) << "the graph may still be replayed";
  (*graph)->restart();
  EXPECT_TRUE((*graph)->may_replay());
}

TEST_F(RuntimeCall, UnknownOperatorsAndAxesAreNamed) {
  EXPECT_THAT(runtime->op("afine", kF32, {{"N", 4}}).status().message(),
              AllOf(HasSubstr("'afine'"), HasSubstr("affine")));
  EXPECT_EQ(runtime->op("affine", kF32, {{"K", 4}}).status().code(), Code::kInvalid);
  EXPECT_EQ(runtime->op("affine", kF32, {}).status().code(), Code::kInvalid);
  EXPECT_EQ(runtime->op("affine", kBf16, {{"N", 4}}).status().code(), Code::kUnsupported);
}

TEST_F(RuntimeCall, EqualDefinitionsShareAnIdAndHandlesTheirOwnBindings) {
  auto other = runtime->op("affine", kF32, {{"N", kN}});
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(other->id(), handle.id());
  EXPECT_NE(other->state(), handle.state());
}

TEST(RuntimeDisabled, EverythingGoesToTheLibraryAndSaysSo) {
  auto op = std::make_shared<AffineOp>();
  RuntimeConfig config;
  config.ops = {op};
  const char* environment[] = {"NICHE_DISABLE=1", nullptr};
  ASSERT_TRUE(apply_environment(environment, &config).ok());
  auto runtime = *Runtime::create(config);
  auto handle = *runtime->op("affine", kF32, {{"N", 16}});
  auto kernel = affine_kernel(handle, "affine_rows", rows(1, 100));
  Dispatcher& d = runtime->dispatcher();
  auto route = *d.make_route(
      {kernel->definition, d.fallback(handle.id(), 0), kernel, nullptr, RolloutState::kIncumbent, 0, ""});
  ASSERT_TRUE(d.publisher().put_region({handle.state()->site().prefix(), kernel->guard, route}).ok());
  ASSERT_TRUE(d.publisher().commit().ok());
  AffineCall c(3, 16);
  ASSERT_TRUE(handle.call(c.args()).ok());
  EXPECT_EQ(op->runs[0], 1);
  EXPECT_EQ(d.totals().by_reason[static_cast<int>(FallbackReason::kDisabled)], 1);
}

// In a process of its own: the variable is the process's.
TEST(RuntimeDisabledDeathTest, TheVariableHoldsWhateverTheConfigSays) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto served_by = [](const char* value, bool config_disables) {
    ::setenv("NICHE_DISABLE", value, 1);
    RuntimeConfig config;
    config.ops = {std::make_shared<AffineOp>()};
    config.evolve = false;
    config.disable = config_disables;
    auto runtime = Runtime::create(config);
    if (!runtime.ok()) {
      std::fprintf(stderr, "%s\n", runtime.status().to_string().c_str());
      ::_exit(1);
    }
    auto handle = *(*runtime)->op("affine", kF32, {{"N", 16}});
    AffineCall c(3, 16);
    (void)handle.call(c.args());
    const auto disabled =
        (*runtime)->dispatcher().totals().by_reason[static_cast<int>(FallbackReason::kDisabled)];
    std::fprintf(stderr, "disabled calls %d\n", static_cast<int>(disabled));
    ::_exit(0);
  };
  EXPECT_EXIT(served_by("1", false), testing::ExitedWithCode(0), "disabled calls 1");
  EXPECT_EXIT(served_by("0", false), testing::ExitedWithCode(0), "disabled calls 0");
  EXPECT_EXIT(served_by("0", true), testing::ExitedWithCode(0), "disabled calls 1");
  EXPECT_EXIT(served_by("maybe", false), testing::ExitedWithCode(1),
              "NICHE_DISABLE.*takes a bool, not 'maybe'");
}

class RuntimeBinding : public AffineRuntime {
 protected:
  void SetUp() override {
    start(config());
    kernel = affine_kernel(handle, "affine_packed", rows(1, 1000), 0);
  }
  Status bind(Floats& w, std::string_view name, bool again = false) {
    auto owner = std::shared_ptr<const void>(w.data(), [](const void*) {});
    return again ? handle.rebind(name, w.view(), owner) : handle.bind_constant(name, w.view(), owner);
  }
  std::shared_ptr<const Kernel> kernel;
};

TEST_F(RuntimeBinding, AKernelThatWantsPackedConstantsWaitsForAllOfThem) {
  ASSERT_TRUE(handle.state()->bindings().pack(kernel).ok());
  publish(kernel);
  AffineCall c(4, kN);
  ASSERT_TRUE(call(c).ok());
  EXPECT_EQ(reason(FallbackReason::kNotPacked), 1);
  ASSERT_TRUE(bind(c.w, "w").ok());
  ASSERT_TRUE(call(c).ok());
  EXPECT_EQ(reason(FallbackReason::kNotPacked), 2);
  ASSERT_TRUE(bind(c.b, "b").ok());
  ASSERT_TRUE(call(c).ok());
  EXPECT_EQ(reason(FallbackReason::kNotPacked), 2);
  EXPECT_EQ(rung(Rung::kRegion), 1);
  EXPECT_LT(c.error(), 1e-6);
}

TEST_F(RuntimeBinding, RebindPacksTheNewContents) {
  ASSERT_TRUE(handle.state()->bindings().pack(kernel).ok());
  publish(kernel);
  AffineCall c(4, kN);
  ASSERT_TRUE(bind(c.w, "w").ok());
  ASSERT_TRUE(bind(c.b, "b").ok());
  c.w.fill(77);
  ASSERT_TRUE(bind(c.w, "w", true).ok());
  ASSERT_TRUE(call(c).ok());
  EXPECT_EQ(op->runs[0], 0);
  EXPECT_LT(c.error(), 1e-6);
}

TEST_F(RuntimeBinding, AnotherTensorThanTheBoundOneGoesToTheLibrary) {
  ASSERT_TRUE(handle.state()->bindings().pack(kernel).ok());
  publish(kernel);
  AffineCall bound(4, kN), other(4, kN, 9);
  ASSERT_TRUE(bind(bound.w, "w").ok());
  ASSERT_TRUE(bind(bound.b, "b").ok());
  ASSERT_TRUE(call(other).ok());
  EXPECT_LT(other.error(), 1e-6);
  EXPECT_EQ(reason(FallbackReason::kNotPacked), 1);
}

TEST_F(RuntimeBinding, AForgottenRebindIsFoundAndWithdrawsThePackedCopy) {
  ASSERT_TRUE(handle.state()->bindings().pack(kernel).ok());
  publish(kernel);
  AffineCall c(4, kN);
  ASSERT_TRUE(bind(c.w, "w").ok());
  ASSERT_TRUE(bind(c.b, "b").ok());
  EXPECT_EQ(handle.state()->bindings().check(), "");
  c.w.fill(123);
  EXPECT_THAT(handle.state()->bindings().check(), AllOf(HasSubstr("'w'"), HasSubstr("without rebind")));
  ASSERT_TRUE(call(c).ok());
  EXPECT_LT(c.error(), 1e-6);
  EXPECT_EQ(reason(FallbackReason::kNotPacked), 1);
  ASSERT_TRUE(bind(c.w, "w", true).ok());
  ASSERT_TRUE(call(c).ok());
  EXPECT_EQ(rung(Rung::kRegion), 1);
  EXPECT_LT(c.error(), 1e-6);
}

TEST_F(RuntimeBinding, AVersionCounterThatMovedIsFound) {
  AffineCall c(4, kN);
  uint64_t version = 1;
  ASSERT_TRUE(handle.bind_constant("w", c.w.view(), nullptr, [&] { return version; }).ok());
  EXPECT_EQ(handle.state()->bindings().check(), "");
  version = 2;
  EXPECT_THAT(handle.state()->bindings().check(), HasSubstr("version counter"));
}

TEST_F(RuntimeBinding, PackedConstantsAreBounded) {
  auto c = config();
  c.packed_bytes_max = 8 * kN - 1;
  start(c);
  kernel = affine_kernel(handle, "affine_packed", rows(1, 1000), 0);
  AffineCall call_(4, kN);
  ASSERT_TRUE(bind(call_.w, "w").ok());
  ASSERT_TRUE(bind(call_.b, "b").ok());
  const Status s = handle.state()->bindings().pack(kernel);
  EXPECT_EQ(s.code(), Code::kBusy);
  EXPECT_THAT(s.message(), HasSubstr("packed_bytes_max"));
}

TEST_F(RuntimeBinding, ErrorsNameTheArgument) {
  AffineCall c(4, kN);
  Floats narrow({kN - 1});
  EXPECT_THAT(bind(c.x, "x").message(), AllOf(HasSubstr("'x'"), HasSubstr("not one that may be bound")));
  EXPECT_THAT(bind(c.w, "v").message(), HasSubstr("no argument 'v'"));
  EXPECT_THAT(bind(narrow, "w").message(), HasSubstr("dimension 0 is 63"));
  EXPECT_EQ(bind(c.w, "w", true).code(), Code::kNotFound);
  EXPECT_EQ(handle.unbind("w").code(), Code::kNotFound);
}

}  // namespace
}  // namespace niche::testing_ops
