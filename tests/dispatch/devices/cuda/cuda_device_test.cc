// The host side of the CUDA device against a fake driver: no GPU, no CUDA library.
#include <gtest/gtest.h>

#include <cstring>

#include "dispatch/devices/cuda/cuda_capture.h"
#include "dispatch/devices/cuda/cuda_event_pool.h"
#include "dispatch/devices/cuda/cuda_kernel.h"
#include "dispatch/devices/cuda/graph_swap.h"
#include "tests/dispatch/devices/cuda/fake_driver.h"

namespace niche::dispatch {
namespace {

using fake_cuda::state;

std::shared_ptr<const Definition> definition() {
  auto schema = std::make_shared<OpSchema>();
  schema->op = "scale";
  schema->axes = {{"M", AxisKind::kVar}, {"N", AxisKind::kConst}};
  schema->args = {{"x", ArgRole::kIn, "T", {0, 1}}, {"y", ArgRole::kOut, "T", {0, 1}}};
  schema->dtypes = {"f32"};
  return *Definition::make(schema, kF32, {{"N", 64}});
}

CudaKernelSpec spec() {
  CudaKernelSpec s;
  s.name = "scale.f32.test.sm90";
  s.definition = definition();
  s.guard.var_count = 1;
  s.guard.var[0] = {1, 1 << 20, 1};
  s.plan.phases = {{"k", {{0, 4}}, 128, 100 << 10, 2, 1, false}, {"k2", {{1, 32}}, 256, 0, 0, 2, true}};
  s.plan.workspace_bytes = 1000;
  return s;
}

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override { fake_cuda::reset(); }
  static Result<std::shared_ptr<const CudaDevice>> open() {
    auto driver = fake_cuda::driver();
    auto found = CudaInfo::discover(*driver);
    if (!found) return found.status();
    return CudaDevice::open(driver, found->at(0));
  }
  static Result<std::shared_ptr<const CudaKernel>> load(CudaKernelSpec s = spec()) {
    auto device = open();
    if (!device) return device.status();
    auto module = CudaModule::load(*device, fake_cuda::cubin(), "m");
    if (!module) return module.status();
    return load_cuda_kernel(std::move(s), *module);
  }
};

TEST_F(CudaDeviceTest, MissingDriverIsAStatusThatSaysSo) {
  const auto driver = CudaDriver::load("libniche_no_such_driver.so.1");
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.status().code(), Code::kUnsupported);
  EXPECT_NE(driver.status().message().find("libniche_no_such_driver.so.1"), std::string::npos);
}

TEST_F(CudaDeviceTest, LibraryWithoutTheEntryPointsIsRefusedByName) {
  const auto driver = CudaDriver::load("libc.so.6");
  ASSERT_FALSE(driver.ok());
  EXPECT_NE(driver.status().message().find("libc.so.6 has no cuInit"), std::string::npos)
      << driver.status().message();
}

TEST_F(CudaDeviceTest, DescribesTheDevice) {
  const auto found = CudaInfo::discover(*fake_cuda::driver());
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->size(), 1u);
  const CudaInfo& info = found->front();
  EXPECT_EQ(info.device_class(), "Fake GPU sm_90 132 SM 1980 MHz memory 3201 MHz x 6144 bit 139 GiB");
  EXPECT_EQ(info.arch(), "sm_90a");
  EXPECT_EQ(info.driver(), "CUDA 13.0");
  EXPECT_EQ(info.uuid.substr(0, 4), "a0a1");
}

TEST_F(CudaDeviceTest, NoDeviceIsAnEmptyListAndNotAnError) {
  state().fail_name = "cuDeviceGetCount";
  state().failure = CUDA_ERROR_NO_DEVICE;
  const auto found = CudaInfo::discover(*fake_cuda::driver());
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found->empty());
}

TEST_F(CudaDeviceTest, ArchitectureNamesAreExact) {
  CudaInfo info;
  info.major = 8;
  EXPECT_EQ(info.arch(), "sm_80");
  info.major = 10;
  EXPECT_EQ(info.arch(), "sm_100a");
}

