#include "runtime/kernel_loader.h"

#include "dispatch/devices/cpu/cpu_kernel.h"
#include "kernels_cache/artefact.h"
#include "runtime/device_plane.h"
#include "runtime/handle_state.h"

namespace niche::core {

using dispatch::Result;
using dispatch::Status;

Result<std::shared_ptr<const ResidentKernel>> KernelLoader::load(const RuntimeCore::Known& known,
                                                                 const kernels_cache::KernelRecord& record,
                                                                 bool proven, int device) {
  const std::string where = "kernel '" + record.name + "'";
  if (record.definition != known.definition->name())
    return dispatch::invalid(where + " is of " + record.definition + ", not of " + known.definition->name());
  const auto wanted = device == 0 ? dispatch::KernelKind::kCpu : dispatch::KernelKind::kCuda;
  if (record.kind != wanted || (device != 0 && core_.config().devices == nullptr))
    return dispatch::unsupported(where + ": this process has no device for its kind");
  const auto bytes = static_cast<int64_t>(record.artefact.size());
  if (resident_bytes_ + bytes > core_.config().resident_bytes_max)
    return dispatch::busy(where + ": " + std::to_string(bytes) +
                          " bytes of code would pass resident_bytes_max; " + std::to_string(resident_bytes_) +
                          " are resident");
  if (record.plan.workspace_bytes > core_.config().workspace_bytes_max)
    return dispatch::busy(where + " wants " + std::to_string(record.plan.workspace_bytes) +
                          " bytes of workspace, above workspace_bytes_max");
  if (device != 0) {
    auto kernel = core_.config().devices->load(device - 1, known.definition, record);
    if (!kernel.ok()) return kernel.status();
    resident_bytes_ += bytes;
    return resident(known, record, *kernel, proven);
  }
  dispatch::CpuKernelSpec spec;
  if (!record.plan.pack_symbol.empty()) {
    int& next = next_pack_slot_[known.id];
    if (next == Bindings::kPackSlots)
      return dispatch::busy(where + ": " + std::to_string(next) + " kernels of " + record.definition +
                            " with packed constants were loaded already");
    spec.pack_slot = next++;
  }
  auto artefact = kernels_cache::open_artefact(record);
  if (!artefact.ok()) return artefact.status();
  auto module = dispatch::CpuModule::load_fd(artefact->fd(), record.name);
  if (!module.ok()) return module.status();
  resident_bytes_ += bytes;  // stays, whatever happens to the kernel

  spec.name = record.name;
  spec.definition = known.definition;
  spec.guard = record.guard;
  spec.plan = record.plan;
  spec.properties = record.properties;
  spec.provenance = record.provenance;
  auto kernel = dispatch::load_cpu_kernel(std::move(spec), *module);
  if (!kernel.ok()) return kernel.status();
  NICHE_RETURN_IF_ERROR(core_.dispatcher().reserve_workspace(record.plan.workspace_bytes));
  for (const auto& handle : core_.handles(known.id)) NICHE_RETURN_IF_ERROR(handle->bindings().pack(*kernel));
  return resident(known, record, *kernel, proven);
}

std::shared_ptr<const ResidentKernel> KernelLoader::resident(const RuntimeCore::Known& known,
                                                             const kernels_cache::KernelRecord& record,
                                                             std::shared_ptr<const dispatch::Kernel> kernel,
                                                             bool proven) {
  auto resident = std::make_shared<ResidentKernel>();
  resident->ref = kernels_cache::kernel_ref(record);
  resident->kernel = std::move(kernel);
  resident->definition = known.id;
  resident->fallback_name = record.fallback_name;
  resident->fallback_ns = record.fallback_ns;
  resident->kernel_ns = record.kernel_ns;
  if (auto verdict = evolve::Verdict::from_json(record.verdict_json); verdict.ok())
    resident->timing = verdict->timing;
  resident->served_calls = record.served_calls;
  resident->proven = proven;
  resident->verified_unix_ns = record.created_unix_ns;
  resident->code_bytes = static_cast<int64_t>(record.artefact.size());
  return resident;
}

}  // namespace niche::core
