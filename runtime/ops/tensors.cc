#include "runtime/ops/tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

namespace niche::ops {

using namespace niche::dispatch;

at::ScalarType scalar_type(DLDataType t) {
  if (same_dtype(t, kF32)) return at::kFloat;
  if (same_dtype(t, kBf16)) return at::kBFloat16;
  if (same_dtype(t, kI64)) return at::kLong;
  if (same_dtype(t, kF64)) return at::kDouble;
  if (same_dtype(t, kF16)) return at::kHalf;
  if (same_dtype(t, kI32)) return at::kInt;
  TORCH_CHECK(same_dtype(t, kU8), "niche: element type ", std::string(dtype_name(t)),
              " has no ATen counterpart");
  return at::kByte;
}

at::Tensor view(void* data, at::IntArrayRef shape, at::ScalarType type, at::Device device) {
  return at::for_blob(data, shape)
      .options(at::TensorOptions(device).dtype(type))
      .target_device(device)
      .make_tensor();
}

at::Tensor view(const DLTensor& t) {
  const at::IntArrayRef shape(t.shape, static_cast<size_t>(t.ndim));
  if (!t.data && c10::multiply_integers(shape) != 0) return {};
  return view(static_cast<char*>(t.data) + t.byte_offset, shape, scalar_type(t.dtype));
}

at::Device device_of(const CallFrame& frame) {
  return frame.device == 0 ? at::Device(at::kCPU)
                           : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(frame.device - 1));
}

void make_views(const Problem& p, void* const* pointers, bool outputs, at::Tensor* tensors,
                at::Device device) {
  const auto& args = p.definition->schema().args;
  for (int i = 0; i < static_cast<int>(args.size()); ++i) {
    if (!p.definition->has_arg(i) || (!outputs && args[static_cast<size_t>(i)].role == ArgRole::kOut))
      continue;
    tensors[i] = view(pointers[i], p.arg_shape(i), scalar_type(p.definition->arg_dtype(i)), device);
  }
}

Problem problem_of(const CallFrame& frame, const std::shared_ptr<const OpSchema>& schema) {
  Problem p;
  // The frame's Definition outlives the call; the Problem does not.
  p.definition = std::shared_ptr<const Definition>(std::shared_ptr<const Definition>(), frame.definition);
  for (size_t i = 0; i < schema->axes.size(); ++i) p.axes[i] = frame.args->n[i];
  return p;
}

TensorArgs::TensorArgs(const Problem& p, void* const* pointers) {
  const c10::InferenceMode guard;
  make_views(p, pointers, false, tensors_.data());
  const auto& args = p.definition->schema().args;
  for (int i = 0; i < static_cast<int>(args.size()); ++i)
    if (args[static_cast<size_t>(i)].role == ArgRole::kOut && p.definition->has_arg(i))
      outs_.push_back({i, p.arg_shape(i), scalar_type(p.definition->arg_dtype(i))});
}

void TensorArgs::drop_outputs() {
  for (const Out& o : outs_) tensors_[static_cast<size_t>(o.arg)] = at::Tensor();
}

void TensorArgs::make_outputs() {
  const c10::InferenceMode guard;
  for (const Out& o : outs_)
    tensors_[static_cast<size_t>(o.arg)] = at::empty(o.shape, at::TensorOptions(at::kCPU).dtype(o.type));
}

void TensorArgs::outputs(void** p) {
  for (const Out& o : outs_)
    if (const at::Tensor& t = tensors_[static_cast<size_t>(o.arg)]; t.defined())
      p[o.arg] = t.mutable_data_ptr();
}

}  // namespace niche::ops
