#include "runtime/ops/torchscript_function.h"

#include <torch/jit.h>

#include <algorithm>
#include <sstream>

namespace niche::ops {
namespace {

using namespace niche::dispatch;

// Lines of Python that TorchScript has no use for. Everything else stays, line by line, so that the
// compiler's messages name the right line.
std::string without_imports(const std::string& source) {
  std::istringstream in(source);
  std::string out, line;
  while (std::getline(in, line)) {
    const std::string_view text =
        std::string_view(line).substr(std::min(line.size(), line.find_first_not_of(" \t")));
    const bool drop = text == "import torch" || text == "import math" || text.starts_with("@torch.no_grad") ||
                      text.starts_with("@torch.inference_mode");
    out += drop ? "\n" : line + "\n";
  }
  return out;
}

}  // namespace

TorchScriptFunction::~TorchScriptFunction() = default;

Result<std::unique_ptr<TorchScriptFunction>> TorchScriptFunction::compile(
    const std::string& source, std::shared_ptr<const OpSchema> schema, const std::string& what) {
  auto f = std::unique_ptr<TorchScriptFunction>(new TorchScriptFunction());
  f->what_ = what;
  f->schema_ = std::move(schema);
  for (int i = 0; i < static_cast<int>(f->schema_->args.size()); ++i)
    if (f->schema_->args[static_cast<size_t>(i)].role == ArgRole::kOut) f->outputs_.push_back(i);
  try {
    f->unit_ = torch::jit::compile(without_imports(source));
    f->function_ = f->unit_->find_function(c10::QualifiedName("run"));
  } catch (const std::exception& e) {
    return unsupported(what + " is not TorchScript: " + e.what());
  }
  if (!f->function_) return unsupported(what + " has no function 'run'");
  NICHE_RETURN_IF_ERROR(f->match_arguments());
  return f;
}

Status TorchScriptFunction::match_arguments() {
  std::vector<bool> taken(schema_->args.size(), false);
  for (const c10::Argument& a : function_->getSchema().arguments()) {
    Formal f;
    f.arg = schema_->arg_index(a.name());
    f.attr = schema_->attr_index(a.name());
    if (f.arg >= 0 && schema_->args[static_cast<size_t>(f.arg)].role == ArgRole::kOut) f.arg = -1;
    if (f.arg < 0 && f.attr < 0)
      return unsupported(what_ + ": run() takes '" + a.name() +
                         "', which is neither an input nor an attribute");
    f.integer = a.type()->kind() == c10::TypeKind::IntType;
    if (f.arg >= 0) taken[static_cast<size_t>(f.arg)] = true;
    formals_.push_back(f);
  }
  for (size_t i = 0; i < taken.size(); ++i)
    if (!taken[i] && schema_->args[i].role != ArgRole::kOut)
      return unsupported(what_ + ": run() does not take the input '" + schema_->args[i].name + "'");
  return {};
}

std::vector<at::Tensor> TorchScriptFunction::call(const Definition& d, const at::Tensor* t) const {
  torch::jit::Stack stack;
  stack.reserve(formals_.size());
  for (const Formal& f : formals_) {
    if (f.arg >= 0 && t[f.arg].defined())
      stack.emplace_back(t[f.arg]);
    else if (f.arg >= 0)
      stack.emplace_back();
    else if (f.integer)
      stack.emplace_back(static_cast<int64_t>(d.attrs()[static_cast<size_t>(f.attr)]));
    else
      stack.emplace_back(d.attrs()[static_cast<size_t>(f.attr)]);
  }
  const c10::IValue result = (*function_)(std::move(stack));
  std::vector<at::Tensor> tensors;
  if (result.isTensor()) {
    tensors.push_back(result.toTensor());
  } else if (result.isTuple()) {
    for (const c10::IValue& v : result.toTupleRef().elements()) {
      TORCH_CHECK(v.isTensor(), what_, ": run() returned a tuple that holds a ", v.tagKind());
      tensors.push_back(v.toTensor());
    }
  } else if (result.isGenericDict()) {
    const auto dict = result.toGenericDict();
    for (int arg : outputs_) {
      const auto it = dict.find(schema_->args[static_cast<size_t>(arg)].name);
      TORCH_CHECK(it != dict.end() && it->value().isTensor(), what_, ": run() returned no tensor '",
                  schema_->args[static_cast<size_t>(arg)].name, "'");
      tensors.push_back(it->value().toTensor());
    }
  } else {
    TORCH_CHECK(result.isNone() && outputs_.empty(), what_, ": run() returned a ", result.tagKind());
  }
  TORCH_CHECK(tensors.size() == outputs_.size(), what_, ": run() returned ", tensors.size(),
              " tensors, the Definition has ", outputs_.size(), " outputs");
  return tensors;
}

}  // namespace niche::ops
