// HostArgs: DLTensor views over the arguments of one Problem, for OpSpec::make_inputs and reference.
//
// Thread-safety: one owner thread. The pointers' memory is borrowed.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dispatch/op_spec.h"

namespace niche::evolve::judge {

class HostArgs {
 public:
  // One tensor a schema argument, `p[arg]` as data (null: absent).
  HostArgs(const dispatch::Problem& problem, void* const* p);
  // One f64 (or own-type, for what is not floating) tensor a present kInOut and kOut argument:
  // OpSpec::reference's `out`.
  static HostArgs outputs(const dispatch::Problem& problem, void* const* p);

  std::span<const DLTensor> tensors() const { return tensors_; }

 private:
  HostArgs() = default;
  void add(const dispatch::Problem& problem, int arg, DLDataType type, void* data);
  std::vector<DLTensor> tensors_;
  std::vector<std::unique_ptr<std::vector<int64_t>>> shapes_;
};

// Bytes of argument `arg` in the reference's form.
int64_t reference_bytes(const dispatch::Problem& problem, int arg);
DLDataType reference_dtype(const dispatch::Problem& problem, int arg);

// A Problem of `definition` with its variable axes set and derived ones computed. kInvalid: the operator says
// no.
dispatch::Result<dispatch::Problem> make_problem(const dispatch::OpSpec& op,
                                                 std::shared_ptr<const dispatch::Definition> definition,
                                                 std::span<const int64_t> var_axes);

// NicheKernelArgs with its arrays, for a kernel or a fallback.
struct KernelArgs {
  std::array<void*, dispatch::kMaxArgs> p{};
  std::array<long, dispatch::kMaxAxes> n{};
  std::array<double, dispatch::kMaxAttrs> a{};
  NicheKernelArgs args{};

  KernelArgs(const dispatch::Definition& definition, const int64_t* axes);
  // Of everything a kernel could write to through its argument pointer.
  uint64_t fingerprint() const;
  KernelArgs(const KernelArgs&) = delete;
  KernelArgs& operator=(const KernelArgs&) = delete;
};

}  // namespace niche::evolve::judge
