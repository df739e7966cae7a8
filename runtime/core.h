// RuntimeCore: what calls need: dispatcher, operators, call sites, executor, shadow arena. Shared by a
// Runtime and by every handle of it, so that handles outlive the Runtime; everything that has a thread or
// touches the disk is in Control.
//
// Thread-safety: safe. Cost: lookups take a lock; nothing here is on a call's path but plain members.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "dispatch/base/clock.h"
#include "dispatch/devices/cpu/cycle_clock.h"
#include "dispatch/dispatcher.h"
#include "dispatch/op_spec.h"
#include "runtime/bindings.h"
#include "runtime/config.h"
#include "runtime/device_times.h"
#include "runtime/shadow_arena.h"

namespace niche::core {

class HandleState;

class RuntimeCore : public std::enable_shared_from_this<RuntimeCore> {
 public:
  static dispatch::Result<std::shared_ptr<RuntimeCore>> make(RuntimeConfig config);
  RuntimeCore(const RuntimeCore&) = delete;
  RuntimeCore& operator=(const RuntimeCore&) = delete;

  const RuntimeConfig& config() const { return config_; }
  const dispatch::Clock& clock() const { return clock_; }
  const dispatch::CycleClock& cycle_clock() const { return cycle_clock_; }
  const dispatch::Executor& executor() const { return config_.executor; }
  // Do the ranks of a group choose this operator's kernels together?
  bool chosen_by_group(const std::string& op) const;
  const dispatch::OpRegistry& ops() const { return ops_; }
  dispatch::Dispatcher& dispatcher() const { return *dispatcher_; }
  const std::shared_ptr<dispatch::Dispatcher>& dispatcher_ptr() const { return dispatcher_; }
  ShadowArena& shadow() { return shadow_; }
  DeviceTimes& device_times() { return device_times_; }
  const std::shared_ptr<PackedBudget>& packed_budget() const { return packed_budget_; }
  void log(dispatch::LogLevel level, std::string_view part, std::string_view text) const {
    if (config_.log) config_.log->write(level, part, text);
  }

  dispatch::Result<std::shared_ptr<HandleState>> make_handle(
      std::string_view op, DLDataType dtype, const std::vector<std::pair<std::string, int64_t>>& const_axes,
      const std::vector<std::pair<std::string, double>>& attrs);

  // One Definition that some call site uses.
  struct Known {
    uint32_t id = 0;
    std::shared_ptr<const dispatch::Definition> definition;
    std::shared_ptr<const dispatch::OpSpec> op;
    int sites = 0;  // live handles
  };
  std::vector<Known> known() const;                      // in the order of their ids
  std::shared_ptr<const Known> find(uint32_t id) const;  // null: unknown
  // Live handles of a Definition (0: of all).
  std::vector<std::shared_ptr<HandleState>> handles(uint32_t definition = 0) const;

 private:
  explicit RuntimeCore(RuntimeConfig config);
  std::string near_ops(std::string_view op) const;

  RuntimeConfig config_;
  dispatch::SystemClock clock_;
  dispatch::CycleClock cycle_clock_;
  dispatch::OpRegistry ops_;
  std::shared_ptr<dispatch::Dispatcher> dispatcher_;
  std::shared_ptr<PackedBudget> packed_budget_;
  ShadowArena shadow_;
  DeviceTimes device_times_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const Known>> known_;
  std::unordered_map<uint32_t, std::vector<std::weak_ptr<HandleState>>> handles_;
};

}  // namespace niche::core
