// The built-in operators by family; internal to runtime/ops, registered by builtin.h.
#pragma once

#include <memory>
#include <vector>

#include "dispatch/op_spec.h"

namespace niche::ops {

using OpList = std::vector<std::shared_ptr<const dispatch::OpSpec>>;

void add_norm_ops(OpList& ops);           // rms_norm, fused_add_rms_norm(_inplace), layer_norm
void add_activation_ops(OpList& ops);     // silu_mul, softmax
void add_conv_ops(OpList& ops);           // conv1d
void add_matrix_ops(OpList& ops);         // optimized_fm, pffn
void add_lookup_ops(OpList& ops);         // embedding_bag, map_id, mbdt
void add_norm_backward_ops(OpList& ops);  // rms_norm_backward
void add_state_space_ops(OpList& ops);    // selective_state_update
void add_jagged_ops(OpList& ops);         // batch_event_truncate
void add_broadcast_ops(OpList& ops);      // ikbo_linear_compression
void add_decoder_ops(OpList& ops);        // gelu_mul, rope, linear, sdpa_decode

}  // namespace niche::ops
