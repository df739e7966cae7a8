// at::Tensors over memory that others own, and NativeArgs as an array of them.
//
// The native form of a call (CallFrame::native) is `at::Tensor[]`: one tensor a schema argument, in schema
// order, undefined where the argument is absent or not yet allocated. Cost of a view: some 0.5 µs
// (at::from_blob).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <span>

#include "dispatch/op_spec.h"

namespace niche::ops {

using TensorList = std::array<at::Tensor, dispatch::kMaxArgs>;

at::ScalarType scalar_type(DLDataType t);  // requires: a type that dtype.h names
at::Tensor view(void* data, at::IntArrayRef shape, at::ScalarType type, at::Device device = at::kCPU);
at::Tensor view(const DLTensor& t);  // undefined where t.data is null and the tensor is not empty

// Where a frame's arguments are.
at::Device device_of(const dispatch::CallFrame& frame);
// Views for the arguments of `p`: inputs and in-out always, outputs only where asked for.
void make_views(const dispatch::Problem& p, void* const* pointers, bool outputs, at::Tensor* tensors,
                at::Device device = at::kCPU);
// The Problem's axes, for a frame that carries only extents.
dispatch::Problem problem_of(const dispatch::CallFrame& frame,
                             const std::shared_ptr<const dispatch::OpSchema>& schema);

// Made under InferenceMode, as a server's tensors are: a fallback that gets them runs under it too (see
// AtenOp).
class TensorArgs final : public dispatch::NativeArgs {
 public:
  TensorArgs(const dispatch::Problem& p, void* const* pointers);
  void* get() override { return tensors_.data(); }
  void drop_outputs() override;
  void make_outputs() override;
  void outputs(void** p) override;

 private:
  struct Out {
    int arg;
    std::vector<int64_t> shape;
    at::ScalarType type;
  };
  TensorList tensors_;
  std::vector<Out> outs_;
};

}  // namespace niche::ops
