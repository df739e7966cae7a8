#include "runtime/torch/torch.h"

#include <ATen/core/grad_mode.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/MaybeOwned.h>

#include <cstring>
#include <optional>

#include "runtime/live_call.h"
#include "runtime/ops/builtin.h"
#include "runtime/ops/user_ops.h"
#include "runtime/torch/executor.h"
#include "runtime/torch/guards.h"
#include "runtime/torch/worker.h"

namespace niche {
namespace {

using core::CallArgs;
using core::CallPlan;
using core::HandleState;
using core::LiveCall;
using core::Misfit;
using dispatch::ArgRole;
using dispatch::FallbackReason;

at::ScalarType scalar_type(DLDataType t) {
  switch (t.code << 8 | t.bits) {
    case kDLFloat << 8 | 32:
      return at::kFloat;
    case kDLBfloat << 8 | 16:
      return at::kBFloat16;
    case kDLInt << 8 | 64:
      return at::kLong;
    case kDLInt << 8 | 32:
      return at::kInt;
    case kDLFloat << 8 | 64:
      return at::kDouble;
    case kDLFloat << 8 | 16:
      return at::kHalf;
    case kDLUInt << 8 | 8:
      return at::kByte;
    default:
      return at::ScalarType::Undefined;
  }
}

// One tensor a schema argument. Inputs are borrowed: no reference count is touched, which two threads that
// share a weight would fight over.
class NativeTensors {
 public:
  explicit NativeTensors(int count) : count_(count) {
    for (int i = 0; i < count_; ++i) new (&slots_[i]) at::Tensor();
  }
  ~NativeTensors() {
    for (int i = 0; i < count_; ++i) {
      if (borrowed_ >> i & 1)
        (*this)[i].unsafeReleaseTensorImpl();
      else
        (*this)[i].~Tensor();
    }
  }
  NativeTensors(const NativeTensors&) = delete;
  NativeTensors& operator=(const NativeTensors&) = delete;
  void borrow(int i, const at::Tensor& t) {
    new (&slots_[i]) at::Tensor(c10::MaybeOwnedTraits<at::Tensor>::createBorrow(t));
    borrowed_ |= 1u << i;
  }
  void own(int i, at::Tensor t) {
    if (borrowed_ >> i & 1) (*this)[i].unsafeReleaseTensorImpl();
    borrowed_ &= ~(1u << i);
    (*this)[i] = std::move(t);
  }
  at::Tensor& operator[](int i) { return reinterpret_cast<at::Tensor&>(slots_[i]); }
  at::Tensor* data() { return &(*this)[0]; }

 private:
  struct alignas(at::Tensor) Slot {
    char bytes[sizeof(at::Tensor)];
  };
  const int count_;
  uint32_t borrowed_ = 0;
  Slot slots_[dispatch::kMaxArgs];
};

[[noreturn]] void wrong_count(const HandleState& h, size_t inputs, size_t outputs) {
  size_t want_in = 0, want_out = 0;
  for (int a = 0; a < h.plan().args(); ++a)
    if (h.plan().arg(a).present) ++(h.plan().arg(a).role == ArgRole::kOut ? want_out : want_in);
  TORCH_CHECK(false, h.definition()->name(), " takes ", want_in, " inputs and gives ", want_out,
              " outputs; called with ", inputs, " and ", outputs);
}

// `device`: CallFrame's.
at::Tensor allocate(const CallPlan::Arg& arg, const int64_t* axes, int device) {
  int64_t sizes[dispatch::kMaxAxes];
  for (int d = 0; d < arg.rank; ++d) sizes[d] = axes[arg.axis[static_cast<size_t>(d)]];
  const at::IntArrayRef shape(sizes, arg.rank);
  if (device != 0) [[unlikely]]
    return at::empty(shape, at::TensorOptions(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device - 1)))
                                .dtype(scalar_type(arg.dtype)));
  return at::Tensor(at::detail::empty_cpu(shape, scalar_type(arg.dtype)));
}

// A niche kernel wrote into a tensor that the caller had: what autograd and views rely on.
void bump(const at::Tensor& t) {
  if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
}

