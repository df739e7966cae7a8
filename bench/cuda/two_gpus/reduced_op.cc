#include "bench/cuda/two_gpus/reduced_op.h"

#include <utility>

namespace niche::two_gpus {

using dispatch::CallFrame;
using dispatch::Status;

namespace {

void note(Link& link, const Status& s) {
  if (!s.ok() && link.failure.empty()) link.failure = s.to_string();
}

void launch_reduced(const dispatch::Kernel& kernel, CallFrame& frame, const dispatch::Executor& executor) {
  const auto& k = static_cast<const ReducedKernel&>(kernel);
  k.inner_kernel->launch(*k.inner_kernel, frame, executor);
  if (frame.refusal != CallFrame::Refusal::kNone) return;
  Link& link = *k.link;
  link.last_code = k.code;
  const int64_t n = k.reduced->elements(*frame.args);
  char* out = static_cast<char*>(frame.args->p[k.definition->schema().args.size() - 1]);
  switch (k.how) {
    case How::kAllReduce:
      return note(link, link.now->all_reduce(out, n, frame.stream));
    case How::kScatterGather:
      return note(link, link.now->scatter_gather(out, n, frame.stream));
    case How::kTwoAllReduces: {
      const int64_t half = n / 2, bytes = half * (k.definition->dtype().bits / 8);
      note(link, link.now->all_reduce(out, half, frame.stream));
      return note(link, link.now->all_reduce(out + bytes, n - half, frame.stream));
    }
  }
}

}  // namespace

ReducedOp::ReducedOp(std::shared_ptr<const dispatch::OpSpec> inner, std::shared_ptr<Link> link)
    : inner_(std::move(inner)), link_(std::move(link)) {
  auto s = std::make_shared<dispatch::OpSchema>(*inner_->schema());
  s->op += "_reduced";
  schema_ = std::move(s);
}

int64_t ReducedOp::elements(const NicheKernelArgs& args) const {
  int64_t n = 1;
  for (const int axis : schema_->args.back().shape) n *= args.n[axis];
  return n;
}

void ReducedOp::run_fallback(int form, const CallFrame& frame) const {
  inner_->run_fallback(form, frame);
  link_->last_code = 0;
  note(*link_,
       link_->now->all_reduce(frame.args->p[schema_->args.size() - 1], elements(*frame.args), frame.stream));
}

std::shared_ptr<const dispatch::Kernel> reduced_kernel(std::shared_ptr<const ReducedOp> op,
                                                       std::shared_ptr<const dispatch::Definition> definition,
                                                       std::shared_ptr<const dispatch::Kernel> inner,
                                                       std::shared_ptr<Link> link, dispatch::KernelKind kind,
                                                       How how, uint8_t code, std::string name) {
  auto k = std::make_shared<ReducedKernel>();
  k->launch = launch_reduced;
  k->kind = kind;
  k->id = dispatch::next_kernel_id();
  k->name = std::move(name);
  k->definition = std::move(definition);
  k->workspace_units = inner->workspace_units;
  k->plan.workspace_bytes = inner->plan.workspace_bytes;
  k->properties = inner->properties;
  if (inner->is_fallback()) {
    // Runs what the library can.
    k->guard.var_count = static_cast<int>(k->definition->var_axes().size());
    for (int i = 0; i < k->guard.var_count; ++i)
      k->guard.var[static_cast<size_t>(i)] = {1, int64_t{1} << 31, 1};
  } else {
    k->guard = inner->guard;
  }
  k->inner_kernel = std::move(inner);
  k->reduced = std::move(op);
  k->link = std::move(link);
  k->how = how;
  k->code = code;
  return k;
}

}  // namespace niche::two_gpus
