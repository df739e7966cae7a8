// Registers one operator, then throws: nothing of it may stay in the caller's registry.
#include <stdexcept>

#include "runtime/ops/builtin.h"
#include "runtime/ops/user_op.h"

namespace {
niche::dispatch::Status add_ops(niche::dispatch::OpRegistry& registry) {
  (void)niche::ops::register_builtin_ops(registry);
  throw std::runtime_error("out of luck");
}
}  // namespace

NICHE_REGISTER_OPS(add_ops)
