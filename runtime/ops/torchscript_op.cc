#include "runtime/ops/torchscript_op.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/randint_like.h>
#include <ATen/TensorOperators.h>
#include <c10/core/InferenceMode.h>
#include <torch/jit.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "runtime/ops/aten_op.h"
#include "runtime/ops/tensors.h"
#include "runtime/ops/user_document.h"

namespace niche::ops {
namespace {

using namespace niche::dispatch;

constexpr int64_t kProbeElementsMax = int64_t{1} << 25;  // 256 MiB in fp64

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

class TorchScriptOp final : public OpSpec {
 public:
  // Compiles and matches arguments by name; call probe() before use.
  static Result<std::shared_ptr<TorchScriptOp>> compile(UserDocument doc) {
    const std::string where = "definition '" + doc.name + "': ";
    if (doc.reference.empty()) return unsupported(where + "no reference");
    auto op = std::shared_ptr<TorchScriptOp>(new TorchScriptOp(std::move(doc)));
    try {
      op->unit_ = torch::jit::compile(without_imports(op->doc_.reference));
      op->function_ = op->unit_->find_function(c10::QualifiedName("run"));
    } catch (const std::exception& e) {
      return unsupported(where + "the reference is not TorchScript: " + e.what());
    }
    if (!op->function_) return unsupported(where + "the reference has no function 'run'");
    NICHE_RETURN_IF_ERROR(op->match_arguments());
    return op;
  }

  // Runs the reference on a small problem, in the Definition's types and in fp64: outputs must be as
  // declared, and a reference that pins its precision shows.
  Status probe(const Definition& d);

  const std::shared_ptr<const OpSchema>& schema() const override { return schema_; }
  Status derive_axes(const Definition& d, std::span<int64_t> axes) const override;
  Cost cost(const Problem& p) const override;
  Tolerance tolerance(const Definition&) const override { return tolerance_; }
  int distributions() const override { return static_cast<int>(shape_names().size()); }
  std::string_view distribution_name(int i) const override { return shape_name(static_cast<Shape>(i)); }
  Status make_inputs(const Problem& p, int distribution, uint64_t seed,
                     std::span<const DLTensor> args) const override;
  Status reference(const Problem& p, std::span<const DLTensor> args,
                   std::span<const DLTensor> out) const override;
  int fallback_count() const override { return 1; }
  std::string_view fallback_name(int) const override { return "TorchScript reference"; }
  void run_fallback(int form, const CallFrame& frame) const override;
  std::unique_ptr<NativeArgs> wrap(const Problem& p, void* const* args) const override {
    return std::make_unique<TensorArgs>(p, args);
  }

 private:
  struct Formal {
    int arg = -1, attr = -1;  // which argument or attribute it takes
    bool integer = false;     // an attribute declared int
  };

  explicit TorchScriptOp(UserDocument doc)
      : doc_(std::move(doc)), schema_(std::make_shared<const OpSchema>(doc_.schema)) {
    for (int i = 0; i < static_cast<int>(schema_->args.size()); ++i)
      if (schema_->args[static_cast<size_t>(i)].role == ArgRole::kOut) outputs_.push_back(i);
  }

  std::string where() const { return "definition '" + doc_.name + "': "; }
  Status match_arguments();
  // Results in the order of the schema's outputs; throws where the reference gives something else.
  std::vector<at::Tensor> run(const Definition& d, const at::Tensor* t) const;
  Status check_results(const Problem& p, const std::vector<at::Tensor>& results) const;
  Status check_effects(const Problem& p, const TensorList& inputs) const;
  Status find_precision(const Problem& p, TensorList& inputs);
  void choose_tolerance(double scale, double precision);