bool outputs_overlap(const CallPlan& plan, const CallArgs& args) {
  for (int a = 0; a < plan.args(); ++a) {
    if (plan.arg(a).role == ArgRole::kIn || args.p[a] == nullptr) continue;
    const char* begin = static_cast<const char*>(args.p[a]);
    const char* end = begin + plan.bytes(a, args.n);
    for (int b = 0; b < plan.args(); ++b) {
      const char* other = static_cast<const char*>(args.p[b]);
      if (b != a && other != nullptr && other < end && begin < other + plan.bytes(b, args.n)) return true;
    }
  }
  return false;
}

// One call: `in(a)` and `out(a)` give the tensor of a schema argument; outputs may be undefined.
class TorchCall {
 public:
  explicit TorchCall(HandleState& h) : h_(h), plan_(h.plan()), native_(h.plan().args()) {}

  void input(int a, const at::Tensor& t) {
    native_.borrow(a, t);
    guards_.see(t);
  }
  void output(int a, const at::Tensor& t) {
    native_[a] = t;  // a reference: library forms assign to it
    given_ |= 1u << a;
    guards_.see(t);
  }
  at::Tensor take_output(int a) { return std::move(native_[a]); }

  void run() {
    FallbackReason reason = guards_.verdict();
    // Holds the tensors' device current, as a launch wants it.
    std::optional<c10::DeviceGuard> on_device;
    if (reason == FallbackReason::kForeignDevice && find_device()) {
      on_device.emplace(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(place_.device - 1)));
      reason = FallbackReason::kNone;
    }
    if (reason == FallbackReason::kNone) [[likely]]
      reason = read();
    if (reason != FallbackReason::kNone) [[unlikely]] {
      run_library(reason);
      return;
    }
    LiveCall call(h_, args_, layout_, place_);
    if (call.library() && !plain_native()) allocate_outputs();
    if (call.library()) {
      check(call.run(plain_native() ? native_.data() : nullptr));
      if (call.shadowed() && point_outputs()) [[unlikely]]
        call.finish_shadow();
      return;
    }
    allocate_outputs();
    // The tensors go along for the library form that answers where a device refuses the kernel.
    check(call.run(plain_native() ? native_.data() : nullptr));
    for (uint32_t m = given_ | plan_.in_out_mask(); m != 0; m &= m - 1) bump(native_[__builtin_ctz(m)]);
    if (call.shadowed()) [[unlikely]]
      call.finish_shadow();
  }

 private:
  bool plain_native() const { return h_.takes_aten(); }

  // All tensors on one CUDA device that this Runtime serves: then place_ is that device and ATen's current stream
  // there, where the library's forms would run too.
  bool find_device() {
    if (h_.devices() < 2 || !h_.op().runs_on_device() || !guards_.plain_on_cuda()) return false;
    int device = -1;
    for (int a = 0; a < plan_.args(); ++a) {
      const at::Tensor& t = native_[a];
      if (!plan_.arg(a).present || !t.defined()) continue;
      const int lies = t.device().index() + 1;
      if (device >= 0 && lies != device) return false;
      device = lies;
    }
    if (device < 1 || device >= h_.devices()) return false;
    const at::Device on(at::kCUDA, static_cast<at::DeviceIndex>(device - 1));
    place_ = {device, c10::impl::VirtualGuardImpl(at::kCUDA).getStream(on).native_handle()};
    return true;
  }
  static void check(const Status& s) { TORCH_CHECK(s.ok(), s.message()); }

  // The call as it came, to a library form that knows at::Tensors; to one that does not, on contiguous
  // copies.
  void run_library(FallbackReason reason) {
    std::memset(&args_, 0, sizeof args_);
    if (plain_native()) {
      LiveCall call(h_, args_, reason);
      check(call.run(native_.data()));
      return;
    }
    TORCH_CHECK(reason == FallbackReason::kLayout || reason == FallbackReason::kRequiresGrad,
                h_.definition()->name(),
                ": its operator runs on plain host memory alone; got a tensor that is ",
                dispatch::fallback_reason_name(reason));
    const at::NoGradGuard no_grad;
    at::Tensor callers[dispatch::kMaxArgs];
    for (int a = 0; a < plan_.args(); ++a) {
      if (!native_[a].defined()) continue;
      callers[a] = native_[a];
      native_.own(a, callers[a].detach().contiguous());
    }
    const FallbackReason still = read();
    TORCH_CHECK(still == FallbackReason::kNone, h_.definition()->name(),
                ": an argument's element type is not the Definition's");
    allocate_outputs();
    LiveCall call(h_, args_, reason);
    check(call.run(nullptr));
    for (uint32_t m = given_ | plan_.in_out_mask(); m != 0; m &= m - 1) {
      const int a = __builtin_ctz(m);
      callers[a].copy_(native_[a]);
      native_.own(a, callers[a]);
    }
  }

  // Axes, pointers and layout; another reason than kNone where a kernel cannot have the call.
  FallbackReason read() {
    plan_.start(args_.n);
    uintptr_t ored = 0;
    for (int a = 0; a < plan_.args(); ++a) {
      const CallPlan::Arg& arg = plan_.arg(a);
      args_.p[a] = nullptr;
      const at::Tensor& t = native_[a];
      if (!arg.present || !t.defined()) continue;
      if (t.scalar_type() != scalar_type(arg.dtype)) [[unlikely]]
        return FallbackReason::kDtype;
      if (!t.is_contiguous()) [[unlikely]]
        return FallbackReason::kLayout;
      const at::IntArrayRef sizes = t.sizes();
      if (const Misfit m = plan_.read(a, sizes.data(), static_cast<int64_t>(sizes.size()), args_.n))
          [[unlikely]]
        misfit(m);
      args_.p[a] = arg.role == ArgRole::kIn ? const_cast<void*>(t.const_data_ptr()) : t.mutable_data_ptr();
      ored |= reinterpret_cast<uintptr_t>(args_.p[a]);
    }
    if (plan_.has_derived()) {
      const auto& axes = h_.definition()->schema().axes;
      const Status s = h_.op().derive_axes(*h_.definition(), std::span<int64_t>(args_.n, axes.size()));
      TORCH_CHECK(s.ok(), s.message());
      for (uint32_t m = given_; m != 0; m &= m - 1) {
        const int a = __builtin_ctz(m);
        if (const Misfit bad = plan_.check_derived(a, native_[a].sizes().data(), args_.n)) misfit(bad);
      }
    }
    plan_.var_axes(args_.n, args_.var);
    // Outputs that are still to be allocated are 64-byte aligned (c10's allocator) and overlap nothing.
    layout_ = dispatch::LayoutClass::plain_at(ored);
    if ((given_ | plan_.in_out_mask()) != 0 && outputs_overlap(plan_, args_))
      layout_ = layout_.aliases_output(0);
    return FallbackReason::kNone;
  }

  void allocate_outputs() {
    for (int a = plan_.first_output(); a < plan_.args(); ++a) {
      if (!plan_.arg(a).present || native_[a].defined()) continue;
      native_[a] = allocate(plan_.arg(a), args_.n, place_.device);
      args_.p[a] = native_[a].mutable_data_ptr();
    }
  }

  // Where a library form left its outputs; false where kernels would not have put them so.
  bool point_outputs() {
    for (int a = plan_.first_output(); a < plan_.args(); ++a) {
      if (!plan_.arg(a).present) continue;
      const at::Tensor& t = native_[a];
      if (!t.defined() || !t.is_contiguous() || t.numel() != plan_.elements(a, args_.n) ||
          t.scalar_type() != scalar_type(plan_.arg(a).dtype))
        return false;
      args_.p[a] = const_cast<void*>(t.const_data_ptr());
    }
    return true;
  }

  [[noreturn]] void misfit(const Misfit& m) const { TORCH_CHECK(false, plan_.describe(m, *h_.definition())); }

  HandleState& h_;
  const CallPlan& plan_;
  NativeTensors native_;
  torch_detail::Guards guards_;
  uint32_t given_ = 0;  // outputs that the caller had
  dispatch::LayoutClass layout_;
  core::CallPlace place_{};
  CallArgs args_;
};

