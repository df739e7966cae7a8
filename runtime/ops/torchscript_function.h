// TorchScriptFunction: a function `run` in TorchScript source that takes an operator's inputs and attributes by name.
//
// Compiled once, in C++, by torch::jit::compile. `import torch`, `import math` and `@torch.no_grad()` lines are
// dropped, so that references of FlashInfer Trace files compile where they are otherwise TorchScript.
//
// Thread-safety: immutable after compile(); call() may run in several threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "dispatch/op_spec.h"

namespace torch::jit {
struct CompilationUnit;
struct Function;
}  // namespace torch::jit

namespace niche::ops {

class TorchScriptFunction {
 public:
  // `what`: "definition 'x': the reference", for messages. kUnsupported: not TorchScript (with the compiler's
  // message), no function `run`, or parameters that are not the operator's.
  static dispatch::Result<std::unique_ptr<TorchScriptFunction>> compile(
      const std::string& source, std::shared_ptr<const dispatch::OpSchema> schema, const std::string& what);
  ~TorchScriptFunction();

  // Results in the order of the schema's outputs; `t` holds one tensor a schema argument, in-out ones are updated.
  // Throws where run() gives something else than tensors for the outputs, or raises.
  std::vector<at::Tensor> call(const dispatch::Definition& d, const at::Tensor* t) const;

 private:
  struct Formal {
    int arg = -1, attr = -1;  // which argument or attribute it takes
    bool integer = false;     // an attribute declared int
  };
  TorchScriptFunction() = default;
  dispatch::Status match_arguments();

  std::string what_;
  std::shared_ptr<const dispatch::OpSchema> schema_;
  std::vector<int> outputs_;
  std::shared_ptr<torch::jit::CompilationUnit> unit_;
  torch::jit::Function* function_ = nullptr;
  std::vector<Formal> formals_;
};

}  // namespace niche::ops
