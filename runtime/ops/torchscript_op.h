// TorchScriptOp: an operator that exists only as a JSON Definition.
//
// Its reference in TorchScript source, run on inputs upcast to fp64, is the reference; run in the Definition's own
// types it is a library form. `niche.fallback`, TorchScript too, is another form.
//
// A reference that is not TorchScript is Python, which a server never runs: it needs niche.fallback, which serves. A
// worker runs it in an interpreter behind walls (evolve/python/python_reference.h) and refuses a Definition whose
// fallback does not compute what its reference computes; a server compares live calls with the fallback in fp64.
//
// A reference that pins its element type (`.float()`, `.to(torch.float32)`) does not become more exact in
// fp64. That is found by experiment when the operator is made (a change of the inputs by 2^-40 changes no
// output), the error bound is widened by what fp32 loses, and Tolerance::reason says so in every Verdict.
//
// Thread-safety: immutable after make(); run_fallback may run in several threads.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "dispatch/op_spec.h"

namespace niche::ops {

struct UserOperator {
  std::shared_ptr<const dispatch::OpSpec> op;
  std::shared_ptr<const dispatch::Definition> definition;  // what the document fixes of it
};

// May this process run references in Python, and by which interpreter?
struct PythonHost {
  bool run = false;     // false in a server
  std::string program;  // see evolve/python/find_python.h
};

// `document`: FlashInfer Trace's fields; what niche adds stands under the key "niche"
// (docs/operator_tutorial.md). kInvalid names the first bad field; kUnsupported: the reference is missing, is
// not TorchScript and has no fallback (with the compiler's message and the Definition's name), cannot be run by any
// Python here, gives outputs of another number, type or shape, or is not what the fallback computes.
dispatch::Result<UserOperator> make_torchscript_op(std::string_view document, const PythonHost& python = {});

}  // namespace niche::ops
