#include "runtime/ops/torchscript_op.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/randint_like.h>
#include <ATen/TensorOperators.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>
#include <stdexcept>

#include "evolve/python/python_reference.h"
#include "runtime/ops/aten_op.h"
#include "runtime/ops/tensors.h"
#include "runtime/ops/torchscript_function.h"
#include "runtime/ops/user_document.h"

namespace niche::ops {
namespace {

using namespace niche::dispatch;

constexpr int64_t kProbeElementsMax = int64_t{1} << 25;  // 256 MiB in fp64

using evolve::python::PythonReference;

// Carries a Status through code that throws, as ATen does.
struct PythonFailed : std::runtime_error {
  explicit PythonFailed(Status s) : std::runtime_error(s.message()), status(std::move(s)) {}
  Status status;
};

DLDataType dtype_of(at::ScalarType type) {
  for (const DLDataType t : {kF64, kF32, kF16, kBf16, kI64, kI32})
    if (scalar_type(t) == type) return t;
  return kU8;
}

class TorchScriptOp final : public OpSpec {
 public:
  // Compiles and matches arguments by name; call probe() before use.
  static Result<std::shared_ptr<TorchScriptOp>> compile(UserDocument doc, const PythonHost& python);

  // Runs reference and library forms on a small problem, in the Definition's types and in fp64: outputs must be as
  // declared, the forms must compute what the reference computes, and a reference that pins its precision shows.
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
  int fallback_count() const override { return static_cast<int>(forms_.size()); }
  std::string_view fallback_name(int form) const override { return forms_[static_cast<size_t>(form)].name; }
  void run_fallback(int form, const CallFrame& frame) const override;
  std::unique_ptr<NativeArgs> wrap(const Problem& p, void* const* args) const override {
    return std::make_unique<TensorArgs>(p, args);
  }

 private:
  struct Form {
    std::string_view name;
    std::unique_ptr<TorchScriptFunction> function;
  };

  explicit TorchScriptOp(UserDocument doc)
      : doc_(std::move(doc)), schema_(std::make_shared<const OpSchema>(doc_.schema)) {
    for (int i = 0; i < static_cast<int>(schema_->args.size()); ++i)
      if (schema_->args[static_cast<size_t>(i)].role == ArgRole::kOut) outputs_.push_back(i);
  }

  std::string where() const { return "definition '" + doc_.name + "': "; }
  const TorchScriptFunction& form(int i) const { return *forms_[static_cast<size_t>(i)].function; }
  // What the reference gives on `t`, whose floating tensors are f64; in-out ones are updated. Throws.
  std::vector<at::Tensor> exact(const Problem& p, at::Tensor* t) const;
  std::vector<at::Tensor> ask_python(const Problem& p, at::Tensor* t) const;
  Status check_results(const Problem& p, const std::vector<at::Tensor>& results) const;
  Status check_effects(const Problem& p, const TensorList& inputs, const TorchScriptFunction& f) const;
  Status check_agreement(const Problem& p, double precision) const;
  // Something that computes on f64 tensors: the reference, or a form.
  using Computes = std::function<std::vector<at::Tensor>(const Problem&, at::Tensor*)>;
  struct Precision {
    bool integral = false;  // no output is floating
    double scale = 0;       // the largest output
    double lost = 0;        // what the type it pins loses; 0: it pins none
  };
  Precision find_precision(const Problem& p, const TensorList& inputs, const Computes& computes) const;
  void choose_tolerance(const Precision& reference);
  Result<TensorList> probe_inputs(const Problem& p, int distribution) const;

