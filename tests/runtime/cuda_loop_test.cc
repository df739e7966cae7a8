// The whole loop on a device, over the fake driver: calls on device tensors make an operator hot, a worker
// evolves a kernel for the device under permits of this process, the kernel goes through its canary and
// serves, serves from the first call after a restart, and is rolled back when it becomes slow.
#include <nlohmann/json.hpp>

#include "runtime/cuda/cuda.h"
#include "tests/runtime/cuda_affine.h"
#include "tests/runtime/planted_cache.h"

namespace niche::testing_ops {
namespace {

using fake_cuda::state;

class CudaLoop : public AffineRuntime {
 protected:
  void SetUp() override {
    fake_cuda::reset();
    teach_fake_device();
    op->on_device = true;
    // The library on this process's fake device.
    op->on_run = [](int form) { fake_cuda::advance_us(form == 0 ? 2 * kLibraryUs : kLibraryUs); };
  }
  RuntimeConfig loop_config() {
    RuntimeConfig c = config();
    c.evolve = true;
    c.cache_dir = dir.path();
    c.worker_program = NICHE_TEST_CUDA_PROGRAM;
    c.worker_args = {"worker"};
    c.session_seconds_max = 60;
    c.session_evaluations_max = 4;
    c.p99_slack = 100;
    c.hot_share_min = 1e-6;
    EXPECT_TRUE(enable_cuda(&c, fake_cuda::driver()).ok());
    EXPECT_EQ(c.cuda_devices, state().devices);
    return c;
  }
  // One request; false: a wrong answer.
  bool request(int64_t m) {
    AffineCall c(m, kN);
    auto args = c.args();
    for (DLTensor& t : args) t.device = {kDLCUDA, 0};
    const RequestScope scope(runtime->dispatcher(), {.id = ++id_, .capture = CaptureState::kNone});
    return handle.call(args, &stream_).ok() && c.error() < 1e-5;
  }
  nlohmann::json status() { return nlohmann::json::parse(runtime->status()); }
  // Requests until `done` says so; at most `seconds`.
  bool serve_until(double seconds, const std::function<bool(const nlohmann::json&)>& done) {
    const SystemClock clock;
    const int64_t end = clock.now_ns() + static_cast<int64_t>(seconds * 1e9);
    for (int n = 0; clock.now_ns() < end; ++n) {
      wrong_ += request(n % 2 == 0 ? 16 : 48) ? 0 : 1;
      if (n % 200 == 199 && done(status())) return true;
    }
    return false;
  }
  uint64_t served() { return rung(Rung::kExact) + rung(Rung::kRegion); }