  UserDocument doc_;
  std::shared_ptr<const OpSchema> schema_;
  std::vector<int> outputs_;
  std::shared_ptr<torch::jit::CompilationUnit> unit_;
  torch::jit::Function* function_ = nullptr;
  std::vector<Formal> formals_;
  Tolerance tolerance_;
};

Status TorchScriptOp::match_arguments() {
  std::vector<bool> taken(schema_->args.size(), false);
  for (const c10::Argument& a : function_->getSchema().arguments()) {
    Formal f;
    f.arg = schema_->arg_index(a.name());
    f.attr = schema_->attr_index(a.name());
    if (f.arg >= 0 && schema_->args[static_cast<size_t>(f.arg)].role == ArgRole::kOut) f.arg = -1;
    if (f.arg < 0 && f.attr < 0)
      return unsupported(where() + "run() takes '" + a.name() +
                         "', which is neither an input nor an attribute");
    f.integer = a.type()->kind() == c10::TypeKind::IntType;
    if (f.arg >= 0) taken[static_cast<size_t>(f.arg)] = true;
    formals_.push_back(f);
  }
  for (size_t i = 0; i < taken.size(); ++i)
    if (!taken[i] && schema_->args[i].role != ArgRole::kOut)
      return unsupported(where() + "run() does not take the input '" + schema_->args[i].name + "'");
  return {};
}

std::vector<at::Tensor> TorchScriptOp::run(const Definition& d, const at::Tensor* t) const {
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
      TORCH_CHECK(v.isTensor(), where(), "run() returned a tuple that holds a ", v.tagKind());
      tensors.push_back(v.toTensor());
    }
  } else if (result.isGenericDict()) {
    const auto dict = result.toGenericDict();
    for (int arg : outputs_) {
      const auto it = dict.find(schema_->args[static_cast<size_t>(arg)].name);
      TORCH_CHECK(it != dict.end() && it->value().isTensor(), where(), "run() returned no tensor '",
                  schema_->args[static_cast<size_t>(arg)].name, "'");
      tensors.push_back(it->value().toTensor());
    }
  } else {
    TORCH_CHECK(result.isNone() && outputs_.empty(), where(), "run() returned a ", result.tagKind());
  }
  TORCH_CHECK(tensors.size() == outputs_.size(), where(), "run() returned ", tensors.size(),
              " tensors, the Definition has ", outputs_.size(), " outputs");
  return tensors;
}

Status TorchScriptOp::check_results(const Problem& p, const std::vector<at::Tensor>& results) const {
  for (size_t o = 0; o < outputs_.size(); ++o) {
    const int arg = outputs_[o];
    const std::string name = "output '" + schema_->args[static_cast<size_t>(arg)].name + "'";
    const std::vector<int64_t> shape = p.arg_shape(arg);
    if (results[o].sizes() != at::IntArrayRef(shape)) {
      std::ostringstream text;
      text << where() << "the reference gives " << name << " as " << results[o].sizes() << ", declared "
           << at::IntArrayRef(shape) << " at " << p.to_string();
      return unsupported(text.str());
    }
    const bool declared_float = is_float(p.definition->arg_dtype(arg));
    if (declared_float != results[o].is_floating_point())
      return unsupported(where() + "the reference gives " + name + " as " +
                         c10::toString(results[o].scalar_type()) + ", declared " +
                         std::string(dtype_name(p.definition->arg_dtype(arg))));
  }
  return {};
}

Status TorchScriptOp::derive_axes(const Definition&, std::span<int64_t> axes) const {
  for (size_t i = 0; i < schema_->axes.size(); ++i) {
    if (schema_->axes[i].kind == AxisKind::kDerived) {
      auto v = doc_.derive.at(static_cast<int>(i)).evaluate(axes);
      if (!v.ok()) return v.status();
      axes[i] = *v;
    }
    if (axes[i] < 1)
      return invalid("operator '" + schema_->op + "': axis '" + schema_->axes[i].name + "' is " +
                     std::to_string(axes[i]) + ", must be at least 1");
  }
  for (const AxisExpression& c : doc_.constraints) {
    auto v = c.evaluate(axes);
    if (!v.ok()) return v.status();
    if (!*v) return invalid("operator '" + schema_->op + "': constraint '" + c.text() + "' does not hold");
  }
  return {};
}

