// TorchScriptOp: an operator that exists only as a JSON Definition whose reference is TorchScript source.
//
// The source is compiled once, in C++, by torch::jit::compile; run on inputs upcast to fp64 it is the
// reference, run in the Definition's own types it is the one library form. `import torch`, `import math` and
// `@torch.no_grad()` lines are dropped, so that references of FlashInfer Trace files compile where they are
// otherwise TorchScript.
//
// A reference that pins its element type (`.float()`, `.to(torch.float32)`) does not become more exact in
// fp64. That is found by experiment when the operator is made (a change of the inputs by 2^-40 changes no
// output), the error bound is widened by what fp32 loses, and Tolerance::reason says so in every Verdict.
//
// Thread-safety: immutable after make(); run_fallback may run in several threads.
#pragma once

#include <memory>
#include <string_view>

#include "dispatch/op_spec.h"

namespace niche::ops {

struct UserOperator {
  std::shared_ptr<const dispatch::OpSpec> op;
  std::shared_ptr<const dispatch::Definition> definition;  // what the document fixes of it
};

// `document`: FlashInfer Trace's fields; what niche adds stands under the key "niche"
// (docs/operator_tutorial.md). kInvalid names the first bad field; kUnsupported: the reference is missing, is
// not TorchScript (with the compiler's message and the Definition's name), or gives outputs of another
// number, type or shape.
dispatch::Result<UserOperator> make_torchscript_op(std::string_view document);

}  // namespace niche::ops
