#include "dispatch/published_kernel.h"

#include <atomic>
#include <utility>

namespace niche::dispatch {
namespace {

void launch_fallback(const Kernel& kernel, CallFrame& frame, const Executor&) {
  kernel.op->run_fallback(kernel.fallback_form, frame);
}

}  // namespace

uint64_t next_kernel_id() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);  // relaxed: only uniqueness matters
}

std::shared_ptr<const Kernel> make_fallback_kernel(std::shared_ptr<const OpSpec> op,
                                                   std::shared_ptr<const Definition> definition, int form) {
  auto k = std::make_shared<Kernel>();
  k->launch = &launch_fallback;
  k->kind = KernelKind::kFallback;
  k->fallback_form = static_cast<int16_t>(form);
  k->op = op.get();
  k->id = next_kernel_id();
  k->name = definition->name() + ".fallback." + std::string(op->fallback_name(form));
  k->definition = std::move(definition);
  k->op_ref = std::move(op);
  return k;
}

}  // namespace niche::dispatch