Cost TorchScriptOp::cost(const Problem& p) const {
  Cost c;
  for (int i = 0; i < static_cast<int>(schema_->args.size()); ++i)
    if (p.definition->has_arg(i))
      c.bytes += static_cast<double>(p.arg_bytes(i)) *
                 (schema_->args[static_cast<size_t>(i)].role == ArgRole::kInOut ? 2 : 1);
  if (doc_.flops) {
    auto v = doc_.flops->evaluate(p.axes);
    c.flops = v.ok() ? static_cast<double>(*v) : 0;
  } else {
    for (size_t i = 0; i < schema_->args.size(); ++i)
      if (schema_->args[i].role != ArgRole::kIn)
        c.flops += static_cast<double>(p.arg_elements(static_cast<int>(i)));
  }
  return c;
}

Status TorchScriptOp::make_inputs(const Problem& p, int distribution, uint64_t seed,
                                  std::span<const DLTensor> args) const {
  if (distribution < 0 || distribution >= distributions())
    return invalid("operator '" + schema_->op + "': no input distribution " + std::to_string(distribution));
  Rng rng(seed * 0x9e3779b97f4a7c15ULL + static_cast<uint64_t>(distribution));
  for (size_t i = 0; i < schema_->args.size(); ++i) {
    if (schema_->args[i].role == ArgRole::kOut || !args[i].data) continue;
    const int64_t n = elements(args[i]);
    if (is_float(args[i].dtype)) {
      fill(args[i], static_cast<Shape>(distribution), rng, doc_.scale[i], 0, doc_.scale[i]);
      continue;
    }
    const auto& range = doc_.ranges.at(static_cast<int>(i));
    auto lo = range.first.evaluate(p.axes), hi = range.second.evaluate(p.axes);
    if (!lo.ok()) return lo.status();
    if (!hi.ok()) return hi.status();
    if (*hi <= *lo)
      return invalid(where() + "niche.range of '" + schema_->args[i].name + "' is empty at " + p.to_string());
    std::vector<int64_t> values(static_cast<size_t>(n));
    for (int64_t& v : values) {
      const bool ends = distribution == static_cast<int>(Shape::kExtremes);
      v = ends                                                     ? (rng.next() & 1 ? *lo : *hi - 1)
          : distribution == static_cast<int>(Shape::kConstantRows) ? *lo
                                                                   : *lo + rng.below(*hi - *lo);
    }
    if (doc_.sorted[i]) std::ranges::sort(values);
    if (same_dtype(args[i].dtype, kI64))
      std::ranges::copy(values, i64(args[i]));
    else if (same_dtype(args[i].dtype, kI32))
      std::ranges::copy(values, reinterpret_cast<int32_t*>(i64(args[i])));
    else
      std::ranges::copy(values, reinterpret_cast<uint8_t*>(i64(args[i])));
  }
  return {};
}

Status TorchScriptOp::reference(const Problem& p, std::span<const DLTensor> args,
                                std::span<const DLTensor> out) const {
  try {
    const c10::InferenceMode guard;
    TensorList t;
    size_t next = 0;
    std::vector<at::Tensor> targets;
    for (size_t i = 0; i < schema_->args.size(); ++i) {
      if (!p.definition->has_arg(static_cast<int>(i))) continue;
      if (schema_->args[i].role == ArgRole::kOut) {
        targets.push_back(view(out[next++]));
        continue;
      }
      const at::Tensor v = view(args[i]);
      // A copy: a reference in TorchScript may update what it likes.
      t[i] = v.is_floating_point() ? v.to(at::kDouble) : v.clone();
      if (schema_->args[i].role == ArgRole::kInOut) {
        at::Tensor target = view(out[next++]);
        target.copy_(t[i]);
        t[i] = target;
      }
    }
    const std::vector<at::Tensor> results = run(*p.definition, t.data());
    NICHE_RETURN_IF_ERROR(check_results(p, results));
    for (size_t o = 0; o < results.size(); ++o) targets[o].copy_(results[o]);
    return {};
  } catch (const std::exception& e) {
    return internal(where() + "reference failed at " + p.to_string() + ": " + e.what());
  }
}

