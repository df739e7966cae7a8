// One set of an operator's inputs as a server would hold them; outputs come and go with each call.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "bench/ops_cpu/kernels.h"
#include "dispatch/op_spec.h"

namespace niche::bench {

using namespace dispatch;

class Inputs {
 public:
  // Constants are copied from `first` where given: kernels have packed those.
  Inputs(const OpSpec& op, const Problem& p, int distribution, uint64_t seed, const Inputs* first)
      : problem_(p) {
    const size_t n = p.definition->schema().args.size();
    memory_.resize(n);
    shapes_.resize(n);
    for (size_t i = 0; i < n; ++i) {
      const int arg = static_cast<int>(i);
      shapes_[i] = p.arg_shape(arg);
      if (p.definition->schema().args[i].role != ArgRole::kOut && p.definition->has_arg(arg))
        memory_[i].resize(static_cast<size_t>(p.arg_bytes(arg)));
      tensors_.push_back({memory_[i].empty() ? nullptr : memory_[i].data(),
                          {kDLCPU, 0},
                          static_cast<int>(shapes_[i].size()),
                          p.definition->arg_dtype(arg),
                          shapes_[i].data(),
                          nullptr,
                          0});
      pointers_.push_back(tensors_.back().data);
    }
    status_ = op.make_inputs(p, distribution, seed, tensors_);
    for (size_t i = 0; first != nullptr && i < n; ++i)
      if (p.definition->schema().args[i].constant && !memory_[i].empty())
        std::memcpy(memory_[i].data(), first->memory_[i].data(), memory_[i].size());
    native_ = op.wrap(p, pointers_.data());
    args_ = {pointers_.data(), reinterpret_cast<const long*>(problem_.axes.data()),
             p.definition->attrs().data(), nullptr, nullptr};
  }
  const Status& status() const { return status_; }
  const NicheKernelArgs& args() const { return args_; }
  std::span<const DLTensor> tensors() const { return tensors_; }
  void run(const OpSpec& op, int form) {
    native_->drop_outputs();
    op.run_fallback(form, {problem_.definition.get(), &args_, native_->get()});
  }
  void run(LoadedKernel& kernel) {
    native_->drop_outputs();
    native_->make_outputs();
    native_->outputs(pointers_.data());
    kernel.run(args_);
  }
  // The output of the last call. Every operator here has one, the last argument, f32.
  std::vector<float> output() {
    native_->outputs(pointers_.data());
    const auto* y = static_cast<const float*>(pointers_.back());
    return {y, y + problem_.arg_elements(static_cast<int>(pointers_.size()) - 1)};
  }

 private:
  Problem problem_;
  std::vector<std::vector<char>> memory_;
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<DLTensor> tensors_;
  std::vector<void*> pointers_;
  std::unique_ptr<NativeArgs> native_;
  NicheKernelArgs args_{};
  Status status_;
};

}  // namespace niche::bench
