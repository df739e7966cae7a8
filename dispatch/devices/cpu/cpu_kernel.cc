#include "dispatch/devices/cpu/cpu_kernel.h"

#include <bit>
#include <utility>

namespace niche::dispatch {
namespace {

struct PhaseCall {
  NicheKernelFn entry;
  const NicheKernelArgs* args;
};
void run_tasks(void* ctx, int64_t begin, int64_t end) {
  const auto* c = static_cast<const PhaseCall*>(ctx);
  c->entry(c->args, static_cast<long>(begin), static_cast<long>(end));
}

void launch_cpu(const Kernel& kernel, CallFrame& frame, const Executor& executor) {
  NicheKernelArgs args = *frame.args;
  args.ws = frame.workspace;
  for (int i = 0; i < kernel.phase_count; ++i) {
    const BoundPhase& phase = kernel.phases[i];
    const int64_t tasks = phase.tasks(args.n);
    if (executor.threads <= 1 || tasks < phase.parallel_min_tasks) {
      phase.entry(&args, 0, static_cast<long>(tasks));
    } else {
      PhaseCall call{phase.entry, &args};
      executor.parallel_for(executor.self, tasks, &run_tasks, &call);
    }
  }
}

Result<BoundPhase> bind_phase(const Phase& p, const CpuKernelSpec& spec, const CpuModule& module) {
  Result<void*> entry = module.symbol(p.symbol);
  if (!entry) return entry.status();
  BoundPhase b;
  b.entry = reinterpret_cast<NicheKernelFn>(*entry);
  b.parallel_min_tasks = p.parallel_min_tasks;
  if (p.factors.size() > BoundPhase::kFactorsMax)
    return invalid("kernel " + spec.name + ": phase " + p.symbol + " has " +
                   std::to_string(p.factors.size()) + " factors, at most " +
                   std::to_string(BoundPhase::kFactorsMax) + " fit");
  for (const TaskFactor& f : p.factors) {
    if (f.axis < 0 || static_cast<size_t>(f.axis) >= spec.definition->schema().axes.size() || f.divisor < 1)
      return invalid("kernel " + spec.name + ": phase " + p.symbol + ": factor axis " +
                     std::to_string(f.axis) + " divisor " + std::to_string(f.divisor));
    const auto d = static_cast<uint64_t>(f.divisor);
    b.factors[b.factor_count++] = {f.axis, std::has_single_bit(d) ? std::countr_zero(d) : -1, f.divisor};
  }
  return b;
}

}  // namespace

Result<std::shared_ptr<const Kernel>> load_cpu_kernel(CpuKernelSpec spec,
                                                      std::shared_ptr<const CpuModule> module) {
  if (spec.definition == nullptr) return invalid("kernel " + spec.name + ": no definition");
  const size_t phases = spec.plan.phases.size();
  if (phases == 0 || phases > Kernel::kPhasesMax)
    return invalid("kernel " + spec.name + ": " + std::to_string(phases) + " phases, 1 to " +
                   std::to_string(Kernel::kPhasesMax) + " are possible");
  if (spec.guard.var_count != static_cast<int>(spec.definition->var_axes().size()))
    return invalid("kernel " + spec.name + ": the guard has " + std::to_string(spec.guard.var_count) +
                   " axes, the definition " + std::to_string(spec.definition->var_axes().size()));
  if (spec.plan.workspace_bytes < 0 || spec.plan.workspace_bytes > int64_t{64} * UINT32_MAX)
    return invalid("kernel " + spec.name + ": workspace of " + std::to_string(spec.plan.workspace_bytes) +
                   " bytes");
  auto k = std::make_shared<Kernel>();
  for (const Phase& p : spec.plan.phases) {
    Result<BoundPhase> b = bind_phase(p, spec, *module);
    if (!b) return b.status();
    k->phases[k->phase_count++] = *b;
  }
  if (!spec.plan.pack_symbol.empty()) {
    Result<void*> pack = module->symbol(spec.plan.pack_symbol);
    if (!pack) return pack.status();
    if (spec.pack_slot < 0) return invalid("kernel " + spec.name + ": packs constants, but has no pack_slot");
    k->pack = reinterpret_cast<NichePackFn>(*pack);
    k->pack_slot = spec.pack_slot;
  }
  k->launch = &launch_cpu;
  k->kind = KernelKind::kCpu;
  k->workspace_units = static_cast<uint32_t>((spec.plan.workspace_bytes + 63) / 64);
  k->id = next_kernel_id();
  k->name = std::move(spec.name);
  k->definition = std::move(spec.definition);
  k->guard = spec.guard;
  k->plan = std::move(spec.plan);
  k->properties = spec.properties;
  k->provenance = std::move(spec.provenance);
  k->module = std::const_pointer_cast<CpuModule>(std::move(module));
  return std::shared_ptr<const Kernel>(std::move(k));
}

Executor serial_executor() {
  Executor e;
  e.parallel_for = [](void*, int64_t tasks, void (*body)(void*, int64_t, int64_t), void* ctx) {
    body(ctx, 0, tasks);
  };
  return e;
}

}  // namespace niche::dispatch