  TempDir dir;
  uint64_t id_ = 0;
  int wrong_ = 0;
  int stream_ = 0;  // its address is a stream
};

TEST_F(CudaLoop, AHotOperatorOnADeviceIsEvolvedSwappedInKeptAndRolledBack) {
  start(loop_config());
  ASSERT_TRUE(serve_until(150, [](const auto& s) { return s["swaps"] > 0 && s["sessions"]["running"] == 0; }))
      << status().dump(1);
  EXPECT_EQ(wrong_, 0);
  EXPECT_EQ(status()["rollbacks"], 0);
  const nlohmann::json told = status();
  for (const auto& d : told["definitions"]) {
    if (!d.contains("device")) continue;
    EXPECT_EQ(d["device"], "cuda:0");
    EXPECT_GE(d["tried"], 4);
    // The wrong one and the one that writes past the end; the slow one is right, and was not taken.
    EXPECT_EQ(d["rejected"]["smoke"], 2) << told.dump(1);
    EXPECT_EQ(d["kernels"].size(), 1u) << told.dump(1);
    EXPECT_EQ(d["kernels"][0]["name"], "affine.f32.fast.sm_90a") << told.dump(1);
  }
  const uint64_t before = served();
  EXPECT_TRUE(request(16));
  EXPECT_EQ(served(), before + 1);
  runtime.reset();

  start(loop_config());
  EXPECT_TRUE(request(32));
  EXPECT_EQ(served(), 1u) << "the cache's kernel answers the first call: " << status().dump(1);
  // Live traffic overrules the laboratory.
  EXPECT_TRUE(serve_until(30, [&](const auto&) { return served() > 3000; }));
  fake_cuda::set_cost_us("affine_fast", 3 * kSlowUs);
  EXPECT_TRUE(serve_until(120, [](const auto& s) { return s["rollbacks"] > 0; })) << status().dump(1);
  EXPECT_EQ(wrong_, 0);
}

TEST_F(CudaLoop, WhatIsHotOnOneDeviceIsEvolvedOnTheIdleOneAndServesWhereItIsHot) {
  state().devices = 2;
  start(loop_config());
  ASSERT_TRUE(serve_until(150, [](const auto& s) { return s["swaps"] > 0 && s["sessions"]["running"] == 0; }))
      << status().dump(1);
  EXPECT_EQ(wrong_, 0);
  const nlohmann::json told = status();
  for (const auto& d : told["definitions"]) {
    if (d.value("device", "") == "cuda:1") {
      EXPECT_EQ(d["tried"], 0) << "it is hot on the other one";
      EXPECT_FALSE(d.contains("tuned_on"));
    }
    if (d.value("device", "") != "cuda:0") continue;
    EXPECT_EQ(d["tuned_on"].get<std::string>().rfind("cuda:1 idle, where cuda:0 busy ", 0), 0u)
        << d["tuned_on"];
    EXPECT_EQ(d["kernels"][0]["name"], "affine.f32.fast.sm_90a") << told.dump(1);
  }
  const uint64_t before = served();
  EXPECT_TRUE(request(16));
  EXPECT_EQ(served(), before + 1);
  EXPECT_NE(runtime->explain(handle, {{"M", 16}})->session.find("on cuda:1 idle"), std::string::npos)
      << runtime->explain(handle, {{"M", 16}})->session;
}

TEST_F(CudaLoop, AModelsProgramForADeviceIsJudgedSwappedInAndServesAfterARestart) {
  RuntimeConfig c = loop_config();
  c.proposer = "exec:the worker of this test answers from memory";
  c.proposer_questions_max = 1;
  c.session_evaluations_max = 12;
  start(c);
  const auto model_serves = [](const auto& s) {
    for (const auto& d : s["definitions"])
      for (const auto& k : d["kernels"])
        if (k["name"].template get<std::string>().rfind("affine.f32.model.", 0) == 0 &&
            s["sessions"]["running"] == 0)
          return s["swaps"] > 0;
    return false;
  };
  ASSERT_TRUE(serve_until(150, model_serves)) << status().dump(1);
  EXPECT_EQ(wrong_, 0);
  const nlohmann::json told = status();
  for (const auto& d : told["definitions"]) {
    if (d.value("device", "") != "cuda:0") continue;
    // A header and a variable that can be written; what writes past the end, beside the two of the family. Bad launch
    // lines never became candidates.
    EXPECT_FALSE(d["rejected"].contains("parse")) << told.dump(1);
    EXPECT_EQ(d["rejected"]["compile"], 2) << told.dump(1);
    EXPECT_EQ(d["rejected"]["smoke"], 3) << told.dump(1);
  }
  runtime.reset();
  start(loop_config());
  EXPECT_TRUE(request(32));
  EXPECT_EQ(served(), 1u) << "the cache's kernel answers the first call: " << status().dump(1);
}

TEST_F(CudaLoop, MachineWithoutADeviceLeavesTheConfigAlone) {
  state().devices = 0;
  RuntimeConfig c = config();
  EXPECT_EQ(enable_cuda(&c, fake_cuda::driver()).code(), Code::kUnsupported);
  EXPECT_EQ(c.cuda_devices, 0);
  EXPECT_EQ(c.devices, nullptr);
}

}  // namespace
}  // namespace niche::testing_ops
