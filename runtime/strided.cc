#include "runtime/strided.h"

#include <cstring>
#include <new>
#include <vector>

namespace niche::core {
namespace {

// Walks every element of `t` in row-major order: f(strided address, contiguous offset in bytes).
template <typename F>
void for_each_element(const DLTensor& t, F f) {
  const int64_t size = static_cast<int64_t>(dispatch::dtype_bytes(t.dtype));
  int64_t count = 1;
  for (int d = 0; d < t.ndim; ++d) count *= t.shape[d];
  std::vector<int64_t> index(static_cast<size_t>(t.ndim), 0), stride(static_cast<size_t>(t.ndim));
  int64_t contiguous = 1;
  for (int d = t.ndim - 1; d >= 0; --d) {
    stride[static_cast<size_t>(d)] = t.strides != nullptr ? t.strides[d] : contiguous;
    contiguous *= t.shape[d];
  }
  char* base = static_cast<char*>(t.data) + t.byte_offset;
  int64_t at = 0;
  for (int64_t i = 0; i < count; ++i) {
    f(base + at * size, i * size);
    for (int d = t.ndim - 1; d >= 0; --d) {
      const size_t k = static_cast<size_t>(d);
      at += stride[k];
      if (++index[k] < t.shape[d]) break;
      at -= stride[k] * t.shape[d];
      index[k] = 0;
    }
  }
}

}  // namespace

dispatch::Status StridedCopies::gather(const CallPlan& plan, std::span<const DLTensor> tensors) {
  for (int a = 0; a < plan.args(); ++a) {
    if (!plan.arg(a).present) continue;
    const DLTensor& t = tensors[static_cast<size_t>(a)];
    int64_t bytes = static_cast<int64_t>(dispatch::dtype_bytes(t.dtype));
    for (int d = 0; d < t.ndim; ++d) bytes *= t.shape[d];
    auto& buffer = buffer_[static_cast<size_t>(a)];
    buffer.reset(new (std::nothrow) char[static_cast<size_t>(bytes) + 1]);
    if (!buffer)
      return dispatch::busy("no memory for a contiguous copy of " + std::to_string(bytes) + " bytes");
    if (plan.arg(a).role == dispatch::ArgRole::kOut) continue;
    const size_t size = dispatch::dtype_bytes(t.dtype);
    for_each_element(t, [&](char* from, int64_t offset) { std::memcpy(buffer.get() + offset, from, size); });
  }
  return {};
}

void StridedCopies::scatter(const CallPlan& plan, std::span<const DLTensor> tensors) {
  for (int a = 0; a < plan.args(); ++a) {
    if (!plan.arg(a).present || plan.arg(a).role == dispatch::ArgRole::kIn) continue;
    const DLTensor& t = tensors[static_cast<size_t>(a)];
    const size_t size = dispatch::dtype_bytes(t.dtype);
    const char* buffer = buffer_[static_cast<size_t>(a)].get();
    for_each_element(t, [&](char* to, int64_t offset) { std::memcpy(to, buffer + offset, size); });
  }
}

}  // namespace niche::core
