#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <vector>

#include "dispatch/devices/cpu/cpu_info.h"
#include "dispatch/devices/cpu/cpu_kernel.h"
#include "dispatch/devices/cpu/cpu_module.h"
#include "dispatch/devices/cpu/cycle_clock.h"
#include "tests/dispatch/data_plane_fixture.h"

namespace niche::dispatch {
namespace {

using testing::box;
using testing::toy_definition;

std::vector<uint8_t> artefact(int value) {
  std::ifstream in(value == 2 ? NICHE_TEST_MODULE_2 : NICHE_TEST_MODULE_3, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

CpuKernelSpec two_phases() {
  CpuKernelSpec s;
  s.name = "toy.f32.two_phases";
  s.definition = toy_definition(8);
  s.guard = box(1, 64, 1, 64);
  s.plan.phases = {{"sum_rows", {{0, 1}, {1, 1}}, 2}, {"spread_rows", {{0, 2}, {1, 1}}, 2}};
  s.plan.workspace_bytes = 64 * 64 * 4;
  return s;
}

std::vector<float> run(const Kernel& k, int64_t b, int64_t l, const Executor& executor) {
  std::vector<float> x(static_cast<size_t>(b * l * 8), 1.0f), y(x.size(), -1.0f),
      ws(static_cast<size_t>(b * l + 2));
  void* pointers[] = {x.data(), y.data()};
  const long axes[] = {static_cast<long>(b), static_cast<long>(l), 8};
  NicheKernelArgs args{pointers, axes, nullptr, nullptr, nullptr};
  CallFrame frame;
  frame.args = &args;
  frame.workspace = ws.data();
  k.launch(k, frame, executor);
  return y;
}

TEST(CpuModule, LoadsFromBytesAndRunsPhasesInOrder) {
  auto module = CpuModule::load_bytes(artefact(2), "two");
  ASSERT_TRUE(module.ok()) << module.status().to_string();
  auto k = load_cpu_kernel(two_phases(), *module);
  ASSERT_TRUE(k.ok()) << k.status().to_string();
  for (const float v : run(**k, 4, 6, serial_executor())) ASSERT_EQ(v, 16.0f);
}

TEST(CpuKernel, ALargePhaseGoesThroughTheExecutorASmallOneDoesNot) {
  auto module = *CpuModule::load_bytes(artefact(2), "two");
  CpuKernelSpec spec = two_phases();
  spec.plan.phases[0].parallel_min_tasks = 24;
  spec.plan.phases[1].parallel_min_tasks = 1000;
  auto k = *load_cpu_kernel(spec, module);
  struct Pool {
    int regions = 0;
    int64_t tasks = 0;
  } pool;
  Executor executor;
  executor.threads = 2;
  executor.self = &pool;
  executor.parallel_for = [](void* self, int64_t tasks, void (*body)(void*, int64_t, int64_t), void* ctx) {
    auto* p = static_cast<Pool*>(self);
    ++p->regions;
    p->tasks += tasks;
    body(ctx, tasks / 2, tasks);  // any order within a phase
    body(ctx, 0, tasks / 2);
  };
  for (const float v : run(*k, 4, 6, executor)) ASSERT_EQ(v, 16.0f);
  EXPECT_EQ(pool.regions, 1);
  EXPECT_EQ(pool.tasks, 24);
}

// dlopen takes two equal path texts for one library: a reused descriptor number must not bring back the old
// code.
TEST(CpuModule, AReusedDescriptorNumberLoadsTheNewCode) {
  int first = -1;
  for (const int value : {2, 3, 2}) {
    const int fd = open(value == 2 ? NICHE_TEST_MODULE_2 : NICHE_TEST_MODULE_3, O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    if (first < 0) first = fd;
    ASSERT_EQ(fd, first) << "the point of this test";
    auto module = CpuModule::load_fd(fd, "by descriptor");
    close(fd);
    ASSERT_TRUE(module.ok()) << module.status().to_string();
    auto k = *load_cpu_kernel(two_phases(), *module);
    EXPECT_EQ(run(*k, 1, 1, serial_executor())[0], 8.0f * static_cast<float>(value));
  }
}

TEST(CpuModule, GarbageAndMissingSymbolsAreNamed) {
  const std::vector<uint8_t> garbage(1000, 0x5a);
  const auto bad = CpuModule::load_bytes(garbage, "3f2a.kc");
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code(), Code::kCorrupt);
  EXPECT_NE(bad.status().message().find("3f2a.kc"), std::string::npos);
  auto module = *CpuModule::load_bytes(artefact(3), "three");
  const auto missing = module->symbol("no_such_entry");
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
  EXPECT_NE(missing.status().message().find("no_such_entry"), std::string::npos);
}

TEST(CpuKernel, ABadPlanIsRefusedByName) {
  auto module = *CpuModule::load_bytes(artefact(2), "two");
  const auto refused = [&](auto change) {
    CpuKernelSpec s = two_phases();
    change(s);
    return load_cpu_kernel(s, module).status();
  };
  EXPECT_EQ(refused([](CpuKernelSpec& s) { s.plan.phases.clear(); }).code(), Code::kInvalid);
  EXPECT_EQ(refused([](CpuKernelSpec& s) { s.plan.phases.resize(4, s.plan.phases[0]); }).code(),
            Code::kInvalid);
  EXPECT_EQ(refused([](CpuKernelSpec& s) { s.plan.phases[0].factors[0].axis = 9; }).code(), Code::kInvalid);
  EXPECT_EQ(refused([](CpuKernelSpec& s) { s.plan.phases[0].factors[0].divisor = 0; }).code(),
            Code::kInvalid);
  EXPECT_EQ(refused([](CpuKernelSpec& s) { s.plan.phases[0].symbol = "nope"; }).code(), Code::kNotFound);
  EXPECT_EQ(refused([](CpuKernelSpec& s) { s.guard.var_count = 1; }).code(), Code::kInvalid);
  EXPECT_EQ(refused([](CpuKernelSpec& s) { s.plan.pack_symbol = "pack_constants"; }).code(), Code::kInvalid);
  CpuKernelSpec s = two_phases();
  s.plan.pack_symbol = "pack_constants";
  s.pack_slot = 0;
  auto k = *load_cpu_kernel(s, module);
  int packed = 0;
  k->pack(nullptr, &packed);
  EXPECT_EQ(packed, 2);
}

TEST(CpuKernel, TaskCountsRoundUp) {
  BoundPhase p;
  p.factor_count = 2;
  p.factors[0] = {0, 2, 4};
  p.factors[1] = {1, -1, 3};
  const long axes[] = {9, 10};
  EXPECT_EQ(p.tasks(axes), 3 * 4);
  p.factor_count = 0;
  EXPECT_EQ(p.tasks(axes), 1);
}

TEST(CpuInfo, ParsesTheFirstProcessor) {
  const CpuInfo i = CpuInfo::parse_cpuinfo(
      "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\nstepping\t: 1\n"
      "flags\t\t: fpu fma avx2 avx\n\nprocessor\t: 1\nmodel name\t: other\n");
  EXPECT_EQ(i.model_name, "AMD EPYC");
  EXPECT_EQ(i.family, 25);
  EXPECT_TRUE(i.avx2());
  EXPECT_FALSE(i.avx512());
  EXPECT_FALSE(i.has("avx51"));
  EXPECT_EQ(i.identity(), "AMD EPYC family 25 model 1 stepping 1: avx avx2 fma fpu");
}

TEST(CpuInfo, DetectsThisMachineAsTheCompilerDoes) {
  const CpuInfo i = CpuInfo::detect();
  EXPECT_GE(i.logical_cpus, 1);
#if defined(__x86_64__)
  EXPECT_FALSE(i.model_name.empty());
  EXPECT_EQ(i.avx2(), __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(i.has("avx512f"), __builtin_cpu_supports("avx512f") != 0);
#endif
}

TEST(CycleClock, AgreesWithTheSystemsClock) {
  const SystemClock clock;
  const CycleClock c = CycleClock::calibrate(clock);
  const int64_t t0 = clock.now_ns();
  const uint64_t c0 = cycles();
  while (clock.now_ns() - t0 < 5'000'000) {
  }
  const double measured = c.ns(cycles() - c0);
  EXPECT_NEAR(measured, static_cast<double>(clock.now_ns() - t0), 0.05 * measured);
  EXPECT_GT(CycleClock::calibrate(ManualClock(5)).ns_per_cycle(), 0)
      << "a clock that stands still does not hang it";
}

}  // namespace
}  // namespace niche::dispatch
