// Worker and probe of cuda_loop_test, over the fake driver.
#include <cstdio>
#include <cstring>

#include "evolve/definition_json.h"
#include "evolve/device_family.h"
#include "evolve/judge_device/device_evaluator.h"
#include "evolve/probe/probe_main.h"
#include "evolve/probe/probe_once.h"
#include "evolve/proposer/proposal_source.h"
#include "evolve/toolchain/cuda_toolchain.h"
#include "evolve/worker/worker_main.h"
#include "runtime/cuda/cuda.h"
#include "tests/runtime/cuda_affine.h"

namespace niche::testing_ops {
namespace {

std::shared_ptr<AffineOp> device_affine() {
  auto op = std::make_shared<AffineOp>();
  op->on_device = true;
  return op;
}

class Forms final : public evolve::LibraryForms {
 public:
  Result<std::unique_ptr<evolve::LibraryCall>> prepare(const std::string& json, std::span<const int64_t> axes,
                                                       std::span<void* const> arguments) override {
    OpRegistry ops;
    NICHE_RETURN_IF_ERROR(ops.add(device_affine()));
    auto definition = evolve::definition_from_json(json, ops);
    if (!definition.ok()) return definition.status();
    return std::unique_ptr<evolve::LibraryCall>(std::make_unique<Call>(*definition, axes, arguments));
  }

 private:
  class Call final : public evolve::LibraryCall {
   public:
    Call(std::shared_ptr<const Definition> d, std::span<const int64_t> axes, std::span<void* const> arguments)
        : definition_(std::move(d)), n_(axes.begin(), axes.end()), p_(arguments.begin(), arguments.end()) {}
    Status run(int form) override {
      NicheKernelArgs args{p_.data(), n_.data(), definition_->attrs().data(), nullptr, nullptr};
      device_affine()->run_fallback(form, {definition_.get(), &args, nullptr});
      fake_cuda::state().clock_us += form == 0 ? kLibraryUs * 2 : kLibraryUs;
      return {};
    }

   private:
    std::shared_ptr<const Definition> definition_;
    std::vector<long> n_;
    std::vector<void*> p_;
  };
};

Result<evolve::DeviceSession> session(const evolve::SessionRequest& request, evolve::PermitSource& permits,
                                      const Clock& clock) {
  const auto driver = fake_cuda::driver();
  auto target = cuda_target(*driver, 0);
  if (!target.ok()) return target.status();
  auto toolchain = evolve::CudaToolchain::find({});
  if (!toolchain.ok()) return toolchain.status();
  auto environment = cuda_environment(*driver, 0, {}, request.op_libraries, (*toolchain)->version());
  if (!environment.ok()) return environment.status();
  evolve::DeviceEvaluatorOptions options;
  options.probe.program = "/proc/self/exe";
  options.probe.args = {"probe"};
  options.permits = &permits;
  options.clock = &clock;
  options.arch = target->arch;
  options.l2_bytes = 1 << 20;
  if (auto info = cuda_info(*driver, 0); info.ok()) options.peaks = evolve::DevicePeaks::of(*info);
  evolve::CudaFamilyRegistry families;
  families.add(std::make_shared<AffineCudaFamily>());
  evolve::DeviceSession s;
  s.families = evolve::device_families(families, *target);
  s.environment = *environment;
  s.device = "cuda." + target->arch;
  s.cuda = std::make_shared<const evolve::CudaTarget>(*target);
  s.make_evaluator = [options](evolve::EvaluatorSpec spec, evolve::EvaluatorOptions o) {
    return evolve::make_device_evaluator(std::move(spec), std::move(o), options);
  };
  return s;
}

// A model that answers from memory: the first question with seven programs, of which one is good.
class Model final : public evolve::proposer::ProposalSource {
 public:
  bool idle() const override { return !waiting_; }
  bool ended() const override { return answered_; }
  Status start(const evolve::proposer::ProposalRequest& request) override {
    waiting_ = true;
    // What a device's model has to be told.
    const bool told = request.stable.find("CUDA C++ kernels for one NVIDIA GPU") != std::string::npos &&
                      request.stable.find("multiprocessors") != std::string::npos &&
                      request.stable.find("const __grid_constant__ Args a") != std::string::npos &&
                      request.stable.find("// niche: phase KERNEL grid=") != std::string::npos &&
                      request.stable.find("NicheKernelArgs") == std::string::npos;
    reply_ = {request.id, told ? answer() : "this is not about a GPU", "memory", {}};
    return {};
  }
  std::optional<Result<evolve::proposer::ProposalReply>> poll(int) override {
    if (!waiting_) return std::nullopt;
    waiting_ = false;
    answered_ = true;
    return Result<evolve::proposer::ProposalReply>(reply_);
  }

