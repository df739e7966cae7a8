// The at::Tensor skin: same answers as ATen, foreign tensors untouched, exceptions unchanged.
#include <ATen/autocast_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/embedding_bag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/tensor.h>
#include <ATen/TensorOperators.h>
#include <c10/core/InferenceMode.h>

#include "runtime/torch/torch.h"
#include "tests/runtime/affine_fixture.h"

namespace niche::testing_ops {
namespace {

using ::testing::HasSubstr;

class TorchSkin : public ::testing::Test {
 protected:
  void SetUp() override {
    RuntimeConfig c = torch_config();
    c.evolve = false;
    c.ops.push_back(affine);
    auto made = Runtime::create(std::move(c));
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    runtime = *std::move(made);
    norm = op("rms_norm");
    fused = op("fused_add_rms_norm_inplace");
  }
  OpHandle op(const char* name, int64_t n = kN) {
    auto h = runtime->op(name, kF32, {{"N", n}});
    EXPECT_TRUE(h.ok()) << h.status().to_string();
    return *h;
  }
  void publish(const OpHandle& h, const char* symbol, int alignment = 4) {
    Guard guard = rows(1, 1000);
    guard.alignment_bytes = alignment;
    auto module = CpuModule::load_bytes(affine_artefact(), symbol);
    CpuKernelSpec spec;
    spec.name = symbol;
    spec.definition = h.state()->definition();
    spec.guard = guard;
    spec.plan.phases = {{symbol, {{0, 1}}, 2}};
    auto kernel = load_cpu_kernel(spec, *module);
    ASSERT_TRUE(kernel.ok()) << kernel.status().to_string();
    Dispatcher& d = runtime->dispatcher();
    auto route = *d.make_route(
        {spec.definition, d.fallback(h.id(), 0), *kernel, nullptr, RolloutState::kIncumbent, 0, ""});
    ASSERT_TRUE(d.publisher().put_region({h.state()->site().prefix(), guard, route}).ok());
    ASSERT_TRUE(d.publisher().commit().ok());
  }
  uint64_t reason(FallbackReason r) { return runtime->dispatcher().totals().by_reason[static_cast<int>(r)]; }
  uint64_t evolved() { return runtime->dispatcher().totals().by_rung[static_cast<int>(Rung::kRegion)]; }
  at::Tensor expected(const at::Tensor& x, const at::Tensor& w) { return at::rms_norm(x, {kN}, w, 1e-6); }

