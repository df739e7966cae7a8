// HandleState: what stands behind one OpHandle: the resolved Definition, how to read a call's tensors, the
// call site in the dispatcher, and the constants bound there.
//
// Thread-safety: immutable but for Bindings (bindings.h). Holds the core, so that a handle may outlive its
// Runtime.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "dispatch/call_site.h"
#include "dispatch/definition.h"
#include "dispatch/op_spec.h"
#include "runtime/bindings.h"
#include "runtime/call_plan.h"

namespace niche::core {

class RuntimeCore;

class HandleState : public std::enable_shared_from_this<HandleState> {
 public:
  HandleState(std::shared_ptr<RuntimeCore> core, std::shared_ptr<const dispatch::OpSpec> op,
              std::shared_ptr<const dispatch::Definition> definition, CallPlan plan, dispatch::CallSite site,
              std::vector<dispatch::CallSite> device_sites);

  RuntimeCore& core() const { return *core_; }
  const dispatch::OpSpec& op() const { return *op_; }
  const std::shared_ptr<const dispatch::Definition>& definition() const { return definition_; }
  const CallPlan& plan() const { return plan_; }
  // By device: 0: the host; n: CUDA device n - 1, up to RuntimeConfig::cuda_devices.
  const dispatch::CallSite& site(int device = 0) const {
    return device == 0 ? site_ : device_sites_[static_cast<size_t>(device - 1)];
  }
  int devices() const { return static_cast<int>(device_sites_.size()) + 1; }
  bool grouped() const { return grouped_; }        // RuntimeConfig::group_ops names its operator
  bool takes_aten() const { return takes_aten_; }  // the library forms run on at::Tensors
  Bindings& bindings() { return bindings_; }
  const Bindings& bindings() const { return bindings_; }

  // OpHandle::call. See runtime.h.
  dispatch::Status call(std::span<const DLTensor> args, void* stream);
  // OpHandle::bind_constant and rebind (`must_exist`).
  dispatch::Status bind(std::string_view arg, const DLTensor& tensor, std::shared_ptr<const void> owner,
                        std::function<uint64_t()> version, bool must_exist);
  dispatch::Status unbind(std::string_view arg);

 private:
  dispatch::Result<int> constant_arg(std::string_view arg) const;
  dispatch::Status call_strided(std::span<const DLTensor> args);

  const std::shared_ptr<RuntimeCore> core_;
  const std::shared_ptr<const dispatch::OpSpec> op_;
  const std::shared_ptr<const dispatch::Definition> definition_;
  const CallPlan plan_;
  const dispatch::CallSite site_;
  const std::vector<dispatch::CallSite> device_sites_;
  const bool takes_aten_, grouped_;
  Bindings bindings_;
};

}  // namespace niche::core