DLTensor dl_view(const at::Tensor& t, int64_t* shape, DLDataType dtype) {
  DLTensor d{};
  d.data = const_cast<void*>(t.const_data_ptr());
  d.device = {kDLCPU, 0};
  d.ndim = static_cast<int>(t.dim());
  for (int64_t i = 0; i < t.dim(); ++i) shape[i] = t.size(i);
  d.shape = shape;
  d.dtype = dtype;
  return d;
}

Status bind(const OpHandle& handle, std::string_view name, const at::Tensor& t, bool again) {
  HandleState& h = *handle.state();
  const int a = h.definition()->schema().arg_index(name);
  const std::string what = "argument '" + std::string(name) + "' of " + h.definition()->name();
  if (!t.defined()) return dispatch::invalid(what + ": the tensor is undefined");
  torch_detail::Guards guards;
  guards.see(t);
  if (!t.is_contiguous() || !t.device().is_cpu() || t.layout() != at::kStrided)
    return dispatch::invalid(what + " is not a contiguous dense host tensor");
  if (a >= 0 && h.plan().arg(a).present && t.scalar_type() != scalar_type(h.plan().arg(a).dtype))
    return dispatch::invalid(what + ": its element type is " + c10::toString(t.scalar_type()) + ", not " +
                             std::string(dispatch::dtype_name(h.plan().arg(a).dtype)));
  if (t.dim() > dispatch::kMaxAxes)
    return dispatch::invalid(what + " has " + std::to_string(t.dim()) + " dimensions");
  int64_t shape[dispatch::kMaxAxes];
  const DLTensor view = dl_view(t, shape, a >= 0 ? h.definition()->arg_dtype(a) : DLDataType{});
  auto owner = std::make_shared<const at::Tensor>(t);
  std::function<uint64_t()> version;
  if (!t.is_inference()) version = [owner] { return static_cast<uint64_t>(owner->_version()); };
  return again ? handle.rebind(name, view, owner, version) : handle.bind_constant(name, view, owner, version);
}

}  // namespace