  UserDocument doc_;
  std::shared_ptr<const OpSchema> schema_;
  std::vector<int> outputs_;
  std::vector<Form> forms_;                  // the reference where it is TorchScript, then niche.fallback
  std::unique_ptr<PythonReference> python_;  // a reference in Python, where this process may run it
  bool reference_is_python_ = false;
  Tolerance tolerance_;
};

Result<std::shared_ptr<TorchScriptOp>> TorchScriptOp::compile(UserDocument doc, const PythonHost& python) {
  auto op = std::shared_ptr<TorchScriptOp>(new TorchScriptOp(std::move(doc)));
  if (op->doc_.reference.empty()) return unsupported(op->where() + "no reference");
  auto reference =
      TorchScriptFunction::compile(op->doc_.reference, op->schema_, op->where() + "the reference");
  if (reference.ok()) op->forms_.push_back({"TorchScript reference", std::move(*reference)});
  if (!reference.ok() && op->doc_.fallback.empty())
    return unsupported(reference.status().message() +
                       " (a reference in Python needs a library form in TorchScript: niche.fallback)");
  if (op->doc_.fallback.empty()) return op;
  auto fallback =
      TorchScriptFunction::compile(op->doc_.fallback, op->schema_, op->where() + "niche.fallback");
  if (!fallback.ok()) return fallback.status();
  op->forms_.push_back({"TorchScript fallback", std::move(*fallback)});
  op->reference_is_python_ = !reference.ok();
  if (op->reference_is_python_ && python.run)
    op->python_ = std::make_unique<PythonReference>(
        evolve::python::PythonSource{op->doc_.name, op->doc_.reference, op->schema_},
        evolve::python::PythonOptions{python.program, {}, {}});
  return op;
}

std::vector<at::Tensor> TorchScriptOp::exact(const Problem& p, at::Tensor* t) const {
  // Where Python may not run (a server), the reference of a shadow comparison is the fallback in fp64: the worker
  // refuses a Definition whose two texts do not agree.
  return python_ ? ask_python(p, t) : form(0).call(*p.definition, t);
}

std::vector<at::Tensor> TorchScriptOp::ask_python(const Problem& p, at::Tensor* t) const {
  std::vector<DLTensor> args, out;
  std::vector<at::Tensor> results, updated;
  std::vector<std::pair<int, at::Tensor>> in_out;
  const auto described = [](const at::Tensor& x) {
    return DLTensor{x.mutable_data_ptr(),
                    {kDLCPU, 0},
                    static_cast<int>(x.dim()),
                    dtype_of(x.scalar_type()),
                    const_cast<int64_t*>(x.sizes().data()),
                    nullptr,
                    0};
  };
  for (int i = 0; i < static_cast<int>(schema_->args.size()); ++i) {
    const auto k = static_cast<size_t>(i);
    const ArgRole role = schema_->args[k].role;
    args.push_back(DLTensor{});
    if (!p.definition->has_arg(i)) continue;
    if (role != ArgRole::kOut) {
      t[i] = t[i].contiguous();
      args.back() = described(t[i]);
    }
    if (role == ArgRole::kIn) continue;
    const DLDataType own = p.definition->arg_dtype(i);
    at::Tensor result = at::empty(
        p.arg_shape(i), at::TensorOptions(at::kCPU).dtype(is_float(own) ? at::kDouble : scalar_type(own)));
    out.push_back(described(result));
    if (role == ArgRole::kInOut)
      in_out.emplace_back(i, result);
    else
      results.push_back(result);
  }
  if (Status s = python_->run(p, args, out); !s.ok()) throw PythonFailed(std::move(s));
  for (const auto& [arg, result] : in_out) t[arg].copy_(result);
  return results;
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
    const std::vector<at::Tensor> results = exact(p, t.data());
    NICHE_RETURN_IF_ERROR(check_results(p, results));
    for (size_t o = 0; o < results.size(); ++o) targets[o].copy_(results[o]);
    return {};
  } catch (const PythonFailed& e) {
    return e.status;
  } catch (const std::exception& e) {
    return internal(where() + "reference failed at " + p.to_string() + ": " + e.what());
  }
}

void TorchScriptOp::run_fallback(int form_index, const CallFrame& frame) const {
  TensorList views;
  auto* t = static_cast<at::Tensor*>(frame.native);
  std::optional<c10::InferenceMode> guard;
  if (!t || (t[0].is_inference() && !c10::InferenceMode::is_enabled())) guard.emplace();
  if (!t) {
    make_views(problem_of(frame, schema_), frame.args->p, true, views.data());
    t = views.data();
  }
  std::vector<at::Tensor> results = form(form_index).call(*frame.definition, t);
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
Status TorchScriptOp::check_effects(const Problem& p, const TensorList& inputs,
                                    const TorchScriptFunction& f) const {
  const auto same = [](const at::Tensor& a, const at::Tensor& b) {
    return at::allclose(a.to(at::kDouble), b.to(at::kDouble), 0, 0, /*equal_nan=*/true);
  };
  std::vector<at::Tensor> before;
  for (int turn = 0; turn < 2; ++turn) {
    TensorList own;
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].defined()) own[i] = inputs[i].clone();
    std::vector<at::Tensor> results = f.call(*p.definition, own.data());
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

// Every floating result, in-out ones too, in fp64.
std::vector<at::Tensor> floating_results(const OpSchema& schema, const std::vector<at::Tensor>& results,
                                         const TensorList& t) {
  std::vector<at::Tensor> floating;
  for (const at::Tensor& r : results)
    if (r.is_floating_point()) floating.push_back(r.to(at::kDouble));
  for (size_t i = 0; i < schema.args.size(); ++i)
    if (schema.args[i].role == ArgRole::kInOut && t[i].is_floating_point()) floating.push_back(t[i]);
  return floating;
}

// Inputs in fp64 and copies of the others: what a reference gets.
TensorList widened(const TensorList& inputs) {
  TensorList t;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].defined())
      t[i] = inputs[i].is_floating_point() ? inputs[i].to(at::kDouble) : inputs[i].clone();
  return t;
}

