#include "runtime/torch/cuda_worker.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "evolve/device_family.h"
#include "evolve/judge_device/device_evaluator.h"
#include "evolve/probe/probe_main.h"
#include "evolve/probe/probe_once.h"
#include "evolve/toolchain/cuda_toolchain.h"
#include "runtime/cuda/cuda.h"
#include "runtime/ops/cuda/families.h"
#include "runtime/torch/cuda_forms.h"
#include "runtime/torch/worker.h"

namespace niche {
namespace {

using dispatch::Result;

constexpr int kHostThreadsMax = 8;
constexpr int64_t kProbeMemoryBytes = int64_t{2} << 30;

Result<int> ordinal_of(const std::string& device) {
  constexpr std::string_view kPrefix = "cuda:";
  char* end = nullptr;
  const long n = device.rfind(kPrefix, 0) == 0 ? std::strtol(device.c_str() + kPrefix.size(), &end, 10) : -1;
  if (n < 0 || n > 255 || end == device.c_str() + kPrefix.size() || *end != '\0')
    return dispatch::invalid("device '" + device + "': expected cuda:N");
  return static_cast<int>(n);
}

}  // namespace

Result<evolve::DeviceSession> cuda_session(const evolve::SessionRequest& request,
                                           evolve::PermitSource& permits, const dispatch::Clock& clock) {
  return profiled_cuda_session(request, permits, clock, "");
}

Result<evolve::DeviceSession> profiled_cuda_session(const evolve::SessionRequest& request,
                                                    evolve::PermitSource& permits,
                                                    const dispatch::Clock& clock, const std::string& ncu) {
  auto ordinal = ordinal_of(request.device);
  if (!ordinal.ok()) return ordinal.status();
  auto driver = dispatch::CudaDriver::load();
  if (!driver.ok()) return driver.status();
  auto target = cuda_target(**driver, *ordinal);
  if (!target.ok()) return target.status();
  auto toolchain = evolve::CudaToolchain::find({});
  if (!toolchain.ok()) return toolchain.status();
  auto environment =
      cuda_environment(**driver, *ordinal, torch_libraries(), request.op_libraries, (*toolchain)->version());
  if (!environment.ok()) return environment.status();

  evolve::DeviceEvaluatorOptions options;
  options.probe.program = "/proc/self/exe";
  options.probe.args = {"probe", std::to_string(*ordinal)};
  options.probe.memory_bytes = kProbeMemoryBytes;
  if (!ncu.empty()) {
    std::error_code unknown;
    options.profiler.ncu = ncu;
    options.profiler.program =
        std::filesystem::read_symlink("/proc/self/exe", unknown).string();  // ncu has its own
    options.profiler.args = options.probe.args;
  }
  options.permits = &permits;
  options.clock = &clock;
  options.arch = target->arch;
  options.l2_bytes = target->l2_bytes;
  if (auto info = cuda_info(**driver, *ordinal); info.ok()) options.peaks = evolve::DevicePeaks::of(*info);
  options.host_threads =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 1, kHostThreadsMax);
  if (!request.cache_dir.empty()) {
    options.cubin_cache_dir = request.cache_dir + "/cubins";
    std::error_code ec;
    std::filesystem::create_directories(options.cubin_cache_dir, ec);
    if (ec) options.cubin_cache_dir.clear();
  }

  evolve::DeviceSession session;
  evolve::CudaFamilyRegistry families;
  ops_cuda::register_cuda_families(families);
  session.families = evolve::device_families(families, *target);
  session.environment = *environment;
  session.device = "cuda." + target->arch;
  session.cuda = std::make_shared<const evolve::CudaTarget>(*target);
  session.make_evaluator = [options](evolve::EvaluatorSpec spec, evolve::EvaluatorOptions o) {
    return evolve::make_device_evaluator(std::move(spec), std::move(o), options);
  };
  return session;
}

int cuda_probe_main(int argc, char** argv) {
  const int ordinal = argc > 2 ? std::atoi(argv[2]) : 0;
  const evolve::ProbeHooks hooks{[] { return dispatch::CudaDriver::load(); }, torch_cuda_forms};
  const std::string once = evolve::once_directory(argc, argv);
  return once.empty() ? evolve::probe_main(hooks, ordinal) : evolve::probe_once(hooks, ordinal, once);
}

}  // namespace niche
