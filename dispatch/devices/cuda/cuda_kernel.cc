#include "dispatch/devices/cuda/cuda_kernel.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace niche::dispatch {
namespace {

constexpr int64_t kBlocksMax = 0x7fffffff;

// At least one whole cluster: a kernel finds an empty problem by itself. A persistent grid ends at its bound;
// any other one that no grid can hold gives 0, and the launch is refused: fewer blocks would leave part of
// the answer out.
unsigned blocks_of(const BoundCudaPhase& p, const long* axes) {
  const int64_t bound = p.blocks_max > 0 ? p.blocks_max : kBlocksMax;
  int64_t n = 1;
  for (int i = 0; i < p.factor_count; ++i) {
    const BoundPhase::Factor& f = p.factors[static_cast<size_t>(i)];
    const int64_t up = axes[f.axis] + f.divisor - 1;
    n *= std::min(f.shift >= 0 ? up >> f.shift : up / f.divisor, kBlocksMax + 1);
    n = std::min(n, kBlocksMax + 1);  // a product of four stays in 64 bits
  }
  n = std::max<int64_t>(n, 1);
  if (p.blocks_max > 0) n = std::min(n, bound);
  if (p.cluster > 1) n = (n + p.cluster - 1) / p.cluster * p.cluster;
  return n > bound ? 0 : static_cast<unsigned>(n);
}

CUresult launch_phase(const CudaDriver& call, const BoundCudaPhase& p, unsigned blocks, NicheCudaArgs* args,
                      CUstream stream) {
  void* parameters[] = {args};
  if (p.cluster == 1 && !p.overlap)
    return call.cuLaunchKernel(p.function, blocks, 1, 1, p.threads, 1, 1, p.shared_bytes, stream, parameters,
                               nullptr);
  CUlaunchAttribute attributes[2];
  unsigned count = 0;
  if (p.cluster > 1) {
    attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attributes[count].value.clusterDim.x = p.cluster;
    attributes[count].value.clusterDim.y = attributes[count].value.clusterDim.z = 1;
    ++count;
  }
  if (p.overlap) {
    attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attributes[count].value.programmaticStreamSerializationAllowed = 1;
    ++count;
  }
  CUlaunchConfig config{};
  config.gridDimX = blocks;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = p.threads;
  config.sharedMemBytes = p.shared_bytes;
  config.hStream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return call.cuLaunchKernelEx(&config, p.function, parameters, nullptr);
}

void launch_frame(const Kernel& kernel, CallFrame& frame, const Executor&) {
  const CudaLaunch l = launch_cuda(static_cast<const CudaKernel&>(kernel), *frame.args, frame.workspace,
                                   static_cast<CUstream>(frame.stream));
  frame.refusal = l.refusal;
  frame.device_error = l.error;
}

Result<BoundCudaPhase> bind_phase(const CudaPhase& p, const CudaKernelSpec& spec, const CudaModule& module,
                                  CudaFunction* function) {
  const std::string what = "kernel " + spec.name + ": phase " + p.symbol;
  if (p.factors.size() > BoundPhase::kFactorsMax)
    return invalid(what + " has " + std::to_string(p.factors.size()) + " factors, at most " +
                   std::to_string(BoundPhase::kFactorsMax) + " fit");
  BoundCudaPhase b;
  for (const TaskFactor& f : p.factors) {
    if (f.axis < 0 || static_cast<size_t>(f.axis) >= spec.definition->schema().axes.size() || f.divisor < 1)
      return invalid(what + ": factor axis " + std::to_string(f.axis) + " divisor " +
                     std::to_string(f.divisor));
    const auto d = static_cast<uint64_t>(f.divisor);
    b.factors[static_cast<size_t>(b.factor_count++)] = {
        f.axis, std::has_single_bit(d) ? std::countr_zero(d) : -1, f.divisor};
  }
  if (p.cluster < 1 || p.cluster > 16 || p.blocks_per_sm < 0)
    return invalid(what + ": cluster of " + std::to_string(p.cluster) + ", " +
                   std::to_string(p.blocks_per_sm) + " blocks a multiprocessor");
  Result<CudaFunction> f = module.function(p.symbol, p.threads, p.shared_bytes, p.cluster);
  if (!f) return f.status();
  *function = *f;
  b.function = f->handle;
  b.threads = static_cast<unsigned>(p.threads);
  b.shared_bytes = static_cast<unsigned>(p.shared_bytes);
  b.cluster = static_cast<unsigned>(p.cluster);
  b.overlap = p.overlap;
  int multiprocessors = module.device().info().sm_count;
  if (spec.plan.sm_count > 0) multiprocessors = std::min(multiprocessors, spec.plan.sm_count);
  // Whole clusters: rounded up, a grid would outgrow the workspace that it was sized with.
  b.blocks_max = static_cast<unsigned>(p.blocks_per_sm * multiprocessors / p.cluster * p.cluster);
  if (p.blocks_per_sm > 0 && b.blocks_max == 0)
    return invalid(what + ": a cluster of " + std::to_string(p.cluster) + " in a persistent grid of " +
                   std::to_string(p.blocks_per_sm * multiprocessors) + " blocks");
  return b;
}

// Loads what the driver loads lazily, and finds a kernel that cannot start before a caller does.
Status make_resident(const CudaKernel& kernel) {
  const CudaDevice& device = kernel.cuda_module->device();
  const CudaDriver& call = device.driver();
  const CudaDevice::Scope scope(device);
  if (!scope.status().ok()) return scope.status();
  kernel.cuda_module->mark_launched();
  for (int i = 0; i < kernel.cuda_phase_count; ++i) {
    NicheCudaArgs args{};
    const BoundCudaPhase& p = kernel.cuda_phases[static_cast<size_t>(i)];
    NICHE_RETURN_IF_ERROR(call.check(launch_phase(call, p, p.cluster, &args, device.own_stream()),
                                     "first launch", "kernel " + kernel.name));
  }
  return call.check(call.cuStreamSynchronize(device.own_stream()), "cuStreamSynchronize",
                    "first launch of kernel " + kernel.name);
}

}  // namespace

