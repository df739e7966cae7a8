#include "runtime/runtime.h"

#include "runtime/control.h"
#include "runtime/core.h"
#include "runtime/handle_state.h"

namespace niche {

const dispatch::Definition& OpHandle::definition() const { return *state_->definition(); }
uint32_t OpHandle::id() const { return state_->site().definition(); }

Status OpHandle::call(std::span<const DLTensor> args) const { return state_->call(args); }

Status OpHandle::bind_constant(std::string_view arg, const DLTensor& tensor,
                               std::shared_ptr<const void> owner, std::function<uint64_t()> version) const {
  return state_->bind(arg, tensor, std::move(owner), std::move(version), false);
}

Status OpHandle::rebind(std::string_view arg, const DLTensor& tensor, std::shared_ptr<const void> owner,
                        std::function<uint64_t()> version) const {
  return state_->bind(arg, tensor, std::move(owner), std::move(version), true);
}

Status OpHandle::unbind(std::string_view arg) const { return state_->unbind(arg); }

Runtime::Runtime(std::shared_ptr<core::RuntimeCore> core, std::unique_ptr<core::Control> control)
    : core_(std::move(core)), control_(std::move(control)) {}

Result<std::unique_ptr<Runtime>> Runtime::create(RuntimeConfig config) {
  auto core = core::RuntimeCore::make(std::move(config));
  if (!core.ok()) return core.status();
  auto control = core::Control::start(*core);
  if (!control.ok()) return control.status();
  return std::unique_ptr<Runtime>(new Runtime(*std::move(core), *std::move(control)));
}

Runtime::~Runtime() {
  control_.reset();
  core_->dispatcher().shut_down();
}

Result<OpHandle> Runtime::op(std::string_view op, DLDataType dtype, const Axes& const_axes,
                             const Attrs& attrs) {
  auto state = core_->make_handle(op, dtype, const_axes, attrs);
  if (!state.ok()) return state.status();
  return OpHandle(*std::move(state));
}

dispatch::Dispatcher& Runtime::dispatcher() const { return core_->dispatcher(); }

}  // namespace niche
