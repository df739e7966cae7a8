// Worker and probe of cuda_loop_test, over the fake driver.
#include <cstring>

#include "evolve/definition_json.h"
#include "evolve/device_family.h"
#include "evolve/judge_device/device_evaluator.h"
#include "evolve/probe/probe_main.h"
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
  evolve::CudaFamilyRegistry families;
  families.add(std::make_shared<AffineCudaFamily>());
  evolve::DeviceSession s;
  s.families = evolve::device_families(families, *target);
  s.environment = *environment;
  s.device = "cuda." + target->arch;
  s.make_evaluator = [options](evolve::EvaluatorSpec spec, evolve::EvaluatorOptions o) {
    return evolve::make_device_evaluator(std::move(spec), std::move(o), options);
  };
  return s;
}

}  // namespace
}  // namespace niche::testing_ops

int main(int argc, char** argv) {
  using namespace niche;  // NOLINT: a test's program
  dispatch::fake_cuda::reset();
  testing_ops::teach_fake_device();
  dispatch::fake_cuda::state().events_done = false;  // a pacer is never over before the host is done
  if (argc > 1 && std::strcmp(argv[1], "probe") == 0)
    return evolve::probe_main({[] {
                                 return dispatch::Result<std::shared_ptr<const dispatch::CudaDriver>>(
                                     dispatch::fake_cuda::driver());
                               },
                               [](int) {
                                 return dispatch::Result<std::unique_ptr<evolve::LibraryForms>>(
                                     std::make_unique<testing_ops::Forms>());
                               }});
  dispatch::OpRegistry ops;
  evolve::FamilyRegistry families;
  if (!ops.add(testing_ops::device_affine()).ok()) return 1;
  evolve::WorkerHooks hooks;
  hooks.environment = [](const evolve::SessionRequest&) {
    return dispatch::Result<kernels_cache::Environment>(
        dispatch::unsupported("no sessions for the host here"));
  };
  hooks.device = testing_ops::session;
  return evolve::worker_main(argc, argv, ops, families, hooks);
}