 private:
  static std::string program(const std::string& name, const std::string& launch,
                             const std::string& before = "") {
    return "<NAME>" + name +
           "</NAME>\n<DESCRIPTION>of the test</DESCRIPTION>\n<CODE>\n// niche: preamble\n// niche: align 4\n"
           "// niche: phase " +
           launch + "\n" + before + "extern \"C\" __global__ void " + launch.substr(0, launch.find(' ')) +
           "(const __grid_constant__ Args a) {\n  if (threadIdx.x < a.n[0]) ((float*)a.p[3])[threadIdx.x] = "
           "1.0f;\n}\n</CODE>\n";
  }
  static std::string answer() {
    return program("good", "affine_program grid=M/4 threads=128") +
           program("no such axis", "affine_program grid=Q threads=128") +
           program("too many threads", "affine_program grid=M threads=4096") +
           program("grid", "affine_program grid=M*M*M*M*M*M*M*M*M*M threads=128") +
           program("header", "affine_program grid=M/8 threads=128", "#include <cstdint>\n") +
           program("state", "affine_program grid=M/16 threads=128", "__device__ int calls = 1;\n") +
           program("past the end", "affine_past_end grid=M/2 threads=64");
  }
  bool waiting_ = false, answered_ = false;
  evolve::proposer::ProposalReply reply_;
};

}  // namespace
}  // namespace niche::testing_ops

int main(int argc, char** argv) {
  using namespace niche;  // NOLINT: a test's program
  dispatch::fake_cuda::reset();
  testing_ops::teach_fake_device();
  dispatch::fake_cuda::state().events_done = false;  // a pacer is never over before the host is done
  if (argc > 1 && std::strcmp(argv[1], "probe") == 0) {
    const evolve::ProbeHooks hooks{
        [] {
          return dispatch::Result<std::shared_ptr<const dispatch::CudaDriver>>(dispatch::fake_cuda::driver());
        },
        [](int) {
          return dispatch::Result<std::unique_ptr<evolve::LibraryForms>>(
              std::make_unique<testing_ops::Forms>());
        }};
    const std::string once = evolve::once_directory(argc, argv);
    if (once.empty()) return evolve::probe_main(hooks);
    const int code = evolve::probe_once(hooks, 0, once);
    // What a profiler would have seen.
    std::printf("launches");
    for (const auto& l : dispatch::fake_cuda::state().launches) std::printf(" %s", l.symbol.c_str());
    std::printf("\n");
    return code;
  }
  dispatch::OpRegistry ops;
  evolve::FamilyRegistry families;
  if (!ops.add(testing_ops::device_affine()).ok()) return 1;
  evolve::WorkerHooks hooks;
  hooks.environment = [](const evolve::SessionRequest&) {
    return dispatch::Result<kernels_cache::Environment>(
        dispatch::unsupported("no sessions for the host here"));
  };
  hooks.device = testing_ops::session;
  hooks.proposer = [](const evolve::ModelRequest&) {
    return dispatch::Result<std::unique_ptr<evolve::proposer::ProposalSource>>(
        std::make_unique<testing_ops::Model>());
  };
  return evolve::worker_main(argc, argv, ops, families, hooks);
}
