#include "runtime/handle_state.h"

#include <cstring>
#include <utility>

#include "runtime/core.h"
#include "runtime/live_call.h"
#include "runtime/strided.h"

namespace niche::core {

using dispatch::ArgRole;
using dispatch::Result;
using dispatch::Status;

namespace {

struct Interval {
  const char *begin, *end;
  bool meets(const Interval& o) const { return begin < o.end && o.begin < end; }
};

// May an output of this call overlap another argument? Kernels are verified on arguments that do not.
bool outputs_overlap(const CallPlan& plan, const CallArgs& args) {
  Interval at[dispatch::kMaxArgs];
  for (int a = 0; a < plan.args(); ++a) {
    const char* p = static_cast<const char*>(args.p[a]);
    at[a] = {p, p + (p != nullptr ? plan.bytes(a, args.n) : 0)};
  }
  for (int a = 0; a < plan.args(); ++a) {
    if (plan.arg(a).role == ArgRole::kIn || args.p[a] == nullptr) continue;
    for (int b = 0; b < plan.args(); ++b)
      if (b != a && at[a].meets(at[b])) return true;
  }
  return false;
}

bool host_memory(const DLTensor& t) {
  return t.device.device_type == kDLCPU || t.device.device_type == kDLCUDAHost;
}

// As CallFrame::device; -1: a device that no kernel is for.
int device_of(const DLTensor& t) {
  if (host_memory(t)) return 0;
  return t.device.device_type == kDLCUDA && t.device.device_id >= 0 ? t.device.device_id + 1 : -1;
}

}  // namespace

HandleState::HandleState(std::shared_ptr<RuntimeCore> core, std::shared_ptr<const dispatch::OpSpec> op,
                         std::shared_ptr<const dispatch::Definition> definition, CallPlan plan,
                         dispatch::CallSite site, std::vector<dispatch::CallSite> device_sites)
    : core_(std::move(core)),
      op_(std::move(op)),
      definition_(std::move(definition)),
      plan_(std::move(plan)),
      site_(std::move(site)),
      device_sites_(std::move(device_sites)),
      takes_aten_(op_->native_form() == "at::Tensor[]"),
      grouped_(core_->chosen_by_group(op_->schema()->op)),
      bindings_(core_->dispatcher_ptr(), definition_, core_->packed_budget(), plan_.constant_mask()) {}

Status HandleState::call(std::span<const DLTensor> tensors, void* stream) {
  const auto misfit = [this](const Misfit& m) { return dispatch::invalid(plan_.describe(m, *definition_)); };
  if (tensors.size() != static_cast<size_t>(plan_.args())) [[unlikely]]
    return misfit({Misfit::Kind::kCount, -1, -1, static_cast<int64_t>(tensors.size()), plan_.args()});
  CallArgs args;
  plan_.start(args.n);
  uintptr_t ored = 0;
  bool contiguous = true;
  int device = -1;  // of the first argument; all must be there
  for (int a = 0; a < plan_.args(); ++a) {
    const CallPlan::Arg& arg = plan_.arg(a);
    const DLTensor& t = tensors[static_cast<size_t>(a)];
    if (!arg.present) {
      if (t.data != nullptr) [[unlikely]]
        return misfit({Misfit::Kind::kUnexpected, a});
      args.p[a] = nullptr;
      continue;
    }
    if (!dispatch::same_dtype(t.dtype, arg.dtype)) [[unlikely]]
      return misfit({Misfit::Kind::kDtype, a});
    const int lies = device_of(t);
    if (device < 0) device = lies;
    if (lies != device || lies < 0 || lies >= devices()) [[unlikely]]
      return misfit({Misfit::Kind::kDevice, a});
    if (lies > 0 && !op_->runs_on_device()) [[unlikely]]
      return dispatch::unsupported(definition_->name() +
                                   ": its operator's library forms read host memory alone");
    if (const Misfit m = plan_.read(a, t.shape, t.ndim, args.n)) [[unlikely]]
      return misfit(m);
    args.p[a] = static_cast<char*>(t.data) + t.byte_offset;
    ored |= reinterpret_cast<uintptr_t>(args.p[a]);
    if (t.strides != nullptr) contiguous &= is_contiguous(t);
  }
  if (plan_.has_derived()) {
    const size_t axes = definition_->schema().axes.size();
    NICHE_RETURN_IF_ERROR(op_->derive_axes(*definition_, std::span<int64_t>(args.n, axes)));
    for (int a = 0; a < plan_.args(); ++a) {
      if (!plan_.arg(a).present) continue;
      if (const Misfit m = plan_.check_derived(a, tensors[static_cast<size_t>(a)].shape, args.n)) [[unlikely]]
        return misfit(m);
    }
  }
  for (int a = 0; a < plan_.args(); ++a)
    if (args.p[a] == nullptr && plan_.arg(a).present && plan_.elements(a, args.n) != 0) [[unlikely]]
      return misfit({Misfit::Kind::kMissing, a});
  if (!contiguous) [[unlikely]] {
    if (device > 0)
      return dispatch::unsupported(definition_->name() + ": a tensor on a device is not contiguous");
    return call_strided(tensors);
  }
  plan_.var_axes(args.n, args.var);
  dispatch::LayoutClass layout = dispatch::LayoutClass::plain_at(ored);
  if (outputs_overlap(plan_, args)) [[unlikely]]
    layout = layout.aliases_output(0);
  LiveCall call(*this, args, layout, {device, stream});
  NICHE_RETURN_IF_ERROR(call.run(nullptr));
  if (call.shadowed()) [[unlikely]]
    call.finish_shadow();
  return {};
}

Status HandleState::call_strided(std::span<const DLTensor> tensors) {
  StridedCopies copies;
  NICHE_RETURN_IF_ERROR(copies.gather(plan_, tensors));
  CallArgs args;
  plan_.start(args.n);
  for (int a = 0; a < plan_.args(); ++a) {
    const DLTensor& t = tensors[static_cast<size_t>(a)];
    args.p[a] = copies.data(a);
    if (plan_.arg(a).present) (void)plan_.read(a, t.shape, t.ndim, args.n);  // checked before
  }
  if (plan_.has_derived())
    NICHE_RETURN_IF_ERROR(
        op_->derive_axes(*definition_, std::span<int64_t>(args.n, definition_->schema().axes.size())));
  LiveCall call(*this, args, dispatch::FallbackReason::kLayout);
  NICHE_RETURN_IF_ERROR(call.run(nullptr));
  copies.scatter(plan_, tensors);
  return {};
}

Result<int> HandleState::constant_arg(std::string_view name) const {
  const int a = definition_->schema().arg_index(name);
  if (a < 0) return dispatch::invalid(definition_->name() + " has no argument '" + std::string(name) + "'");
  if (!plan_.arg(a).present)
    return dispatch::invalid("argument '" + std::string(name) + "' is absent in " + definition_->name());
  if (!plan_.arg(a).constant)
    return dispatch::invalid("argument '" + std::string(name) + "' of " + definition_->name() +
                             " is not one that may be bound: its operator does not declare it constant");
  return a;
}

Status HandleState::bind(std::string_view name, const DLTensor& t, std::shared_ptr<const void> owner,
                         std::function<uint64_t()> version, bool must_exist) {
  auto arg = constant_arg(name);
  if (!arg.ok()) return arg.status();
  if (must_exist && !bindings_.bound(*arg))
    return dispatch::not_found("argument '" + std::string(name) + "' of " + definition_->name() +
                               " was never bound");
  const auto misfit = [&](const Misfit& m) { return dispatch::invalid(plan_.describe(m, *definition_)); };
  if (!dispatch::same_dtype(t.dtype, plan_.arg(*arg).dtype)) return misfit({Misfit::Kind::kDtype, *arg});
  if (!host_memory(t)) return misfit({Misfit::Kind::kDevice, *arg});
  int64_t axes[dispatch::kMaxAxes];
  plan_.start(axes);
  if (const Misfit m = plan_.read(*arg, t.shape, t.ndim, axes)) return misfit(m);
  if (!is_contiguous(t))
    return dispatch::invalid("argument '" + std::string(name) + "' of " + definition_->name() +
                             " is not contiguous; bind a contiguous copy");
  if (t.data == nullptr) return misfit({Misfit::Kind::kMissing, *arg});
  BoundTensor bound;
  bound.data = static_cast<const char*>(t.data) + t.byte_offset;
  bound.bytes = plan_.bytes(*arg, axes);
  bound.owner = std::move(owner);
  bound.version = std::move(version);
  return bindings_.bind(*arg, std::move(bound));
}

Status HandleState::unbind(std::string_view name) {
  auto arg = constant_arg(name);
  return arg.ok() ? bindings_.unbind(*arg) : arg.status();
}

}  // namespace niche::core
