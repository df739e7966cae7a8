// Calls on device tensors through an OpHandle, over the fake driver: the key carries the device, the launch
// the caller's stream, and what the device refuses the library answers.
#include <cstring>

#include "dispatch/devices/cuda/cuda_kernel.h"
#include "tests/dispatch/devices/cuda/fake_driver.h"
#include "tests/runtime/affine_fixture.h"

namespace niche::testing_ops {
namespace {

using fake_cuda::state;

class CudaCall : public AffineRuntime {
 protected:
  void SetUp() override {
    fake_cuda::reset();
    // y = x * w + b, in "device" memory, which is this process's.
    const auto affine = [](const fake_cuda::Launch& l) {
      NicheCudaArgs a;
      std::memcpy(&a, l.parameter.data(), sizeof a);
      const auto *x = static_cast<const float*>(a.p[0]), *w = static_cast<const float*>(a.p[1]),
                 *b = static_cast<const float*>(a.p[2]);
      for (long long i = 0; i < a.n[0] * a.n[1]; ++i)
        static_cast<float*>(a.p[3])[i] = x[i] * w[i % a.n[1]] + b[i % a.n[1]];
    };
    state().bodies = {{"k", affine}};
    state().devices = 2;
    op->on_device = true;
    RuntimeConfig c = config();
    c.cuda_devices = 2;
    c.device_workspace = [this](int, void* stream, int64_t bytes) {
      asked_stream = stream, asked_bytes = bytes;
      return workspace;
    };
    start(std::move(c));
  }
  // A kernel on device `ordinal`, published for that device alone.
  void serve(int ordinal, int64_t workspace_bytes = 0) {
    auto driver = fake_cuda::driver();
    auto found = CudaInfo::discover(*driver);
    ASSERT_TRUE(found.ok());
    auto device = CudaDevice::open(driver, found->at(static_cast<size_t>(ordinal)));
    auto module = CudaModule::load(*device, fake_cuda::cubin(), "affine");
    ASSERT_TRUE(module.ok());
    CudaKernelSpec spec;
    spec.name = "affine.f32.test.sm_90a";
    spec.definition = handle.state()->definition();
    spec.guard = rows(1, 1000);
    spec.plan.phases = {{"k", {{0, 4}}, 128, 0, 0, 1, false}};
    spec.plan.workspace_bytes = workspace_bytes;
    auto kernel = load_cuda_kernel(std::move(spec), *module);
    ASSERT_TRUE(kernel.ok()) << kernel.status().to_string();
    Dispatcher& d = runtime->dispatcher();
    auto route = d.make_route({(*kernel)->definition, d.fallback(handle.id(), 0), *kernel, nullptr,
                               RolloutState::kIncumbent, 0, "test"});
    ASSERT_TRUE(route.ok());
    const auto region =
        d.publisher().put_region({handle.state()->site(ordinal + 1).prefix(), (*kernel)->guard, *route});
    ASSERT_TRUE(region.ok()) << region.status().to_string();
    ASSERT_TRUE(d.publisher().commit().ok());
    state().launches.clear();
  }
  static std::vector<DLTensor> on_device(AffineCall& c, int ordinal) {
    auto args = c.args();
    for (DLTensor& t : args) t.device = {kDLCUDA, ordinal};
    return args;
  }
  int library_runs() const { return op->runs[0].load() + op->runs[1].load(); }