unsigned CudaKernel::blocks(int phase, const long* axes) const {
  return blocks_of(cuda_phases[static_cast<size_t>(phase)], axes);
}

CudaLaunch launch_cuda(const CudaKernel& kernel, const NicheKernelArgs& args, void* workspace,
                       CUstream stream) {
  using Refusal = CallFrame::Refusal;
  NicheCudaArgs a;
  std::memcpy(a.p, args.p, kernel.arg_bytes);
  std::memcpy(a.n, args.n, kernel.axis_bytes);
  a.ws = workspace;
  a.packed = args.packed;
  for (int i = 0; i < kernel.cuda_phase_count; ++i) {
    a.blocks[i] = blocks_of(kernel.cuda_phases[static_cast<size_t>(i)], args.n);
    if (a.blocks[i] == 0) [[unlikely]]
      return {Refusal::kNothingRan, CUDA_ERROR_INVALID_VALUE};
  }
  for (int i = 0; i < kernel.cuda_phase_count; ++i) {
    const CUresult r =
        launch_phase(*kernel.driver, kernel.cuda_phases[static_cast<size_t>(i)], a.blocks[i], &a, stream);
    if (r != CUDA_SUCCESS) [[unlikely]] {
      kernel.device->report_error(r, kernel.id);
      return {loses_context(r) ? Refusal::kDeviceLost
              : i == 0         ? Refusal::kNothingRan
                               : Refusal::kPartlyRan,
              r};
    }
  }
  return {};
}

Result<std::shared_ptr<const CudaKernel>> load_cuda_kernel(CudaKernelSpec spec,
                                                           std::shared_ptr<const CudaModule> module) {
  static_assert(sizeof(long) == sizeof(long long), "NicheKernelArgs::n is copied into NicheCudaArgs::n");
  static_assert(kMaxArgs == 12 && kMaxAxes == 12, "NicheCudaArgs holds 12 of each");
  if (spec.definition == nullptr) return invalid("kernel " + spec.name + ": no definition");
  const size_t phases = spec.plan.phases.size();
  if (phases == 0 || phases > CudaLaunchPlan::kPhasesMax)
    return invalid("kernel " + spec.name + ": " + std::to_string(phases) + " phases, 1 to " +
                   std::to_string(CudaLaunchPlan::kPhasesMax) + " are possible");
  if (spec.guard.var_count != static_cast<int>(spec.definition->var_axes().size()))
    return invalid("kernel " + spec.name + ": the guard has " + std::to_string(spec.guard.var_count) +
                   " axes, the definition " + std::to_string(spec.definition->var_axes().size()));
  if (spec.plan.workspace_bytes < 0 || spec.plan.workspace_bytes > int64_t{64} * UINT32_MAX)
    return invalid("kernel " + spec.name + ": workspace of " + std::to_string(spec.plan.workspace_bytes) +
                   " bytes");
  auto k = std::make_shared<CudaKernel>();
  k->name = std::move(spec.name);
  spec.name = k->name;
  for (const CudaPhase& p : spec.plan.phases) {
    const auto i = static_cast<size_t>(k->cuda_phase_count);
    Result<BoundCudaPhase> b = bind_phase(p, spec, *module, &k->functions[i]);
    if (!b) return b.status();
    k->cuda_phases[i] = *b;
    ++k->cuda_phase_count;
  }
  k->launch = &launch_frame;
  k->kind = KernelKind::kCuda;
  k->workspace_units = static_cast<uint32_t>((spec.plan.workspace_bytes + 63) / 64);
  k->plan.workspace_bytes = spec.plan.workspace_bytes;
  k->id = next_kernel_id();
  k->definition = std::move(spec.definition);
  k->arg_bytes = static_cast<uint32_t>(k->definition->schema().args.size() * sizeof(void*));
  k->axis_bytes = static_cast<uint32_t>(k->definition->schema().axes.size() * sizeof(long));
  k->device = &module->device();
  k->driver = &module->device().driver();
  k->guard = spec.guard;
  k->cuda_plan = std::move(spec.plan);
  k->properties = spec.properties;
  k->provenance = std::move(spec.provenance);
  k->cuda_module = module;
  k->module = std::const_pointer_cast<CudaModule>(std::move(module));
  NICHE_RETURN_IF_ERROR(make_resident(*k));
  return std::shared_ptr<const CudaKernel>(std::move(k));
}

}  // namespace niche::dispatch
