// What keeps an at::Tensor from a niche kernel, and under which reason it is counted.
//
// Thread-safety: reads thread-local state of ATen. Cost: about 1 ns a tensor, 2 ns a call when nothing is
// foreign.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "dispatch/fallback_reason.h"

namespace niche::torch_detail {

// Everything a plain host tensor may carry; anything else needs ATen's dispatcher.
inline constexpr c10::DispatchKeySet kPlainKeys({c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU,
                                                 c10::DispatchKey::ADInplaceOrView,
                                                 c10::DispatchKey::AutocastCPU});
// The same of a plain tensor on a CUDA device.
inline constexpr c10::DispatchKeySet kCudaKeys({c10::DispatchKey::CUDA, c10::DispatchKey::AutogradCUDA,
                                                c10::DispatchKey::ADInplaceOrView,
                                                c10::DispatchKey::AutocastCUDA});
inline constexpr c10::DispatchKeySet kPlainModes({c10::DispatchKey::BackendSelect,
                                                  c10::DispatchKey::ADInplaceOrView});

// Gathers over a call's tensors; verdict() at the end.
class Guards {
 public:
  Guards() : grad_(c10::GradMode::is_enabled()) {}
  void see(const at::Tensor& t) {
    const c10::TensorImpl* impl = t.unsafeGetTensorImpl();
    keys_ |= impl->key_set().raw_repr();
    if (grad_ && impl->requires_grad()) wants_grad_ = true;
  }
  // kNone: a kernel may have the call.
  dispatch::FallbackReason verdict() const {
    const c10::impl::LocalDispatchKeySet tls = c10::impl::tls_local_dispatch_key_set();
    const uint64_t foreign =
        (keys_ & ~kPlainKeys.raw_repr()) | (tls.included_.raw_repr() & ~kPlainModes.raw_repr());
    if (foreign == 0 && !wants_grad_ && tls.excluded_.has(c10::DispatchKey::AutocastCPU)) [[likely]]
      return dispatch::FallbackReason::kNone;
    return classify(foreign);
  }

  // Of a call that verdict() called foreign: are all its tensors plain ones on CUDA devices, so that a kernel
  // there may have it?
  bool plain_on_cuda() const {
    const c10::impl::LocalDispatchKeySet tls = c10::impl::tls_local_dispatch_key_set();
    const uint64_t foreign =
        (keys_ & ~kCudaKeys.raw_repr()) | (tls.included_.raw_repr() & ~kPlainModes.raw_repr());
    return foreign == 0 && !wants_grad_ && tls.excluded_.has(c10::DispatchKey::AutocastCUDA);
  }

 private:
  dispatch::FallbackReason classify(uint64_t foreign) const;

  uint64_t keys_ = 0;
  bool grad_, wants_grad_ = false;
};

}  // namespace niche::torch_detail
