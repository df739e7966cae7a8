#include "tests/runtime/ops_cuda/emulated_arguments.h"

#include <algorithm>
#include <cstring>

#include "tests/runtime/ops_cuda/references.h"

namespace niche::ops_cuda_test {
namespace {

using dispatch::ArgRole;
using dispatch::Problem;
using ops_cpu_test::GuardedBuffer;

uint16_t to_bf16(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
double from_bf16(uint16_t b) {
  const uint32_t u = static_cast<uint32_t>(b) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return static_cast<double>(f);
}

void store(const DLDataType& t, uint8_t* at, int64_t i, float v) {
  if (t.bits == 32) {
    std::memcpy(at + i * 4, &v, 4);
    return;
  }
  uint16_t bits = to_bf16(v);
  if (dispatch::same_dtype(t, dispatch::kF16)) {
    const auto h = static_cast<_Float16>(v);
    std::memcpy(&bits, &h, 2);
  }
  std::memcpy(at + i * 2, &bits, 2);
}
double load(const DLDataType& t, const uint8_t* at, int64_t i) {
  if (t.code == kDLInt) {
    int64_t v;
    std::memcpy(&v, at + i * 8, 8);
    return static_cast<double>(v);
  }
  if (t.bits == 32) {
    float f;
    std::memcpy(&f, at + i * 4, 4);
    return static_cast<double>(f);
  }
  uint16_t bits;
  std::memcpy(&bits, at + i * 2, 2);
  if (!dispatch::same_dtype(t, dispatch::kF16)) return from_bf16(bits);
  _Float16 h;
  std::memcpy(&h, &bits, 2);
  return static_cast<double>(h);
}

}  // namespace

Problem problem(const std::shared_ptr<const dispatch::Definition>& d, const std::vector<int64_t>& var) {
  Problem p;
  p.definition = d;
  std::copy(d->const_extents().begin(), d->const_extents().end(), p.axes.begin());
  for (size_t i = 0; i < var.size(); ++i) p.axes[static_cast<size_t>(d->var_axes()[i])] = var[i];
  if (d->schema().op == "conv1d")
    p.axes[5] = p.axes[1] + 2 * static_cast<int64_t>(d->attr("padding")) - p.axes[4] + 1;
  return p;
}

Arguments::Arguments(const Problem& p, uint64_t seed) : p_(p) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const auto& args = p.definition->schema().args;
  for (size_t a = 0; a < args.size(); ++a) {
    const int arg = static_cast<int>(a);
    const bool present = p.definition->has_arg(arg);
    const int64_t bytes = present ? p.arg_bytes(arg) : 0;
    // 16-byte aligned, as Guards ask at most.
    buffers_.emplace_back(static_cast<size_t>(bytes), static_cast<size_t>((16 - bytes % 16) % 16), true);
    pointers_.push_back(present ? buffers_.back().data() : nullptr);
    if (present && args[a].role != ArgRole::kOut) fill(arg, random, normal);
  }
}

double Arguments::value(int arg, int64_t i) const {
  return load(p_.definition->arg_dtype(arg), buffers_[static_cast<size_t>(arg)].data(), i);
}
std::vector<uint8_t> Arguments::bytes(int arg) const {
  const GuardedBuffer& b = buffers_[static_cast<size_t>(arg)];
  return {b.data(), b.data() + b.size()};
}
void Arguments::poison(int arg) {
  GuardedBuffer& b = buffers_[static_cast<size_t>(arg)];
  std::memset(b.data(), 0xFF, b.size());
}
bool Arguments::fences_intact() const {
  for (const GuardedBuffer& b : buffers_)
    if (!b.fence_intact()) return false;
  return true;
}

void Arguments::fill(int arg, std::mt19937_64& random, std::normal_distribution<float>& normal) {
  const DLDataType type = p_.definition->arg_dtype(arg);
  uint8_t* at = buffers_[static_cast<size_t>(arg)].data();
  if (type.code == kDLInt) {
    const auto v = integers(p_, arg, random);
    std::memcpy(at, v.data(), v.size() * 8);
    return;
  }
  for (int64_t i = 0; i < p_.arg_elements(arg); ++i) store(type, at, i, normal(random));
}

}  // namespace niche::ops_cuda_test
