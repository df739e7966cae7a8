// StridedCopies: contiguous temporaries for a call on strided DLPack tensors, so that such a call gets a
// right answer from the library. A slow path, counted as "layout".
//
// Thread-safety: one thread. Cost: allocates; one element at a time. Bound: the call's own tensors once.
#pragma once

#include <dlpack/dlpack.h>

#include <array>
#include <memory>
#include <span>

#include "runtime/call_plan.h"

namespace niche::core {

// Row-major without gaps? Dimensions of extent 1 may have any stride, and an empty tensor is contiguous.
inline bool is_contiguous(const DLTensor& t) {
  if (t.strides == nullptr) return true;
  int64_t expected = 1;
  for (int d = t.ndim - 1; d >= 0; --d) {
    if (t.shape[d] == 0) return true;
    if (t.shape[d] != 1 && t.strides[d] != expected) return false;
    expected *= t.shape[d];
  }
  return true;
}

class StridedCopies {
 public:
  // Copies every present input and in-out; allocates outputs. kBusy: out of memory.
  dispatch::Status gather(const CallPlan& plan, std::span<const DLTensor> tensors);
  // Copies in-outs and outputs back.
  void scatter(const CallPlan& plan, std::span<const DLTensor> tensors);
  void* data(int arg) const { return buffer_[static_cast<size_t>(arg)].get(); }

 private:
  std::array<std::unique_ptr<char[]>, dispatch::kMaxArgs> buffer_;
};

}  // namespace niche::core
