#include "runtime/torch/guards.h"

namespace niche::torch_detail {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using dispatch::FallbackReason;

struct Class {
  DispatchKeySet keys;
  FallbackReason reason;
};

// First match names the reason. Functionality bits alone: a key such as SparseCPU also carries the CPU's
// backend bit.
constexpr DispatchKeySet functionality(std::initializer_list<DispatchKey> keys) {
  return DispatchKeySet(keys) - DispatchKeySet(DispatchKeySet::RAW, c10::full_backend_mask);
}

const Class kClasses[] = {
    {functionality({DispatchKey::FuncTorchGradWrapper, DispatchKey::FuncTorchBatched,
                    DispatchKey::FuncTorchVmapMode, DispatchKey::FuncTorchDynamicLayerFrontMode,
                    DispatchKey::FuncTorchDynamicLayerBackMode, DispatchKey::Functionalize,
                    DispatchKey::Batched, DispatchKey::VmapMode}),
     FallbackReason::kFunctorch},
    {functionality({DispatchKey::Sparse, DispatchKey::SparseCsr}), FallbackReason::kSparse},
    {functionality({DispatchKey::Quantized}), FallbackReason::kQuantized},
    {functionality({DispatchKey::Conjugate, DispatchKey::Negative}), FallbackReason::kConjugate},
    {functionality({DispatchKey::Python, DispatchKey::PythonTLSSnapshot, DispatchKey::PythonDispatcher,
                    DispatchKey::NestedTensor, DispatchKey::ZeroTensor}),
     FallbackReason::kSubclass},
};

}  // namespace

FallbackReason Guards::classify(uint64_t foreign) const {
  for (const Class& c : kClasses)
    if ((foreign & c.keys.raw_repr()) != 0) return c.reason;
  if ((foreign & c10::full_backend_mask) != 0) return FallbackReason::kForeignDevice;
  if (wants_grad_) return FallbackReason::kRequiresGrad;
  if (foreign == 0) return FallbackReason::kDtype;  // autocast is on: ATen chooses the element type
  return FallbackReason::kSubclass;
}

}  // namespace niche::torch_detail
