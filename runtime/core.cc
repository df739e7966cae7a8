#include "runtime/core.h"

#include <algorithm>

#include "dispatch/devices/cpu/cpu_kernel.h"
#include "runtime/handle_state.h"

namespace niche::core {

using dispatch::Result;
using dispatch::Status;

RuntimeCore::RuntimeCore(RuntimeConfig config)
    : config_(std::move(config)),
      cycle_clock_(dispatch::CycleClock::calibrate(clock_)),
      packed_budget_(std::make_shared<PackedBudget>(config_.packed_bytes_max)),
      shadow_(config_.disable ? 0 : config_.shadow_arena_bytes, config_.shadow_bytes_per_second),
      device_times_(config_.devices) {
  if (config_.executor.parallel_for == nullptr) config_.executor = dispatch::serial_executor();
}

Result<std::shared_ptr<RuntimeCore>> RuntimeCore::make(RuntimeConfig config) {
  NICHE_RETURN_IF_ERROR(apply_disable_variable(&config));
  NICHE_RETURN_IF_ERROR(config.validate());
  std::shared_ptr<RuntimeCore> core(new RuntimeCore(std::move(config)));
  for (const auto& op : core->config_.ops) NICHE_RETURN_IF_ERROR(core->ops_.add(op));
  for (const std::string& path : core->config_.op_libraries) {
    if (!core->config_.op_loader)
      return dispatch::unsupported("operator library '" + path + "': no op_loader is configured");
    NICHE_RETURN_IF_ERROR(core->config_.op_loader(path, core->ops_));
  }

  dispatch::DispatcherOptions options;
  options.clock = &core->clock_;
  options.sampling.time_every = static_cast<uint32_t>(core->config_.time_one_in);
  options.sampling.shadow_every = static_cast<uint32_t>(core->config_.shadow_one_in);
  options.sampling.challenger_shadow_every = 8;  // three comparisons end it; the arena bounds what it costs
  options.sampling.request_every = 1;  // 40 ns a request; a p99 of one in sixteen would need minutes
  auto dispatcher = dispatch::Dispatcher::make(options);
  if (!dispatcher.ok()) return dispatcher.status();
  core->dispatcher_ = *std::move(dispatcher);
  if (core->config_.disable)
    NICHE_RETURN_IF_ERROR(core->dispatcher_->publisher().set_mode(dispatch::SnapshotMode::kDisabled));
  return core;
}

bool RuntimeCore::chosen_by_group(const std::string& op) const {
  const auto& ops = config_.group_ops;
  return config_.group_ranks != 0 && (ops.empty() || std::find(ops.begin(), ops.end(), op) != ops.end());
}

std::string RuntimeCore::near_ops(std::string_view op) const {
  std::string names;
  for (const auto& known : ops_.all()) {
    const std::string& name = known->schema()->op;
    const bool near = name.find(op) != std::string::npos || op.find(name) != std::string_view::npos ||
                      (!op.empty() && name.front() == op.front());
    if (near || ops_.all().size() <= 4) names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

Result<std::shared_ptr<HandleState>> RuntimeCore::make_handle(
    std::string_view op, DLDataType dtype, const std::vector<std::pair<std::string, int64_t>>& const_axes,
    const std::vector<std::pair<std::string, double>>& attrs) {
  std::shared_ptr<const dispatch::OpSpec> spec = ops_.find_shared(op);
  if (!spec) {
    const std::string near = near_ops(op);
    return dispatch::not_found("no operator '" + std::string(op) + "' is registered" +
                               (near.empty() ? "" : "; near: " + near));
  }
  auto definition = dispatch::Definition::make(spec->schema(), dtype, const_axes, attrs);
  if (!definition.ok()) return definition.status();
  auto plan = CallPlan::make(**definition, *spec);
  if (!plan.ok()) return plan.status();

  std::lock_guard<std::mutex> lock(mutex_);
  auto id = dispatcher_->define(spec, *definition);
  if (!id.ok()) return id.status();
  const auto same = [&](const auto& k) { return k->id == *id; };
  auto at = std::find_if(known_.begin(), known_.end(), same);
  if (at == known_.end()) {
    known_.push_back(std::make_shared<Known>(Known{*id, dispatcher_->definition(*id), spec}));
    at = known_.end() - 1;
  }
  dispatch::Dispatcher::SiteOptions site;
  site.threads = static_cast<uint32_t>(config_.executor.threads);
  std::vector<dispatch::CallSite> sites;
  const dispatch::CallSite host = dispatcher_->call_site(*id, site);
  for (int device = 1; device <= config_.cuda_devices; ++device) {
    site.device = static_cast<uint32_t>(device);
    sites.push_back(dispatcher_->call_site(*id, site));
  }
  auto handle = std::make_shared<HandleState>(shared_from_this(), spec, (*at)->definition, *std::move(plan),
                                              host, std::move(sites));
  auto& list = handles_[*id];
  std::erase_if(list, [](const auto& h) { return h.expired(); });
  list.push_back(handle);
  return handle;
}

std::vector<RuntimeCore::Known> RuntimeCore::known() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Known> out;
  for (const auto& k : known_) {
    out.push_back(*k);
    const auto at = handles_.find(k->id);
    if (at == handles_.end()) continue;
    for (const auto& h : at->second) out.back().sites += h.expired() ? 0 : 1;
  }
  return out;
}

std::shared_ptr<const RuntimeCore::Known> RuntimeCore::find(uint32_t id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& k : known_)
    if (k->id == id) return k;
  return nullptr;
}

std::vector<std::shared_ptr<HandleState>> RuntimeCore::handles(uint32_t definition) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<HandleState>> out;
  for (const auto& [id, list] : handles_) {
    if (definition != 0 && id != definition) continue;
    for (const auto& weak : list)
      if (auto h = weak.lock()) out.push_back(std::move(h));
  }
  return out;
}

}  // namespace niche::core
