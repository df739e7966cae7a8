// stock_cache: puts a kernel for each of some Definitions into a Runtime's cache, as a session would have committed it and
// with calls to its name, so that a Runtime made afterwards serves it from its first call, on every device of the class.
// The code is the first plain seed of the operator's families, compiled here; nothing is judged: its Verdict says what it
// must to be served, and whoever uses it compares answers with the library's.
#pragma once

#include <memory>
#include <vector>

#include "dispatch/definition.h"
#include "dispatch/devices/cuda/cuda_driver.h"
#include "runtime/config.h"

namespace niche::two_gpus {

// `config`: with cache_dir, which is emptied, and devices (enable_cuda), as the Runtime will have it. Throws
// std::runtime_error: an operator without a seed that is one launch without workspace; what the compiler or cache says.
void stock_cache(const RuntimeConfig& config, const dispatch::CudaDriver& driver,
                 const std::vector<std::shared_ptr<const dispatch::Definition>>& definitions);

}  // namespace niche::two_gpus
