// CallPlan: how a call's tensors become axes: compiled once a handle from schema and Definition, walked on
// every call.
//
// Thread-safety: immutable. Cost: 1–2 ns a dimension read; no allocation unless a call does not fit, and then
// the message is built on the caller's error path alone.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "dispatch/definition.h"
#include "dispatch/op_spec.h"

namespace niche::core {

// Why a call's tensors do not fit the Definition. Values, so that the hot path builds no text.
struct Misfit {
  enum class Kind : uint8_t {
    kNone,
    kCount,
    kMissing,
    kUnexpected,
    kRank,
    kExtent,
    kDtype,
    kDevice,
    kDerived
  };
  Kind kind = Kind::kNone;
  int arg = -1, dim = -1;
  int64_t got = 0, want = 0;
  explicit operator bool() const { return kind != Kind::kNone; }
};

class CallPlan {
 public:
  // kUnsupported: a variable axis that no input shows (its extent could not be known before the call).
  static dispatch::Result<CallPlan> make(const dispatch::Definition& d, const dispatch::OpSpec& op);

  struct Arg {
    dispatch::ArgRole role = dispatch::ArgRole::kIn;
    bool present = false;
    bool constant = false;
    uint8_t rank = 0;
    uint8_t element_bytes = 0;
    DLDataType dtype{};
    std::array<uint8_t, dispatch::kMaxAxes> axis{};  // per dimension
  };

  int args() const { return args_; }
  const Arg& arg(int i) const { return arg_[static_cast<size_t>(i)]; }
  int first_output() const { return first_output_; }  // kOut arguments are last in every schema
  int outputs() const { return outputs_; }            // present kOut arguments
  bool has_derived() const { return derived_mask_ != 0; }
  uint32_t constant_mask() const { return constant_mask_; }  // present arguments that may be bound
  uint32_t in_out_mask() const { return in_out_mask_; }
  bool derived(int axis) const { return derived_mask_ >> axis & 1; }

  // Constant extents, -1 where an axis is still to be read.
  void start(int64_t* axes) const {
    for (int i = 0; i < axes_; ++i) axes[i] = initial_[static_cast<size_t>(i)];
  }
  // Reads (or checks) the extents of argument `a`. Derived dimensions are left for check_derived.
  Misfit read(int a, const int64_t* sizes, int64_t rank, int64_t* axes) const {
    const Arg& arg = arg_[static_cast<size_t>(a)];
    if (rank != arg.rank) [[unlikely]]
      return {Misfit::Kind::kRank, a, -1, rank, arg.rank};
    for (int d = 0; d < arg.rank; ++d) {
      const int axis = arg.axis[static_cast<size_t>(d)];
      if (axes[axis] == sizes[d]) continue;
      if (axes[axis] != -1) [[unlikely]]
        return {Misfit::Kind::kExtent, a, d, sizes[d], axes[axis]};
      if (derived_mask_ >> axis & 1) continue;
      axes[axis] = sizes[d];
    }
    return {};
  }
  // After derive_axes: an argument that was read before has the derived extents too.
  Misfit check_derived(int a, const int64_t* sizes, const int64_t* axes) const {
    const Arg& arg = arg_[static_cast<size_t>(a)];
    for (int d = 0; d < arg.rank; ++d)
      if (axes[arg.axis[static_cast<size_t>(d)]] != sizes[d]) [[unlikely]]
        return {Misfit::Kind::kExtent, a, d, sizes[d], axes[arg.axis[static_cast<size_t>(d)]]};
    return {};
  }
  // The variable axes in ProblemKey's order, unused ones 0.
  void var_axes(const int64_t* axes, int64_t* var) const {
    for (int i = 0; i < dispatch::kMaxVarAxes; ++i)
      var[i] = i < vars_ ? axes[var_[static_cast<size_t>(i)]] : 0;
  }
  int64_t elements(int a, const int64_t* axes) const {
    const Arg& arg = arg_[static_cast<size_t>(a)];
    int64_t n = 1;
    for (int d = 0; d < arg.rank; ++d) n *= axes[arg.axis[static_cast<size_t>(d)]];
    return n;
  }
  int64_t bytes(int a, const int64_t* axes) const {
    return elements(a, axes) * arg_[static_cast<size_t>(a)].element_bytes;
  }

  // "argument 'x' of rms_norm.f32.N4096: dimension 1 is 4095, not 4096 (axis N)"
  std::string describe(const Misfit& m, const dispatch::Definition& d) const;

 private:
  int args_ = 0, axes_ = 0, vars_ = 0, first_output_ = 0, outputs_ = 0;
  uint32_t derived_mask_ = 0, constant_mask_ = 0, in_out_mask_ = 0;
  std::array<Arg, dispatch::kMaxArgs> arg_{};
  std::array<int64_t, dispatch::kMaxAxes> initial_{};
  std::array<uint8_t, dispatch::kMaxVarAxes> var_{};
};

}  // namespace niche::core