TEST_F(CudaDeviceTest, KernelIsLaunchedOnceOnTheOwnStreamBeforeItIsHandedOut) {
  const auto kernel = load();
  ASSERT_TRUE(kernel.ok()) << kernel.status().to_string();
  ASSERT_EQ(state().launches.size(), 2u);
  for (const auto& l : state().launches) {
    EXPECT_EQ(l.stream, (*kernel)->cuda_module->device().own_stream());
    EXPECT_EQ(l.parameter, std::vector<unsigned char>(224, 0));  // no pointer and no extent: touches nothing
  }
  EXPECT_EQ(state().pushed, 0);
  EXPECT_EQ(state().captures_exchanged, 0);
}

TEST_F(CudaDeviceTest, LaunchComputesGridsAndPassesTheCallersMemory) {
  const auto kernel = load();
  ASSERT_TRUE(kernel.ok());
  state().launches.clear();
  float x = 0, y = 0, ws = 0;
  void* p[] = {&x, &y};
  const long n[] = {1000, 64};
  NicheKernelArgs args{};
  args.p = p;
  args.n = n;
  CallFrame frame;
  frame.args = &args;
  frame.workspace = &ws;
  frame.stream = &ws;  // any handle
  (*kernel)->launch(**kernel, frame, Executor{});
  ASSERT_EQ(state().launches.size(), 2u);
  const auto &first = state().launches[0], &second = state().launches[1];
  EXPECT_EQ(first.blocks, 250u);  // ceil(1000 / 4), under 2 x 132
  EXPECT_EQ(first.threads, 128u);
  EXPECT_EQ(first.shared_bytes, 100u << 10);
  EXPECT_EQ(first.stream, static_cast<CUstream>(frame.stream));
  EXPECT_EQ(second.blocks, 2u);
  EXPECT_EQ(second.cluster, 2u);
  EXPECT_TRUE(second.overlap);
  NicheCudaArgs seen;
  static_assert(sizeof seen == 224);
  std::memcpy(&seen, second.parameter.data(), sizeof seen);
  EXPECT_EQ(seen.p[0], &x);
  EXPECT_EQ(seen.p[1], &y);
  EXPECT_EQ(seen.n[0], 1000);
  EXPECT_EQ(seen.n[1], 64);
  EXPECT_EQ(seen.ws, &ws);
  EXPECT_EQ(seen.blocks[0], 250u);
  EXPECT_EQ(seen.blocks[1], 2u);
}

TEST_F(CudaDeviceTest, PersistentGridIsBoundedByTheDevice) {
  const auto kernel = load();
  ASSERT_TRUE(kernel.ok());
  const long many[] = {100000, 64}, none[] = {0, 64};
  EXPECT_EQ((*kernel)->blocks(0, many), 264u);
  EXPECT_EQ((*kernel)->blocks(0, none), 1u);
}

TEST_F(CudaDeviceTest, GridNeverOutgrowsTheWorkspaceThatItWasSizedWith) {
  CudaKernelSpec s = spec();
  s.plan.sm_count = 100;  // the fake device has 132
  const auto kernel = load(std::move(s));
  ASSERT_TRUE(kernel.ok());
  const long many[] = {100000, 64};
  EXPECT_EQ((*kernel)->blocks(0, many), 200u);
}

TEST_F(CudaDeviceTest, RefusedLaunchIsRememberedInTheDevicesHealth) {
  const auto kernel = load();
  ASSERT_TRUE(kernel.ok());
  const CudaDevice& device = (*kernel)->cuda_module->device();
  EXPECT_TRUE(device.health().ok());
  state().fail_name = "cuLaunchKernel";
  state().failure = CUDA_ERROR_ILLEGAL_ADDRESS;
  void* p[] = {nullptr, nullptr};
  const long n[] = {8, 64};
  NicheKernelArgs args{};
  args.p = p;
  args.n = n;
  EXPECT_FALSE(launch_cuda(**kernel, args, nullptr, nullptr));
  EXPECT_TRUE(device.failed());
  EXPECT_EQ(device.health().code(), Code::kDevice);
  EXPECT_NE(device.health().message().find("kernel id " + std::to_string((*kernel)->id)), std::string::npos);
}

