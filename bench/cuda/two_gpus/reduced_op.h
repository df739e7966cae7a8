// ReducedOp: an operator whose output is summed over the ranks of a tensor-parallel group: any OpSpec, and behind it a
// collective. Its library form is the inner one's with an all-reduce; its kernels (ReducedKernel) wrap a kernel of the
// inner operator and differ in the collectives that they issue, so that ranks must choose alike.
//
// Thread-safety: as OpSpec; the collectives are replaced (Link::set) while no call runs.
#pragma once

#include <memory>
#include <string>

#include "bench/cuda/two_gpus/collectives.h"
#include "dispatch/op_spec.h"
#include "dispatch/published_kernel.h"

namespace niche::two_gpus {

// The communicator of now, and what the last call was answered by.
struct Link {
  Collectives* now = nullptr;
  uint8_t last_code = 0;
  std::string failure;  // of a collective; kept until taken
};

class ReducedOp final : public dispatch::OpSpec {
 public:
  ReducedOp(std::shared_ptr<const dispatch::OpSpec> inner, std::shared_ptr<Link> link);

  const dispatch::OpSpec& inner() const { return *inner_; }
  const std::shared_ptr<const dispatch::OpSpec>& inner_ref() const { return inner_; }
  // The last argument, which is what the ranks' parts are summed into.
  int64_t elements(const NicheKernelArgs& args) const;

  const std::shared_ptr<const dispatch::OpSchema>& schema() const override { return schema_; }
  dispatch::Status derive_axes(const dispatch::Definition& d, std::span<int64_t> axes) const override {
    return inner_->derive_axes(d, axes);
  }
  dispatch::Cost cost(const dispatch::Problem& p) const override { return inner_->cost(p); }
  dispatch::Tolerance tolerance(const dispatch::Definition& d) const override { return inner_->tolerance(d); }
  int distributions() const override { return inner_->distributions(); }
  std::string_view distribution_name(int i) const override { return inner_->distribution_name(i); }
  dispatch::Status make_inputs(const dispatch::Problem& p, int distribution, uint64_t seed,
                               std::span<const DLTensor> args) const override {
    return inner_->make_inputs(p, distribution, seed, args);
  }
  // Needs the other ranks' inputs.
  dispatch::Status reference(const dispatch::Problem&, std::span<const DLTensor>,
                             std::span<const DLTensor>) const override {
    return dispatch::unsupported("a reduced operator has no reference on one rank");
  }
  int fallback_count() const override { return 1; }
  std::string_view fallback_name(int) const override { return "inner; all_reduce"; }
  bool runs_on_device() const override { return inner_->runs_on_device(); }
  void run_fallback(int form, const dispatch::CallFrame& frame) const override;
  std::unique_ptr<dispatch::NativeArgs> wrap(const dispatch::Problem& p, void* const* args) const override {
    return inner_->wrap(p, args);
  }

 private:
  const std::shared_ptr<const dispatch::OpSpec> inner_;
  const std::shared_ptr<Link> link_;
  std::shared_ptr<const dispatch::OpSchema> schema_;
};

enum class How : uint8_t { kAllReduce, kScatterGather, kTwoAllReduces };

struct ReducedKernel final : dispatch::Kernel {
  std::shared_ptr<const dispatch::Kernel> inner_kernel;
  std::shared_ptr<const ReducedOp> reduced;
  std::shared_ptr<Link> link;
  How how = How::kAllReduce;
  uint8_t code = 0;  // for the log; 0 is the library's form
};
// `inner`: a kernel of the inner operator for the same extents, or its library form. `kind`: kCuda where calls come with
// device tensors.
std::shared_ptr<const dispatch::Kernel> reduced_kernel(std::shared_ptr<const ReducedOp> op,
                                                       std::shared_ptr<const dispatch::Definition> definition,
                                                       std::shared_ptr<const dispatch::Kernel> inner,
                                                       std::shared_ptr<Link> link, dispatch::KernelKind kind,
                                                       How how, uint8_t code, std::string name);

}  // namespace niche::two_gpus
