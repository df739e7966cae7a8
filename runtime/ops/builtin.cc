#include "runtime/ops/builtin.h"

#include "runtime/ops/builtin_ops.h"

namespace niche::ops {

dispatch::Status register_builtin_ops(dispatch::OpRegistry& registry) {
  OpList ops;
  add_norm_ops(ops);
  add_activation_ops(ops);
  add_conv_ops(ops);
  add_matrix_ops(ops);
  add_lookup_ops(ops);
  add_norm_backward_ops(ops);
  add_state_space_ops(ops);
  add_jagged_ops(ops);
  add_broadcast_ops(ops);
  add_decoder_ops(ops);
  for (auto& op : ops) NICHE_RETURN_IF_ERROR(registry.add(std::move(op)));
  return {};
}

}  // namespace niche::ops
