// The whole loop with nothing faked: live calls make an operator hot, a worker process evolves a kernel for
// it, the kernel goes through shadow and canary and serves, and serves from the first call after a restart.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/torch/torch.h"
#include "tests/runtime/planted_cache.h"

namespace niche::testing_ops {
namespace {

TEST(Loop, AHotOperatorIsEvolvedSwappedInAndSurvivesARestart) {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  TempDir dir;
  RuntimeConfig config = torch_config();
  config.cache_dir = dir.path();
  config.worker_program = NICHE_TEST_PROGRAM;
  config.session_seconds_max = 8;
  config.p99_slack =
      100;  // calls in a tight loop fill the machine: this is about the loop, not about its manners
  constexpr int64_t kN = 1024;
  const at::Tensor w = at::randn({kN});
  const at::Tensor x[] = {at::randn({16, kN}), at::randn({33, kN}), at::randn({64, kN})};
  const auto wrong = [&](const OpHandle& norm) {
    int n = 0;
    for (const at::Tensor& t : x)
      if (!at::allclose(torch_call(norm, t, w), at::rms_norm(t, {kN}, w, 1e-6), 1e-4, 1e-5)) ++n;
    return n;
  };
  const auto began = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  };
  {
    auto runtime = *Runtime::create(config);
    const OpHandle norm = *runtime->op("rms_norm", kF32, {{"N", kN}});
    nlohmann::json status;
    uint64_t id = 0;
    double first_swap = 0;
    for (; seconds() < 150; ++id) {
      {
        const RequestScope request(runtime->dispatcher(), {.id = id + 1});
        for (int k = 0; k < 4; ++k) (void)torch_call(norm, x[(id + static_cast<uint64_t>(k)) % 3], w);
      }
      if (id % 500 != 0) continue;
      status = nlohmann::json::parse(runtime->status());
      if (status["swaps"] > 0 && first_swap == 0) first_swap = seconds();
      if (first_swap != 0 && seconds() > first_swap + 1) break;
    }
    ASSERT_GT(status["swaps"], 0) << status.dump(1);
    RecordProperty("first_swap_s", std::to_string(first_swap));
    EXPECT_EQ(wrong(norm), 0);
    const auto why = *runtime->explain(norm, {{"M", 16}});
    EXPECT_EQ(why.rung, "exact") << why.to_text();
    EXPECT_EQ(status["rollbacks"], 0) << status.dump(1);
  }
  auto runtime = *Runtime::create(config);
  const OpHandle norm = *runtime->op("rms_norm", kF32, {{"N", kN}});
  EXPECT_EQ(wrong(norm), 0);
  const auto totals = runtime->dispatcher().totals();
  // Problems that were seen before the restart have their entries again.
  EXPECT_EQ(totals.by_rung[static_cast<int>(Rung::kExact)], 3)
      << runtime->explain(norm, {{"M", 16}})->to_text();
}

// An operator that niche has no template for: its kernels are programs that somebody writes, here a shell command.
TEST(Loop, AnOperatorOfOnesOwnIsEvolvedByTheConfiguredProposer) {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  TempDir dir;
  const std::string answer = dir.path() + "/answer";
  std::ofstream(answer) << R"(<NAME>one pass</NAME><DESCRIPTION>no temporary</DESCRIPTION><CODE>
// niche: preamble
// niche: phase run tasks=M
extern "C" void run(const NicheKernelArgs* k, long begin, long end) noexcept {
  const float* x = (const float*)k->p[0];
  float* y = (float*)k->p[1];
  for (long i = begin * 1024; i < end * 1024; i += 8) {
    const nv::f32x8 v = nv::load<8>(x + i), positive = v > 0 ? v : nv::f32x8{};
    nv::store(y + i, positive * positive);
  }
}
</CODE>)";
  RuntimeConfig config = torch_config();
  config.op_libraries = {NICHE_TEST_SOURCE "/examples/user_ops/squared_relu.json"};
  config.cache_dir = dir.path() + "/cache";
  config.worker_program = NICHE_TEST_PROGRAM;
  config.proposer = "exec:cat " + answer;
  config.proposer_questions_max = 1;
  config.session_seconds_max = 30;
  config.p99_slack = 100;
  auto runtime = *Runtime::create(config);
  const OpHandle op = *runtime->op("squared_relu", kF32, {{"N", 1024}});
  const at::Tensor x = at::randn({64, 1024});
  nlohmann::json status;
  const auto began = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 2000; ++i) (void)torch_call(op, x);
    status = nlohmann::json::parse(runtime->status());
  } while (status["sessions"]["kernels_committed"] == 0 &&
           std::chrono::steady_clock::now() - began < std::chrono::seconds(200));
  ASSERT_GE(status["sessions"]["kernels_committed"], 1) << status.dump(1);
  EXPECT_TRUE(at::equal(torch_call(op, x), at::relu(x) * at::relu(x)));
}

}  // namespace
}  // namespace niche::testing_ops