TorchScriptOp::Precision TorchScriptOp::find_precision(const Problem& p, const TensorList& inputs,
                                                       const Computes& computes) const {
  const auto wide = [&](double change) {
    TensorList t = widened(inputs);
    for (at::Tensor& x : t)
      if (change != 0 && x.defined() &&
          x.is_floating_point())  // each by its own sign: a norm hides a common factor
        x.mul_(at::randint_like(x, 0, 2).mul_(2 * change).add_(1 - change));
    const std::vector<at::Tensor> results = computes(p, t.data());
    return floating_results(*schema_, results, t);
  };
  Precision found;
  const std::vector<at::Tensor> exact = wide(0);
  found.integral = exact.empty();
  for (const at::Tensor& r : exact)
    if (r.numel() > 0) found.scale = std::max(found.scale, r.abs().max().item<double>());
  if (found.integral) return found;
  // fp32 holds 2^-24: a change by 2^-40 shows in at most one element of 2^16. bf16 and fp16 hold 2^-9 and
  // 2^-11.
  const bool pinned = changed(exact, wide(0x1p-40)) < 0.1;
  const bool half = pinned && changed(exact, wide(0x1p-17)) < 0.1;
  found.lost = half ? 0x1p-9 : pinned ? 0x1p-24 : 0;
  return found;
}

void TorchScriptOp::choose_tolerance(const Precision& reference) {
  if (reference.integral) {
    tolerance_ = {true, 0, 0, "integer results: every element must be equal"};
    return;
  }
  tolerance_ = doc_.tolerance.value_or(Tolerance{
      false, 4, 0, "user operator: 4 times the error of its reference run in the operator's own types"});
  if (reference_is_python_)
    tolerance_.reason += python_
                             ? "; the reference is Python, run by " + python_->version()
                             : "; the reference is Python, which only a worker runs: here it is the fallback "
                               "in fp64";
  if (reference.lost == 0) return;
  const bool single = reference.lost < 0x1p-20;
  // The reference itself is off by some roundings of the type it pins, and so may be a kernel that is right.
  tolerance_.floor_abs = std::max(tolerance_.floor_abs, reference.scale * reference.lost * (single ? 32 : 1));
  tolerance_.reason += std::string("; the reference pins its element type (") +
                       (single ? "fp32" : "bf16 or fp16") +
                       "), so it is no fp64 oracle: the floor is what that type loses";
}

