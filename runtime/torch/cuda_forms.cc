#include "runtime/torch/cuda_forms.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <dlfcn.h>

#include "evolve/definition_json.h"
#include "runtime/ops/builtin.h"
#include "runtime/ops/tensors.h"

namespace niche {
namespace {

using dispatch::ArgRole;
using dispatch::Result;
using dispatch::Status;

class Call final : public evolve::LibraryCall {
 public:
  Call(std::shared_ptr<const dispatch::OpSpec> op, dispatch::Problem problem,
       std::span<void* const> arguments, int ordinal)
      : op_(std::move(op)), problem_(std::move(problem)), ordinal_(ordinal) {
    const c10::InferenceMode guard;
    std::copy(arguments.begin(), arguments.end(), pointers_.begin());
    for (size_t i = 0; i < problem_.axes.size(); ++i) axes_[i] = static_cast<long>(problem_.axes[i]);
    ops::make_views(problem_, pointers_.data(), false, tensors_.data(), at::Device(at::kCUDA, index()));
  }

  Status run(int form) override {
    try {
      const c10::InferenceMode guard;
      const auto& args = op_->schema()->args;
      for (size_t i = 0; i < args.size(); ++i)
        if (args[i].role == ArgRole::kOut) tensors_[i] = at::Tensor();
      NicheKernelArgs abi{pointers_.data(), axes_.data(), problem_.definition->attrs().data(), nullptr,
                          nullptr};
      dispatch::CallFrame frame;
      frame.definition = problem_.definition.get();
      frame.args = &abi;
      frame.native = tensors_.data();
      frame.device = ordinal_ + 1;
      op_->run_fallback(form, frame);
      return {};
    } catch (const std::exception& e) {
      return dispatch::device_error(std::string(op_->fallback_name(form)) + " at " + problem_.to_string() +
                                    ": " + e.what());
    }
  }

 private:
  at::DeviceIndex index() const { return static_cast<at::DeviceIndex>(ordinal_); }
  std::shared_ptr<const dispatch::OpSpec> op_;
  dispatch::Problem problem_;
  const int ordinal_;
  std::array<void*, dispatch::kMaxArgs> pointers_{};
  std::array<long, dispatch::kMaxAxes> axes_{};
  ops::TensorList tensors_;
};

class Forms final : public evolve::LibraryForms {
 public:
  explicit Forms(int ordinal) : ordinal_(ordinal) {}
  Status open() {
    NICHE_RETURN_IF_ERROR(open_torch_cuda());
    NICHE_RETURN_IF_ERROR(ops::register_builtin_ops(ops_));
    try {
      // Candidates of an fp32 operator may not be downgraded, so its library forms are not either.
      at::globalContext().setAllowTF32CuDNN(false);
      (void)at::empty({1}, at::TensorOptions(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(ordinal_))));
      return {};
    } catch (const std::exception& e) {
      return dispatch::unsupported("libtorch on CUDA device " + std::to_string(ordinal_) + ": " + e.what());
    }
  }

  Result<std::unique_ptr<evolve::LibraryCall>> prepare(const std::string& definition_json,
                                                       std::span<const int64_t> axes,
                                                       std::span<void* const> arguments) override {
    auto definition = evolve::definition_from_json(definition_json, ops_);
    if (!definition.ok()) return definition.status();
    const auto& schema = (*definition)->schema();
    if (axes.size() != schema.axes.size() || arguments.size() != schema.args.size())
      return dispatch::invalid((*definition)->name() + ": " + std::to_string(axes.size()) + " axes and " +
                               std::to_string(arguments.size()) + " arguments");
    dispatch::Problem p;
    p.definition = *definition;
    std::copy(axes.begin(), axes.end(), p.axes.begin());
    try {
      return std::unique_ptr<evolve::LibraryCall>(
          std::make_unique<Call>(ops_.find_shared(schema.op), std::move(p), arguments, ordinal_));
    } catch (const std::exception& e) {
      return dispatch::device_error((*definition)->name() + ": " + e.what());
    }
  }

 private:
  const int ordinal_;
  dispatch::OpRegistry ops_;
};

}  // namespace

Status open_torch_cuda() {
  if (::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) return {};
  const char* why = ::dlerror();
  return dispatch::unsupported("libtorch's CUDA half: " + std::string(why != nullptr ? why : "not there"));
}

Result<std::unique_ptr<evolve::LibraryForms>> torch_cuda_forms(int ordinal) {
  auto forms = std::make_unique<Forms>(ordinal);
  NICHE_RETURN_IF_ERROR(forms->open());
  return std::unique_ptr<evolve::LibraryForms>(std::move(forms));
}

}  // namespace niche
