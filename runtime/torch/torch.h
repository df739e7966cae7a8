// niche on at::Tensors: the thin skin that a libtorch server calls.
//
//   niche::RuntimeConfig config = niche::torch_config();
//   at::Tensor y = niche::torch_call(norm, x, weight);                       // one output
//   auto [y, residual_out] = niche::torch_calls<2>(fused, x, residual, w);   // several
//   niche::torch_call_(fused_inplace, w, x, residual);                       // updates its in-outs
//   niche::torch_call_into(norm, args);                                      // one tensor an argument
//
// Arguments come in schema order; an absent optional one is an undefined tensor (at::Tensor()) or left out of
// the pack where the Definition has no such argument. Outputs are allocated by at::empty for a niche kernel,
// by ATen itself for the library form.
//
// What no kernel may see goes to the library untouched, counted by reason: inputs that require grad under
// grad mode, tensor subclasses, functorch wrappers and other dispatch modes, sparse, quantised and conjugate
// or negative-bit tensors, devices that this Runtime does not serve, strided or overlapping memory. Tensors on
// one CUDA device of RuntimeConfig::cuda_devices run on ATen's current stream there.
//
// Errors: exceptions of ATen pass unchanged; tensors whose shape is not the Definition's, and too many or too
// few arguments, throw c10::Error. Thread-safety: any thread. Cost: the aim is at most 150 ns over the direct
// ATen call when the library serves; bench/runtime/calls.cc measures it.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "runtime/runtime.h"

namespace niche {

// A config with the built-in operators and ATen's pool as the executor; everything else at its default.
RuntimeConfig torch_config();

// One tensor a schema argument. Undefined outputs are allocated, defined ones are written.
void torch_call_into(const OpHandle& handle, std::span<at::Tensor> args);

// Binds a weight: holds the tensor; its version counter is watched where it has one. See
// OpHandle::bind_constant.
Status bind_constant(const OpHandle& handle, std::string_view arg, const at::Tensor& tensor);
Status rebind(const OpHandle& handle, std::string_view arg, const at::Tensor& tensor);

namespace torch_detail {
// `inputs`: the inputs and in-outs that the Definition has, in schema order. `outputs`: as many tensors as it
// has outputs, undefined. Throws c10::Error when a count differs.
void call(const OpHandle& handle, const at::Tensor* const* inputs, size_t input_count, at::Tensor* outputs,
          size_t output_count);
}  // namespace torch_detail

template <size_t kOutputs, typename... Tensors>
std::array<at::Tensor, kOutputs> torch_calls(const OpHandle& handle, const Tensors&... inputs) {
  const at::Tensor* const in[] = {&inputs...};
  std::array<at::Tensor, kOutputs> out;
  torch_detail::call(handle, in, sizeof...(inputs), out.data(), kOutputs);
  return out;
}
template <typename... Tensors>
at::Tensor torch_call(const OpHandle& handle, const Tensors&... inputs) {
  const at::Tensor* const in[] = {&inputs...};
  at::Tensor out;
  torch_detail::call(handle, in, sizeof...(inputs), &out, 1);
  return out;
}
template <typename... Tensors>
void torch_call_(const OpHandle& handle, const Tensors&... inputs) {
  const at::Tensor* const in[] = {&inputs...};
  torch_detail::call(handle, in, sizeof...(inputs), nullptr, 0);
}

}  // namespace niche
