// The ranker's operators through niche: one OpHandle a call site, weights on the host declared constant.
#pragma once

#include <memory>

#include "examples/ranker/model.h"
#include "runtime/runtime.h"

namespace ranker {

// kNotFound / kInvalid as Runtime::op. `weights` must outlive the result.
niche::Result<std::unique_ptr<Ops>> make_niche_ops(niche::Runtime& runtime, const Weights& weights);

}  // namespace ranker
