// aten_executor: ATen's intra-op pool as the executor of niche's CPU kernels, so that a server has one pool.
//
// Thread-safety: safe. Cost: at::parallel_for's: 0.3 µs when one thread is enough, 0.5–2 µs for a threaded
// region.
#pragma once

#include "dispatch/op_spec.h"

namespace niche::torch_detail {

// `threads` is at::get_num_threads() now: set it before the Runtime is made.
dispatch::Executor aten_executor();

// Makes the calling thread compute alone: a second team of OpenMP threads would spin beside the server's.
void use_one_thread();

}  // namespace niche::torch_detail