  void* workspace = nullptr;
  void* asked_stream = nullptr;
  int64_t asked_bytes = 0;
  int stream_ = 0;  // its address is a stream
};

TEST_F(CudaCall, KernelRunsOnTheCallersStreamAndOnItsDeviceAlone) {
  serve(1);
  AffineCall c(17, kN);
  ASSERT_TRUE(handle.call(on_device(c, 1), &stream_).ok());
  EXPECT_LT(c.error(), 1e-6);
  ASSERT_EQ(state().launches.size(), 1u);
  EXPECT_EQ(state().launches[0].stream, reinterpret_cast<CUstream>(&stream_));
  EXPECT_EQ(state().launches[0].blocks, 5u);
  EXPECT_EQ(library_runs(), 0);
  EXPECT_EQ(rung(Rung::kRegion), 1u);
  // The same shape on the other device and on the host is another problem.
  AffineCall other(17, kN), host(17, kN);
  ASSERT_TRUE(handle.call(on_device(other, 0), &stream_).ok());
  ASSERT_TRUE(handle.call(host.args()).ok());
  EXPECT_EQ(state().launches.size(), 1u);
  EXPECT_EQ(library_runs(), 2);
  EXPECT_EQ(reason(FallbackReason::kMiss), 2u);
}

TEST_F(CudaCall, RefusedLaunchIsAnsweredByTheLibraryAndCounted) {
  serve(0);
  state().fail_name = "cuLaunchKernel";
  state().failure = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  AffineCall c(9, kN);
  ASSERT_TRUE(handle.call(on_device(c, 0), &stream_).ok());
  EXPECT_LT(c.error(), 1e-6) << "a refusal was taken for an answer";
  EXPECT_EQ(library_runs(), 1);
  EXPECT_EQ(reason(FallbackReason::kDeviceRefused), 1u);
  EXPECT_EQ(rung(Rung::kRegion), 0u);
  EXPECT_EQ(rung(Rung::kFallback), 1u);
  EXPECT_NE(runtime->metrics().find("device_refused"), std::string::npos);
}

TEST_F(CudaCall, LostContextIsAStatusThatNamesTheKernel) {
  serve(0);
  state().fail_name = "cuLaunchKernel";
  state().failure = CUDA_ERROR_ILLEGAL_ADDRESS;
  AffineCall c(9, kN);
  const Status s = handle.call(on_device(c, 0), &stream_);
  EXPECT_EQ(s.code(), Code::kDevice);
  EXPECT_NE(s.message().find("kernel affine.f32.test.sm_90a"), std::string::npos) << s.message();
  EXPECT_NE(s.message().find("error 700"), std::string::npos) << s.message();
  EXPECT_NE(s.message().find("restart this process"), std::string::npos) << s.message();
  EXPECT_EQ(library_runs(), 0) << "the library cannot run in a lost context either";
  AffineCall host(9, kN);
  EXPECT_TRUE(handle.call(host.args()).ok()) << "other devices go on";
}

TEST_F(CudaCall, WorkspaceIsTheDevicesAndWithoutItTheLibraryAnswers) {
  serve(0, 1 << 20);
  AffineCall c(9, kN);
  ASSERT_TRUE(handle.call(on_device(c, 0), &stream_).ok());
  EXPECT_EQ(asked_stream, &stream_);
  EXPECT_EQ(asked_bytes, 1 << 20);
  EXPECT_EQ(reason(FallbackReason::kNoWorkspace), 1u);
  EXPECT_EQ(library_runs(), 1);
  std::vector<char> memory(1 << 20);
  workspace = memory.data();
  ASSERT_TRUE(handle.call(on_device(c, 0), &stream_).ok());
  ASSERT_EQ(state().launches.size(), 1u);
  NicheCudaArgs a;
  std::memcpy(&a, state().launches[0].parameter.data(), sizeof a);
  EXPECT_EQ(a.ws, memory.data()) << "never the host thread's";
}

TEST_F(CudaCall, TensorsThatDoNotStandTogetherAreRefusedByName) {
  AffineCall c(9, kN);
  auto mixed = on_device(c, 0);
  mixed[1].device = {kDLCPU, 0};
  const Status s = handle.call(mixed, &stream_);
  EXPECT_EQ(s.code(), Code::kInvalid);
  EXPECT_NE(s.message().find("'w'"), std::string::npos) << s.message();
  EXPECT_EQ(handle.call(on_device(c, 2), &stream_).code(), Code::kInvalid) << "two devices are configured";
  auto strided = on_device(c, 0);
  int64_t strides[] = {1, 9};
  strided[0].strides = strides;
  EXPECT_EQ(handle.call(strided, &stream_).code(), Code::kUnsupported);
  EXPECT_TRUE(state().launches.empty());
}

// A kernel may be refused at any time: where no library form can follow, the call is not begun.
TEST_F(CudaCall, OperatorOfPlainCodeTakesNoDeviceTensors) {
  serve(0);
  op->on_device = false;
  AffineCall c(9, kN);
  const Status s = handle.call(on_device(c, 0), &stream_);
  EXPECT_EQ(s.code(), Code::kUnsupported);
  EXPECT_NE(s.message().find("host memory alone"), std::string::npos) << s.message();
  EXPECT_TRUE(state().launches.empty());
}

// A shadow's copies are the host's: it would read what the host cannot.
TEST_F(CudaCall, CallsOnDevicesAreNotShadowed) {
  serve(0);
  runtime->dispatcher().set_sampling({.time_every = 1, .shadow_every = 1});
  for (int i = 0; i < 50; ++i) {
    AffineCall c(9, kN);
    ASSERT_TRUE(handle.call(on_device(c, 0), &stream_).ok());
  }
  EXPECT_EQ(library_runs(), 0) << "a shadow ran";
  EXPECT_EQ(state().launches.size(), 50u);
}

}  // namespace
}  // namespace niche::testing_ops