void TorchScriptOp::run_fallback(int, const CallFrame& frame) const {
  TensorList views;
  auto* t = static_cast<at::Tensor*>(frame.native);
  std::optional<c10::InferenceMode> guard;
  if (!t || (t[0].is_inference() && !c10::InferenceMode::is_enabled())) guard.emplace();
  if (!t) {
    make_views(problem_of(frame, schema_), frame.args->p, true, views.data());
    t = views.data();
  }
  std::vector<at::Tensor> results = run(*frame.definition, t);
  for (size_t o = 0; o < results.size(); ++o) {
    const auto arg = static_cast<size_t>(outputs_[o]);
    if (!t[arg].defined())
      results[o] = results[o].to(scalar_type(frame.definition->arg_dtype(outputs_[o]))).contiguous();
    put(t[arg], std::move(results[o]));
  }
}

// --- the probe

// The share of elements that differ.
double changed(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double differ = 0, all = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    differ += at::ne(a[i], b[i]).sum().item<double>();
    all += static_cast<double>(a[i].numel());
  }
  return all > 0 ? differ / all : 0;
}

// Its results are as declared and the same twice, and it writes to nothing but what it says it updates: live calls
// run on the caller's own tensors.
Status TorchScriptOp::check_effects(const Problem& p, const TensorList& inputs) const {
  const auto same = [](const at::Tensor& a, const at::Tensor& b) {
    return at::allclose(a.to(at::kDouble), b.to(at::kDouble), 0, 0, /*equal_nan=*/true);
  };
  std::vector<at::Tensor> before;
  for (int turn = 0; turn < 2; ++turn) {
    TensorList own;
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].defined()) own[i] = inputs[i].clone();
    std::vector<at::Tensor> results = run(*p.definition, own.data());
    NICHE_RETURN_IF_ERROR(check_results(p, results));
    for (size_t i = 0; i < schema_->args.size(); ++i)
      if (inputs[i].defined() && schema_->args[i].role == ArgRole::kIn && !same(own[i], inputs[i]))
        return unsupported(where() + "the reference changes its input '" + schema_->args[i].name +
                           "', which niche.updates does not name");
    for (at::Tensor& r : results) r = r.clone();
    for (size_t o = 0; o < before.size(); ++o)
      if (!same(before[o], results[o]))
        return unsupported(where() + "the reference gives other results for the same inputs");
    before = std::move(results);
  }
  return {};
}

Status TorchScriptOp::find_precision(const Problem& p, TensorList& inputs) {
  const auto wide = [&](double change) {
    TensorList t;
    for (size_t i = 0; i < schema_->args.size(); ++i) {
      if (!inputs[i].defined()) continue;
      t[i] = inputs[i].is_floating_point() ? inputs[i].to(at::kDouble) : inputs[i].clone();
      if (change != 0 &&
          t[i].is_floating_point())  // each element by its own sign: a norm hides a common factor
        t[i].mul_(at::randint_like(t[i], 0, 2).mul_(2 * change).add_(1 - change));
    }
    std::vector<at::Tensor> results = run(*p.definition, t.data());
    std::vector<at::Tensor> floating;
    for (at::Tensor& r : results)
      if (r.is_floating_point()) floating.push_back(r.to(at::kDouble));
    for (size_t i = 0; i < schema_->args.size(); ++i)
      if (schema_->args[i].role == ArgRole::kInOut && t[i].is_floating_point()) floating.push_back(t[i]);
    return floating;
  };
  const std::vector<at::Tensor> exact = wide(0);
  if (exact.empty()) {
    tolerance_ = {true, 0, 0, "integer results: every element must be equal"};
    return {};
  }
  double scale = 0;
  for (const at::Tensor& r : exact) scale = std::max(scale, r.abs().max().item<double>());
  // fp32 holds 2^-24: a change by 2^-40 shows in at most one element of 2^16. bf16 and fp16 hold 2^-9 and
  // 2^-11.
  const bool pinned = changed(exact, wide(0x1p-40)) < 0.1;
  const bool half = pinned && changed(exact, wide(0x1p-17)) < 0.1;
  choose_tolerance(scale, half ? 0x1p-9 : pinned ? 0x1p-24 : 0);
  return {};
}