RuntimeConfig torch_config() {
  RuntimeConfig config;
  dispatch::OpRegistry registry;
  const Status s = ops::register_builtin_ops(registry);
  TORCH_INTERNAL_ASSERT(s.ok(), s.to_string());
  config.ops = registry.all();
  config.executor = torch_detail::aten_executor();
  config.libraries = torch_libraries();
  config.op_loader = [](const std::string& path, dispatch::OpRegistry& ops) {
    return ops::load_user_ops(path, ops);
  };
  config.thread_start = torch_detail::use_one_thread;
  config.has_family = family_lookup();
  return config;
}

void torch_call_into(const OpHandle& handle, std::span<at::Tensor> args) {
  HandleState& h = *handle.state();
  const CallPlan& plan = h.plan();
  TORCH_CHECK(args.size() == static_cast<size_t>(plan.args()), h.definition()->name(), ": ", args.size(),
              " arguments given, the schema has ", plan.args());
  TorchCall call(h);
  for (int a = 0; a < plan.args(); ++a) {
    const at::Tensor& t = args[static_cast<size_t>(a)];
    if (!t.defined()) {
      TORCH_CHECK(!plan.arg(a).present || plan.arg(a).role == ArgRole::kOut,
                  plan.describe({Misfit::Kind::kMissing, a}, *h.definition()));
      continue;
    }
    TORCH_CHECK(plan.arg(a).present, plan.describe({Misfit::Kind::kUnexpected, a}, *h.definition()));
    if (plan.arg(a).role == ArgRole::kOut)
      call.output(a, t);
    else
      call.input(a, t);
  }
  call.run();
  for (int a = plan.first_output(); a < plan.args(); ++a)
    if (plan.arg(a).present) args[static_cast<size_t>(a)] = call.take_output(a);
}

void torch_detail::call(const OpHandle& handle, const at::Tensor* const* inputs, size_t input_count,
                        at::Tensor* outputs, size_t output_count) {
  HandleState& h = *handle.state();
  const CallPlan& plan = h.plan();
  TorchCall call(h);
  // Absent optional arguments may be left out, or given as undefined tensors.
  const bool with_absent = input_count == static_cast<size_t>(plan.first_output());
  size_t used = 0;
  for (int a = 0; a < plan.first_output(); ++a) {
    if (!plan.arg(a).present) {
      if (with_absent && inputs[used++]->defined()) wrong_count(h, input_count, output_count);
      continue;
    }
    if (used == input_count || !inputs[used]->defined()) wrong_count(h, input_count, output_count);
    call.input(a, *inputs[used++]);
  }
  if (used != input_count || static_cast<size_t>(plan.outputs()) != output_count)
    wrong_count(h, input_count, output_count);
  call.run();
  size_t filled = 0;
  for (int a = plan.first_output(); a < plan.args(); ++a)
    if (plan.arg(a).present) outputs[filled++] = call.take_output(a);
}

Status bind_constant(const OpHandle& handle, std::string_view arg, const at::Tensor& tensor) {
  return bind(handle, arg, tensor, false);
}

Status rebind(const OpHandle& handle, std::string_view arg, const at::Tensor& tensor) {
  return bind(handle, arg, tensor, true);
}

}  // namespace niche
