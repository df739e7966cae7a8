#include "runtime/ops/aten_op.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "runtime/ops/tensors.h"

namespace niche::ops {

using namespace niche::dispatch;

AtenOp::AtenOp(Table table)
    : table_(std::move(table)), schema_(std::make_shared<const OpSchema>(std::move(table_.schema))) {
  for (size_t i = 0; i < schema_->axes.size(); ++i) {
    const AxisSpec& a = schema_->axes[i];
    const bool empty_ok = std::ranges::find(table_.may_be_empty, a.name) != table_.may_be_empty.end();
    least_[i] = a.kind == AxisKind::kDerived ? INT64_MIN : empty_ok ? 0 : 1;
  }
}

Status AtenOp::derive_axes(const Definition& d, std::span<int64_t> axes) const {
  for (size_t i = 0; i < schema_->axes.size(); ++i)
    if (axes[i] < least_[i]) [[unlikely]]
      return invalid("operator '" + schema_->op + "': axis '" + schema_->axes[i].name + "' is " +
                     std::to_string(axes[i]) + ", must be at least " + std::to_string(least_[i]));
  return table_.derive ? table_.derive(d, axes) : Status();
}

Cost AtenOp::cost(const Problem& p) const {
  Cost c;
  c.flops = table_.flops ? table_.flops(p) : 0;
  if (table_.bytes) {
    c.bytes = table_.bytes(p);
    return c;
  }
  for (int i = 0; i < static_cast<int>(schema_->args.size()); ++i) {
    if (!p.definition->has_arg(i)) continue;
    const bool twice = schema_->args[static_cast<size_t>(i)].role == ArgRole::kInOut;
    c.bytes += static_cast<double>(p.arg_bytes(i)) * (twice ? 2 : 1);
  }
  return c;
}

std::string_view AtenOp::distribution_name(int distribution) const {
  return table_.distributions[static_cast<size_t>(distribution)];
}

Status AtenOp::make_inputs(const Problem& p, int distribution, uint64_t seed,
                           std::span<const DLTensor> args) const {
  if (distribution < 0 || distribution >= distributions())
    return invalid("operator '" + schema_->op + "': no input distribution " + std::to_string(distribution) +
                   ", there are " + std::to_string(distributions()));
  Rng rng(seed * 0x9e3779b97f4a7c15ULL + static_cast<uint64_t>(distribution));
  table_.fill(p, distribution, rng, args);
  return {};
}

Status AtenOp::reference(const Problem& p, std::span<const DLTensor> args,
                         std::span<const DLTensor> out) const {
  try {
    const c10::InferenceMode guard;
    TensorList t;
    size_t next_out = 0;
    for (size_t i = 0; i < schema_->args.size(); ++i) {
      if (!p.definition->has_arg(static_cast<int>(i))) continue;
      const ArgRole role = schema_->args[i].role;
      if (role == ArgRole::kIn) {
        const at::Tensor v = view(args[i]);
        t[i] = v.is_floating_point() ? v.to(at::kDouble) : v;
        continue;
      }
      if (next_out == out.size())
        return invalid("operator '" + schema_->op + "': reference got " + std::to_string(out.size()) +
                       " output tensors, too few");
      t[i] = view(out[next_out++]);
      if (role == ArgRole::kInOut)
        t[i].copy_(view(args[i]));
      else
        t[i].zero_();
    }
    table_.reference(*p.definition, t.data());
    return {};
  } catch (const std::exception& e) {
    return internal("operator '" + schema_->op + "': reference failed at " + p.to_string() + ": " + e.what());
  }
}

int64_t AtenOp::written_elements(const Problem& p, int arg, std::span<const DLTensor> args) const {
  return table_.written ? table_.written(p, arg, args) : p.arg_elements(arg);
}

bool AtenOp::fallback_applies(int form, const Definition& d) const {
  const Form& f = table_.forms[static_cast<size_t>(form)];
  return !f.applies || f.applies(d);
}

void AtenOp::run_fallback(int form, const CallFrame& frame) const {
  const Form& f = table_.forms[static_cast<size_t>(form)];
  if (frame.native) {
    auto* t = static_cast<at::Tensor*>(frame.native);
    // Inference tensors cannot be updated outside InferenceMode, and a server that made them is inside. The
    // evaluator and the shadow thread need not know of it.
    if (t[0].is_inference() && !c10::InferenceMode::is_enabled()) [[unlikely]] {
      const c10::InferenceMode guard;
      f.run(*frame.definition, t);
    } else {
      f.run(*frame.definition, t);
    }
    return;
  }
  const c10::InferenceMode guard;
  TensorList t;
  // Library forms run on ATen's current stream: a caller with tensors on a device has set it to its own.
  make_views(problem_of(frame, schema_), frame.args->p, true, t.data(), device_of(frame));
  f.run(*frame.definition, t.data());
}

std::unique_ptr<NativeArgs> AtenOp::wrap(const Problem& p, void* const* args) const {
  return std::make_unique<TensorArgs>(p, args);
}

std::vector<std::string_view> shape_names() {
  std::vector<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(Shape::kExtremes); ++i)
    names.push_back(shape_name(static_cast<Shape>(i)));
  return names;
}

}  // namespace niche::ops