// The frame carries the driver's answer to whoever called: a refusal is never taken for an answer.
TEST_F(CudaDeviceTest, RefusedLaunchReachesTheCallersFrame) {
  const auto kernel = load();
  ASSERT_TRUE(kernel.ok());
  float x = 0, y = 0;
  void* p[] = {&x, &y};
  const long n[] = {1000, 64};
  NicheKernelArgs args{};
  args.p = p;
  args.n = n;
  const auto launched = [&](const char* fails, CUresult with) {
    fake_cuda::state().fail_name = fails;
    fake_cuda::state().failure = with;
    CallFrame frame;
    frame.args = &args;
    (*kernel)->launch(**kernel, frame, Executor{});
    return std::pair(frame.refusal, frame.device_error);
  };
  const CudaDevice& device = (*kernel)->cuda_module->device();
  using Refusal = CallFrame::Refusal;
  EXPECT_EQ(launched("none", CUDA_SUCCESS), std::pair(Refusal::kNone, 0));
  // The first phase goes through cuLaunchKernel, the second, in clusters, through cuLaunchKernelEx.
  EXPECT_EQ(launched("cuLaunchKernel", CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES),
            std::pair(Refusal::kNothingRan, 701));
  EXPECT_EQ(launched("cuLaunchKernelEx", CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES),
            std::pair(Refusal::kPartlyRan, 701));
  EXPECT_EQ(launched("cuLaunchKernel", CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
            std::pair(Refusal::kNothingRan, 901));
  EXPECT_EQ(device.launches_refused(), 3u);
  EXPECT_FALSE(device.failed()) << "a refusal leaves the context as it was";
  EXPECT_EQ(launched("cuLaunchKernel", CUDA_ERROR_ILLEGAL_ADDRESS), std::pair(Refusal::kDeviceLost, 700));
  EXPECT_EQ(device.health().code(), Code::kDevice);
  EXPECT_EQ(launched("none", CUDA_SUCCESS), std::pair(Refusal::kNone, 0)) << "the frame is set by each call";
}

TEST_F(CudaDeviceTest, GridsHoldWholeClustersAndAtLeastOneForAnEmptyProblem) {
  CudaKernelSpec s = spec();
  s.plan.phases = {{"k", {{0, 4}}, 128, 0, 0, 4, false},    // clusters of 4, as many as it takes
                   {"k2", {{0, 1}}, 128, 0, 1, 5, false}};  // persistent: 132 blocks, 130 in clusters of 5
  const auto kernel = load(std::move(s));
  ASSERT_TRUE(kernel.ok()) << kernel.status().to_string();
  const auto blocks = [&](int phase, long m) {
    const long n[] = {m, 64};
    return (*kernel)->blocks(phase, n);
  };
  EXPECT_EQ(blocks(0, 0), 4u);
  EXPECT_EQ(blocks(1, 0), 5u);
  EXPECT_EQ(blocks(0, 16), 4u);
  EXPECT_EQ(blocks(0, 17), 8u);
  EXPECT_EQ(blocks(1, 129), 130u);
  EXPECT_EQ(blocks(1, 131), 130u) << "rounded up, the grid would outgrow its workspace";
  EXPECT_EQ(blocks(1, 1L << 40), 130u);
  for (long m : {1L, 7L, 1000L, 123457L}) EXPECT_EQ(blocks(0, m) % 4, 0u) << m;
}

TEST_F(CudaDeviceTest, GridThatNoLaunchCanHoldIsRefusedBeforeThePhaseBeforeIt) {
  CudaKernelSpec s = spec();
  s.plan.phases = {{"k", {}, 128, 0, 0, 1, false},
                   {"k2", {{0, 1}, {0, 1}, {0, 1}, {0, 1}}, 128, 0, 0, 1, false}};
  const auto kernel = load(std::move(s));
  ASSERT_TRUE(kernel.ok());
  state().launches.clear();
  float x = 0;
  void* p[] = {&x, &x};
  const long n[] = {0x7fffffff, 64};  // to the fourth power: beyond 64 bits
  NicheKernelArgs args{};
  args.p = p;
  args.n = n;
  const CudaLaunch l = launch_cuda(**kernel, args, nullptr, nullptr);
  EXPECT_EQ(l.refusal, CallFrame::Refusal::kNothingRan);
  EXPECT_TRUE(state().launches.empty());
  EXPECT_FALSE((*kernel)->cuda_module->device().failed());
}

TEST_F(CudaDeviceTest, BadPlansAreRefusedByName) {
  const auto refused = [](auto change) {
    CudaKernelSpec s = spec();
    change(s);
    return load(std::move(s)).status().message();
  };
  EXPECT_NE(refused([](auto& s) { s.plan.phases.clear(); }).find("0 phases"), std::string::npos);
  EXPECT_NE(refused([](auto& s) { s.plan.phases[0].symbol = "gone"; }).find("'gone' of module m"),
            std::string::npos);
  EXPECT_NE(refused([](auto& s) { s.plan.phases[0].threads = 2048; }).find("2048 threads"),
            std::string::npos);
  EXPECT_NE(refused([](auto& s) { s.plan.phases[0].shared_bytes = 1 << 20; }).find("1048576"),
            std::string::npos);
  EXPECT_NE(refused([](auto& s) { s.plan.phases[0].factors = {{7, 1}}; }).find("axis 7"), std::string::npos);
  EXPECT_NE(refused([](auto& s) { s.plan.phases[1].cluster = 32; }).find("cluster of 32"), std::string::npos);
  EXPECT_NE(refused([](auto& s) {
              s.plan.sm_count = 2;
              s.plan.phases[1].blocks_per_sm = 1, s.plan.phases[1].cluster = 8;
            }).find("persistent grid of 2"),
            std::string::npos);
  EXPECT_NE(refused([](auto& s) { s.guard.var_count = 2; }).find("guard has 2"), std::string::npos);
}

TEST_F(CudaDeviceTest, DamagedCubinNeverReachesTheDriver) {
  const auto device = open();
  ASSERT_TRUE(device.ok());
  auto whole = fake_cuda::cubin();
  for (size_t bytes = 0; bytes < whole.size(); ++bytes)
    EXPECT_FALSE(CudaModule::load(*device, std::span(whole.data(), bytes), "cut").ok()) << bytes;
  whole[60] = 2;  // a second section header that is not there
  EXPECT_EQ(CudaModule::load(*device, whole, "long").status().code(), Code::kCorrupt);
  EXPECT_EQ(state().modules, 0);
}

TEST_F(CudaDeviceTest, UnlaunchedModuleIsUnloadedAndALaunchedOneStays) {
  const int64_t before = CudaModule::resident_modules();
  {
    const auto device = open();
    ASSERT_TRUE(CudaModule::load(*device, fake_cuda::cubin(), "m").ok());
  }
  EXPECT_EQ(state().modules, 0);
  EXPECT_EQ(CudaModule::resident_modules(), before);
  { ASSERT_TRUE(load().ok()); }
  EXPECT_EQ(state().modules, 1);
  EXPECT_EQ(CudaModule::resident_modules(), before + 1);
}

TEST_F(CudaDeviceTest, CaptureThatCannotBeAskedForCountsAsCaptured) {
  const auto driver = fake_cuda::driver();
  EXPECT_FALSE(counts_as_captured(capture_state(*driver, nullptr)));
  state().capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  EXPECT_EQ(capture_state(*driver, nullptr), StreamCapture::kCapturing);
  state().fail_name = "cuStreamIsCapturing";
  EXPECT_EQ(capture_state(*driver, nullptr), StreamCapture::kUnknown);
  EXPECT_TRUE(counts_as_captured(StreamCapture::kUnknown));
}

TEST_F(CudaDeviceTest, EventPoolTimesASampleAndThenSkipsWhenFull) {
  const auto device = open();
  auto pool = CudaEventPool::make(*device, 2);
  ASSERT_TRUE(pool.ok());
  state().events_done = false;
  const int a = (*pool)->begin(nullptr, 7), b = (*pool)->begin(nullptr, 8);
  ASSERT_NE(a, CudaEventPool::kNoSlot);
  ASSERT_NE(b, CudaEventPool::kNoSlot);
  EXPECT_EQ((*pool)->begin(nullptr, 9), CudaEventPool::kNoSlot);
  EXPECT_EQ((*pool)->skipped(), 1);
  (*pool)->end(a, nullptr);
  std::vector<uint64_t> tags;
  const auto take = [&](uint64_t tag, double us) {
    tags.push_back(tag);
    EXPECT_DOUBLE_EQ(us, static_cast<double>(0.0125f) * 1e3);
  };
  EXPECT_EQ((*pool)->harvest(take), 1);  // recorded, not done on the device; b is still held
  state().events_done = true;
  EXPECT_EQ((*pool)->harvest(take), 0);
  EXPECT_EQ(tags, std::vector<uint64_t>{7});
  EXPECT_NE((*pool)->begin(nullptr, 10), CudaEventPool::kNoSlot);
}

class GraphSwapTest : public CudaDeviceTest {
 protected:
  // One phase, `rows` a block.
  std::shared_ptr<const CudaKernel> kernel(const std::string& name, const std::string& symbol, int64_t rows,
                                           int threads, int64_t m_max = 1 << 20) {
    CudaKernelSpec s = spec();
    s.name = name;
    s.guard.var[0].hi = m_max;
    s.plan.phases = {{symbol, {{0, rows}}, threads, 64 * threads, 0, 1, false}};
    s.plan.workspace_bytes = 0;
    s.definition = definition_;
    auto module = CudaModule::load(device_, fake_cuda::cubin(), name);
    EXPECT_TRUE(module.ok());
    auto k = load_cuda_kernel(std::move(s), *module);
    EXPECT_TRUE(k.ok()) << k.status().to_string();
    return *k;
  }
  // A graph with a node of k2's, which is not niche's here, and two calls of `k`.
  void capture(const CudaKernel& k) {
    state().launches.clear();
    for (const long m : {100L, 1000L}) {
      void* p[] = {reinterpret_cast<void*>(0x1000 + m), reinterpret_cast<void*>(0x2000 + m)};
      const long n[] = {m, 64};
      EXPECT_TRUE(static_cast<bool>(launch_cuda(k, {p, n, nullptr, nullptr, nullptr}, nullptr, nullptr)));
    }
    fake_cuda::Launch foreign = state().launches[0];
    foreign.symbol = "foreign";
    state().graph_nodes = {foreign, state().launches[0], state().launches[1]};
    state().exec_nodes = state().graph_nodes;
  }
  static NicheCudaArgs args_of(const fake_cuda::Launch& l) {
    NicheCudaArgs a;
    std::memcpy(&a, l.parameter.data(), sizeof a);
    return a;
  }

  void SetUp() override {
    CudaDeviceTest::SetUp();
    state().symbols = {"k", "k2", "foreign"};
    device_ = *open();
  }
  std::shared_ptr<const CudaDevice> device_;
  std::shared_ptr<const Definition> definition_ = definition();
};

TEST_F(GraphSwapTest, NodesOfTheKernelGetTheOtherOneWithItsOwnGridAndTheirOwnArguments) {
  const auto from = kernel("from", "k", 4, 128), to = kernel("to", "k2", 8, 256);
  capture(*from);
  const auto swapped = swap_in_graph(nullptr, nullptr, *from, *to);
  ASSERT_TRUE(swapped.ok()) << swapped.status().to_string();
  EXPECT_EQ(*swapped, 2);
  EXPECT_EQ(state().exec_nodes[0].symbol, "foreign");
  for (const auto& [node, m] : {std::pair<size_t, long>{1, 100}, {2, 1000}}) {
    const fake_cuda::Launch& l = state().exec_nodes[node];
    EXPECT_EQ(l.symbol, "k2");
    EXPECT_EQ(l.blocks, static_cast<unsigned>((m + 7) / 8));
    EXPECT_EQ(l.threads, 256u);
    EXPECT_EQ(l.shared_bytes, 64u * 256);
    EXPECT_EQ(args_of(l).p[1], reinterpret_cast<void*>(0x2000 + m));
    EXPECT_EQ(args_of(l).n[0], m);
    EXPECT_EQ(args_of(l).blocks[0], l.blocks);
  }
  // What the graph was instantiated from still names the first kernel: so it is found again, and taken back.
  ASSERT_EQ(*swap_in_graph(nullptr, nullptr, *from, *from), 2);
  EXPECT_EQ(state().exec_nodes[2].symbol, "k");
  EXPECT_EQ(state().exec_nodes[2].blocks, 250u);
  EXPECT_EQ(*swap_in_graph(nullptr, nullptr, *to, *from), 0) << "not in the graph";
}

TEST_F(GraphSwapTest, KernelThatDoesNotFitLeavesTheGraphAsItWas) {
  const auto from = kernel("from", "k", 4, 128), narrow = kernel("narrow", "k2", 8, 256, 500);
  capture(*from);
  const auto guard = swap_in_graph(nullptr, nullptr, *from, *narrow);
  EXPECT_EQ(guard.status().code(), Code::kUnsupported);
  EXPECT_NE(guard.status().message().find("from for narrow"), std::string::npos) << guard.status().message();
  EXPECT_EQ(state().exec_nodes[1].symbol, "k") << "the first node fits, and was not touched";
  CudaKernelSpec wants = spec();
  wants.plan.phases.resize(1);
  wants.definition = definition_;
  auto module = CudaModule::load(device_, fake_cuda::cubin(), "m");
  const auto workspace = load_cuda_kernel(std::move(wants), *module);
  ASSERT_TRUE(workspace.ok());
  EXPECT_EQ(swap_in_graph(nullptr, nullptr, *from, **workspace).status().code(), Code::kUnsupported);
  const auto two_phases = load();
  ASSERT_TRUE(two_phases.ok());
  EXPECT_FALSE(swap_in_graph(nullptr, nullptr, *from, **two_phases).ok());
}

TEST_F(GraphSwapTest, ErrorAtEveryCallIsAStatusAndTheGraphReplaysWhatItDid) {
  const auto from = kernel("from", "k", 4, 128), to = kernel("to", "k2", 8, 256);
  capture(*from);
  state().calls = 0;
  ASSERT_TRUE(swap_in_graph(nullptr, nullptr, *from, *to).ok());
  const int calls = state().calls;
  ASSERT_GT(calls, 8);
  for (int at = 1; at <= calls; ++at) {
    state().exec_nodes = state().graph_nodes;
    state().calls = 0;
    state().fail_at = at;
    const auto r = swap_in_graph(nullptr, nullptr, *from, *to);
    EXPECT_FALSE(r.ok()) << "call " << at;
    EXPECT_NE(r.status().message().find(state().failed_call), std::string::npos) << r.status().message();
    state().fail_at = 0;
    for (const auto& l : state().exec_nodes) EXPECT_NE(l.symbol, "k2") << "call " << at;
  }
}

// Everything that a server does with a device, each call of it made to fail once: a Status that names the
// call, nothing leaked, no context left on the thread.
TEST_F(CudaDeviceTest, ErrorAtEveryCallIsAStatusAndLeaksNothing) {
  int forward = 0;  // calls until everything stands; the rest gives it back, and has nobody to tell
  const auto life = [&forward]() -> Status {
    auto driver = fake_cuda::driver();
    auto found = CudaInfo::discover(*driver);
    if (!found) return found.status();
    auto device = CudaDevice::open(driver, found->at(0));
    if (!device) return device.status();
    auto pool = CudaEventPool::make(*device, 2);
    if (!pool) return pool.status();
    auto module = CudaModule::load(*device, fake_cuda::cubin(), "m");
    if (!module) return module.status();
    auto kernel = load_cuda_kernel(spec(), *module);
    forward = state().calls;
    return kernel ? Status() : kernel.status();
  };
  fake_cuda::reset();
  ASSERT_TRUE(life().ok());
  const int calls = state().calls, until = forward;
  ASSERT_GT(until, 40);
  int failed = 0;
  for (int n = 1; n <= calls; ++n) {
    fake_cuda::reset();
    state().fail_at = n;
    const Status s = life();
    const std::string& call = state().failed_call;
    if (s.ok()) {  // the end of a Scope on the way there has nobody to tell either
      EXPECT_TRUE(n > until || call == "cuCtxPopCurrent" || call == "cuThreadExchangeStreamCaptureMode")
          << n << " " << call;
      continue;
    }
    ++failed;
    EXPECT_NE(s.message().find("CUDA_ERROR_FAKE"), std::string::npos) << n << " " << s.message();
    const bool first_launch = s.message().find("first launch") != std::string::npos;
    EXPECT_TRUE(first_launch || s.message().find(call) != std::string::npos) << call << ": " << s.message();
    EXPECT_EQ(state().contexts, first_launch ? 1 : 0) << call;  // once launched, code and context stay
    EXPECT_EQ(state().streams, 0) << call;
    EXPECT_EQ(state().events, 0) << call;
    EXPECT_EQ(state().pushed, 0) << call;
    EXPECT_EQ(state().captures_exchanged, 0) << call;
    EXPECT_LE(state().modules, first_launch ? 1 : 0) << call;
  }
  EXPECT_GT(failed, 30);
}

}  // namespace
}  // namespace niche::dispatch