// Does niche.fallback compute what the reference computes? Each kernel's error is measured against the one and
// bounded by the error of the other, so a fallback that computes something else would let any kernel pass.
Status TorchScriptOp::check_agreement(const Problem& p, double precision) const {
  const int other = static_cast<int>(forms_.size()) - 1;
  // Two orders of summation in fp64 differ far less than 1e-9; two in a pinned type by some roundings of it.
  const double bound = std::max(1e-9, 32 * precision);
  for (int distribution = 0; distribution < distributions(); ++distribution) {
    auto inputs = probe_inputs(p, distribution);
    if (!inputs.ok()) return inputs.status();
    TensorList a = widened(*inputs), b = widened(*inputs);
    std::vector<at::Tensor> reference = exact(p, a.data());
    std::vector<at::Tensor> fallback = form(other).call(*p.definition, b.data());
    NICHE_RETURN_IF_ERROR(check_results(p, fallback));
    std::vector<int> args = outputs_;
    for (int i = 0; i < static_cast<int>(schema_->args.size()); ++i)
      if (schema_->args[static_cast<size_t>(i)].role == ArgRole::kInOut &&
          a[static_cast<size_t>(i)].defined()) {
        args.push_back(i);
        reference.push_back(a[static_cast<size_t>(i)]);
        fallback.push_back(b[static_cast<size_t>(i)]);
      }
    for (size_t o = 0; o < args.size(); ++o) {
      const at::Tensor x = reference[o].to(at::kDouble), y = fallback[o].to(at::kDouble);
      if (x.numel() == 0) continue;
      double scale = 0;  // of what is a number: infinities must be equal
      if (const at::Tensor finite = x.masked_select(x.isfinite());
          reference[o].is_floating_point() && finite.numel() > 0)
        scale = finite.abs().max().item<double>();
      if (at::allclose(y, x, 0, bound * scale, /*equal_nan=*/true)) continue;
      return unsupported(where() + "niche.fallback does not compute what the reference computes: output '" +
                         schema_->args[static_cast<size_t>(args[o])].name + "' differs by " +
                         std::to_string((x - y).abs().max().item<double>()) + " at " + p.to_string() +
                         " (distribution '" + std::string(distribution_name(distribution)) + "')");
    }
  }
  return {};
}

Result<TensorList> TorchScriptOp::probe_inputs(const Problem& p, int distribution) const {
  const Definition& d = *p.definition;
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
  NICHE_RETURN_IF_ERROR(make_inputs(p, distribution, 1, views));
  return t;
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
    auto inputs = probe_inputs(p, 0);
    if (!inputs.ok()) return inputs.status();
    for (const Form& f : forms_) NICHE_RETURN_IF_ERROR(check_effects(p, *inputs, *f.function));
    if (python_) NICHE_RETURN_IF_ERROR(python_->start());
    const Precision reference =
        find_precision(p, *inputs, [this](const Problem& q, at::Tensor* t) { return exact(q, t); });
    choose_tolerance(reference);
    Status agreed;
    if (forms_.size() > 1 || python_) {
      const Precision last = find_precision(p, *inputs, [this](const Problem& q, at::Tensor* t) {
        return form(static_cast<int>(forms_.size()) - 1).call(*q.definition, t);
      });
      agreed = check_agreement(p, std::max(reference.lost, last.lost));
    }
    // The process that computes references starts an interpreter of its own; this one shared its channel with
    // every process forked from here.
    if (python_) python_->stop();
    return agreed;
  } catch (const PythonFailed& e) {
    return e.status;
  } catch (const std::exception& e) {
    return unsupported(where() + "the reference failed on a small problem (" + p.to_string() +
                       "): " + e.what());
  }
}

}  // namespace

Result<UserOperator> make_torchscript_op(std::string_view document, const PythonHost& python) {
  auto doc = parse_user_document(document);
  if (!doc.ok()) return doc.status();
  const auto constants = doc->constants;
  const DLDataType dtype = doc->dtype;
  auto op = TorchScriptOp::compile(std::move(*doc), python);
  if (!op.ok()) return op.status();
  auto definition = Definition::make((*op)->schema(), dtype, constants);
  if (!definition.ok()) return definition.status();
  NICHE_RETURN_IF_ERROR((*op)->probe(**definition));
  return UserOperator{*op, *definition};
}

}  // namespace niche::ops