void TorchScriptOp::choose_tolerance(double scale, double precision) {
  tolerance_ = doc_.tolerance.value_or(Tolerance{
      false, 4, 0, "user operator: 4 times the error of its reference run in the operator's own types"});
  if (precision == 0) return;
  // The reference itself is off by some roundings of the type it pins, and so may be a kernel that is right.
  tolerance_.floor_abs = std::max(tolerance_.floor_abs, scale * precision * (precision < 0x1p-20 ? 32 : 1));
  tolerance_.reason += std::string("; the reference pins its element type (") +
                       (precision < 0x1p-20 ? "fp32" : "bf16 or fp16") +
                       "), so it is no fp64 oracle: the floor is what that type loses";
}

Status TorchScriptOp::probe(const Definition& d) {
  Problem p;
  p.definition = std::shared_ptr<const Definition>(std::shared_ptr<const Definition>(), &d);
  Status last;
  for (int64_t extent : {5, 8, 16, 64, 3, 2, 1, 128}) {
    for (size_t i = 0; i < schema_->axes.size(); ++i)
      p.axes[i] = schema_->axes[i].kind == AxisKind::kVar ? extent : d.const_extents()[i];
    last = derive_axes(d, std::span(p.axes.data(), schema_->axes.size()));
    if (last.ok()) break;
  }
  if (!last.ok()) return invalid(where() + "no small problem found to try it on: " + last.message());
  int64_t total = 0;
  for (int i = 0; i < static_cast<int>(schema_->args.size()); ++i)
    total += d.has_arg(i) ? p.arg_elements(i) : 0;
  if (total > kProbeElementsMax)
    return unsupported(where() + "its constant axes make " + std::to_string(total) + " elements, at most " +
                       std::to_string(kProbeElementsMax) + " are probed");
  try {
    const c10::InferenceMode guard;
    TensorList t;
    std::vector<std::vector<int64_t>> shapes;
    std::vector<DLTensor> views;
    for (int i = 0; i < static_cast<int>(schema_->args.size()); ++i) shapes.push_back(p.arg_shape(i));
    for (int i = 0; i < static_cast<int>(schema_->args.size()); ++i) {
      const auto k = static_cast<size_t>(i);
      const bool input = d.has_arg(i) && schema_->args[k].role != ArgRole::kOut;
      if (input) t[k] = at::empty(shapes[k], at::TensorOptions(at::kCPU).dtype(scalar_type(d.arg_dtype(i))));
      views.push_back({input ? t[k].mutable_data_ptr() : nullptr,
                       {kDLCPU, 0},
                       static_cast<int>(shapes[k].size()),
                       d.arg_dtype(i),
                       shapes[k].data(),
                       nullptr,
                       0});
    }
    NICHE_RETURN_IF_ERROR(make_inputs(p, 0, 1, views));
    NICHE_RETURN_IF_ERROR(check_effects(p, t));
    return find_precision(p, t);
  } catch (const std::exception& e) {
    return unsupported(where() + "the reference failed on a small problem (" + p.to_string() +
                       "): " + e.what());
  }
}

}  // namespace

Result<UserOperator> make_torchscript_op(std::string_view document) {
  auto doc = parse_user_document(document);
  if (!doc.ok()) return doc.status();
  const auto constants = doc->constants;
  const DLDataType dtype = doc->dtype;
  auto op = TorchScriptOp::compile(std::move(*doc));
  if (!op.ok()) return op.status();
  auto definition = Definition::make((*op)->schema(), dtype, constants);
  if (!definition.ok()) return definition.status();
  NICHE_RETURN_IF_ERROR((*op)->probe(**definition));
  return UserOperator{*op, *definition};
}

}  // namespace niche::ops
