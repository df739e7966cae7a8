#include "runtime/runtime.h"

#include "runtime/control.h"
#include "runtime/core.h"
#include "runtime/handle_state.h"

namespace niche {

const dispatch::Definition& OpHandle::definition() const { return *state_->definition(); }
uint32_t OpHandle::id() const { return state_->site().definition(); }

Status OpHandle::call(std::span<const DLTensor> args, void* stream) const {
  return state_->call(args, stream);
}

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
  if (control_->forked())
    (void)control_.release();  // its threads, locks and children are the parent's
  else
    control_.reset();
}

Result<OpHandle> Runtime::op(std::string_view op, DLDataType dtype, const Axes& const_axes,
                             const Attrs& attrs) {
  auto state = core_->make_handle(op, dtype, const_axes, attrs);
  if (!state.ok()) return state.status();
  if (!control_->forked()) control_->on_handle(**state);
  return OpHandle(*std::move(state));
}

namespace {

// A child of fork() has neither the threads that hold the control plane's locks nor its state.
Status forked_child() {
  return dispatch::unsupported("this process is a forked child: it serves library forms alone");
}

}  // namespace

Result<Explanation> Runtime::explain(const OpHandle& handle, const Axes& axes) const {
  if (control_->forked()) return forked_child();
  return control_->explain(*handle.state(), axes);
}

Status Runtime::force(std::string_view kernel) {
  return control_->forked() ? forked_child() : control_->force(kernel);
}
void Runtime::pause_evolution(bool paused) { control_->pause_evolution(paused); }
std::string Runtime::status() const { return control_->forked() ? "{\"forked\": true}" : control_->status(); }
std::string Runtime::metrics() const { return control_->forked() ? "" : control_->metrics(); }
Health Runtime::health() const { return control_->forked() ? Health{} : control_->health(); }
int Runtime::http_port() const { return control_->http_port(); }
int Runtime::sessions_running() const { return control_->sessions_running(); }

Result<std::shared_ptr<Group>> Runtime::join_group() {
  return control_->forked() ? Result<std::shared_ptr<Group>>(forked_child()) : control_->join_group();
}

Status Runtime::offer_to_group(std::shared_ptr<const dispatch::Kernel> kernel) {
  return control_->forked() ? forked_child() : control_->offer_to_group(std::move(kernel));
}

Result<std::shared_ptr<CapturedGraph>> Runtime::graph(GraphOptions options) const {
  if (control_->forked()) return forked_child();
  return core_->dispatcher().graphs().make(std::move(options));
}
std::vector<StaleGraph> Runtime::stale_graphs(const std::string& owner) const {
  if (control_->forked()) return {};
  return core_->dispatcher().graphs().stale(core_->dispatcher().publisher(), owner);
}

dispatch::Dispatcher& Runtime::dispatcher() const { return core_->dispatcher(); }

}  // namespace niche