  static constexpr int64_t kN = 96;
  std::shared_ptr<AffineOp> affine = std::make_shared<AffineOp>();
  std::unique_ptr<Runtime> runtime;
  OpHandle norm, fused;
  at::Tensor x = at::randn({7, kN}), w = at::randn({kN});
};

TEST_F(TorchSkin, TheLibraryFormAnswersAsATenDoes) {
  EXPECT_TRUE(at::allclose(torch_call(norm, x, w), expected(x, w), 1e-6, 1e-6));
  EXPECT_EQ(reason(FallbackReason::kMiss), 1);
  auto bf16 = *runtime->op("rms_norm", kBf16, {{"N", kN}});
  const auto xb = x.to(at::kBFloat16), wb = w.to(at::kBFloat16);
  EXPECT_TRUE(at::allclose(torch_call(bf16, xb, wb), expected(xb, wb), 1e-2, 1e-2));
}

TEST_F(TorchSkin, APublishedKernelAnswersInAndOutsideInferenceMode) {
  publish(norm, "rms_rows");
  const at::Tensor y = torch_call(norm, x, w);
  EXPECT_TRUE(at::allclose(y, expected(x, w), 1e-5, 1e-5));
  EXPECT_FALSE(y.is_inference());
  {
    const c10::InferenceMode guard;
    const at::Tensor xi = at::randn({5, kN}), yi = torch_call(norm, xi, w);
    EXPECT_TRUE(yi.is_inference());
    EXPECT_TRUE(at::allclose(yi, expected(xi, w), 1e-5, 1e-5));
  }
  EXPECT_EQ(evolved(), 2);
}

TEST_F(TorchSkin, AGivenOutputIsWrittenAndItsVersionMoves) {
  publish(norm, "rms_rows");
  at::Tensor y = at::empty({7, kN});
  const auto version = y._version();
  const void* memory = y.data_ptr();
  at::Tensor args[] = {x, w, y};
  torch_call_into(norm, args);
  EXPECT_EQ(y.data_ptr(), memory);
  EXPECT_EQ(y._version(), version + 1);
  EXPECT_TRUE(at::allclose(y, expected(x, w), 1e-5, 1e-5));
  at::Tensor fresh[] = {x, w, at::Tensor()};
  torch_call_into(norm, fresh);
  EXPECT_TRUE(at::equal(fresh[2], y));
}

TEST_F(TorchSkin, InOutTensorsAreUpdatedOnceByKernelAndLibraryAlike) {
  const at::Tensor r = at::randn({7, kN});
  at::Tensor xl = x.clone(), rl = r.clone(), xk = x.clone(), rk = r.clone();
  torch_call_(fused, w, xl, rl);
  EXPECT_TRUE(at::allclose(rl, x + r));
  publish(fused, "add_rms_rows");
  const auto version = xk._version();
  torch_call_(fused, w, xk, rk);
  EXPECT_EQ(evolved(), 1);
  EXPECT_GT(xk._version(), version);
  EXPECT_TRUE(at::equal(rk, rl));
  EXPECT_TRUE(at::allclose(xk, xl, 1e-5, 1e-5));
}

TEST_F(TorchSkin, OverlappingArgumentsGoToTheLibrary) {
  publish(fused, "add_rms_rows");
  at::Tensor both = at::randn({7, kN});
  torch_call_(fused, w, both, both);
  EXPECT_EQ(evolved(), 0);
  EXPECT_EQ(reason(FallbackReason::kLayout), 1);
}

TEST_F(TorchSkin, StridedAndMisalignedTensorsGoToTheLibrary) {
  publish(norm, "rms_rows", 64);
  const at::Tensor strided = at::randn({kN, 7}).t();
  EXPECT_TRUE(at::allclose(torch_call(norm, strided, w), expected(strided, w), 1e-5, 1e-5));
  const at::Tensor shifted = at::randn({7 * kN + 1}).slice(0, 1).view({7, kN});
  EXPECT_TRUE(at::allclose(torch_call(norm, shifted, w), expected(shifted, w), 1e-5, 1e-5));
  EXPECT_EQ(evolved(), 0);
  EXPECT_EQ(reason(FallbackReason::kLayout), 2);
}

TEST_F(TorchSkin, GradientsFlowThroughTheLibrary) {
  publish(norm, "rms_rows");
  const at::Tensor leaf = x.clone().requires_grad_();
  const at::Tensor y = torch_call(norm, leaf, w);
  EXPECT_TRUE(y.requires_grad());
  y.sum().backward();
  EXPECT_TRUE(leaf.grad().defined());
  EXPECT_EQ(reason(FallbackReason::kRequiresGrad), 1);
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(torch_call(norm, leaf, w).requires_grad());
  }
  EXPECT_EQ(evolved(), 1);
}

TEST_F(TorchSkin, ForeignTensorsReachATenUntouched) {
  publish(norm, "rms_rows");
  const at::Tensor meta = at::empty({7, kN}, at::device(at::kMeta));
  const at::Tensor y = torch_call(norm, meta, w.to(at::kMeta));
  EXPECT_TRUE(y.is_meta());
  EXPECT_EQ(reason(FallbackReason::kForeignDevice), 1);
  // What ATen says to a sparse tensor is what the caller hears.
  std::string direct, through;
  const at::Tensor sparse = x.to_sparse();
  try {
    (void)expected(sparse, w);
  } catch (const c10::Error& e) {
    direct = e.what_without_backtrace();
  }
  try {
    (void)torch_call(norm, sparse, w);
  } catch (const c10::Error& e) {
    through = e.what_without_backtrace();
  }
  EXPECT_FALSE(through.empty());
  EXPECT_EQ(reason(FallbackReason::kSparse), 1);
  EXPECT_EQ(evolved(), 0);
}

TEST_F(TorchSkin, UnderAutocastATenChoosesTheType) {
  publish(norm, "rms_rows");
  at::autocast::set_autocast_enabled(at::kCPU, true);
  (void)torch_call(norm, x, w);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(reason(FallbackReason::kDtype), 1);
  EXPECT_EQ(evolved(), 0);
}

TEST_F(TorchSkin, AnotherElementTypeGoesToTheLibrary) {
  publish(norm, "rms_rows");
  const at::Tensor xd = x.to(at::kDouble), wd = w.to(at::kDouble);
  EXPECT_EQ(torch_call(norm, xd, wd).scalar_type(), at::kDouble);
  EXPECT_EQ(reason(FallbackReason::kDtype), 1);
}

TEST_F(TorchSkin, ExceptionsOfATenPassUnchanged) {
  auto bag = *runtime->op("embedding_bag", kF32, {{"V", 10}, {"D", 16}});
  const at::Tensor table = at::randn({10, 16}), bad = at::tensor({1L, 2L, 99L}),
                   offsets = at::tensor({0L, 2L});
  std::string direct, through;
  try {
    (void)at::embedding_bag(table, bad, offsets);
  } catch (const c10::Error& e) {
    direct = e.what_without_backtrace();
  }
  try {
    (void)torch_call(bag, table, bad, offsets);
  } catch (const c10::Error& e) {
    through = e.what_without_backtrace();
  }
  EXPECT_FALSE(direct.empty());
  EXPECT_EQ(through, direct);
  const at::Tensor good = at::tensor({1L, 2L, 9L});
  EXPECT_EQ(torch_call(bag, table, good, offsets).size(0), 2);
}

TEST_F(TorchSkin, MisfitsAndWrongCountsThrowAndNameWhatIsWrong) {
  const auto message = [](auto f) {
    try {
      f();
    } catch (const c10::Error& e) {
      return std::string(e.what_without_backtrace());
    }
    return std::string("no exception");
  };
  EXPECT_THAT(message([&] { (void)torch_call(norm, x); }), HasSubstr("takes 2 inputs and gives 1 outputs"));
  EXPECT_THAT(message([&] { (void)torch_call(norm, x, w, w); }), HasSubstr("called with 3"));
  EXPECT_THAT(message([&] { (void)torch_calls<2>(norm, x, w); }), HasSubstr("and 2"));
  EXPECT_THAT(message([&] { (void)torch_call(norm, x, at::randn({kN - 1})); }),
              HasSubstr("dimension 0 is 95, not 96 (axis N)"));
  EXPECT_THAT(message([&] {
                (void)torch_call(norm, x.view({7, kN, 1}), w);
              }),
              HasSubstr("3 dimensions, not 2"));
}

TEST_F(TorchSkin, OperatorsThatKnowNoTensorsAreServedOnPlainMemory) {
  auto h = op("affine");
  const at::Tensor b = at::randn({kN});
  const at::Tensor y = torch_call(h, x, w, b);
  EXPECT_TRUE(at::allclose(y, x * w + b, 1e-6, 1e-6));
  const at::Tensor strided = at::randn({kN, 7}).t();
  EXPECT_TRUE(at::allclose(torch_call(h, strided, w, b), strided * w + b, 1e-6, 1e-6));
  auto bare = *runtime->op("affine", kF32, {{"N", kN}}, {{"has_b", 0}});
  EXPECT_TRUE(at::allclose(torch_call(bare, x, w), x * w));
  EXPECT_TRUE(at::allclose(torch_call(bare, x, w, at::Tensor()), x * w));
}

TEST_F(TorchSkin, BoundWeightsAreHeldAndAForgottenRebindIsSeenByItsVersion) {
  at::Tensor weight = w.clone();
  ASSERT_TRUE(bind_constant(norm, "weight", weight).ok());
  EXPECT_EQ(norm.state()->bindings().check(), "");
  weight.mul_(2);
  EXPECT_THAT(norm.state()->bindings().check(), HasSubstr("version counter"));
  ASSERT_TRUE(rebind(norm, "weight", weight).ok());
  EXPECT_EQ(norm.state()->bindings().check(), "");
  EXPECT_THAT(bind_constant(norm, "weight", w.to(at::kDouble)).message(),
              HasSubstr("element type is Double"));
  EXPECT_THAT(bind_constant(norm, "weight", at::randn({2 * kN}).slice(0, 0, 2 * kN, 2)).message(),
              HasSubstr("contiguous"));
}

}  // namespace
}  // namespace niche::testing_ops
