#include "runtime/call_plan.h"

namespace niche::core {

using dispatch::ArgRole;
using dispatch::AxisKind;

dispatch::Result<CallPlan> CallPlan::make(const dispatch::Definition& d, const dispatch::OpSpec& op) {
  const dispatch::OpSchema& schema = *op.schema();
  CallPlan p;
  p.args_ = static_cast<int>(schema.args.size());
  p.axes_ = static_cast<int>(schema.axes.size());
  p.first_output_ = p.args_;
  uint32_t shown = 0;  // axes that an input shows
  for (int i = 0; i < p.axes_; ++i) {
    const AxisKind kind = schema.axes[static_cast<size_t>(i)].kind;
    p.initial_[static_cast<size_t>(i)] =
        kind == AxisKind::kConst ? d.const_extents()[static_cast<size_t>(i)] : -1;
    if (kind == AxisKind::kDerived) p.derived_mask_ |= 1u << i;
  }
  for (int a = 0; a < p.args_; ++a) {
    const dispatch::ArgSpec& spec = schema.args[static_cast<size_t>(a)];
    Arg& arg = p.arg_[static_cast<size_t>(a)];
    arg.role = spec.role;
    arg.present = d.has_arg(a);
    arg.constant = spec.constant;
    arg.rank = static_cast<uint8_t>(spec.shape.size());
    arg.dtype = d.arg_dtype(a);
    arg.element_bytes = static_cast<uint8_t>(dispatch::dtype_bytes(arg.dtype));
    for (size_t k = 0; k < spec.shape.size(); ++k) arg.axis[k] = static_cast<uint8_t>(spec.shape[k]);
    if (spec.role == ArgRole::kOut && p.first_output_ == p.args_) p.first_output_ = a;
    if (!arg.present) continue;
    if (spec.role == ArgRole::kOut) ++p.outputs_;
    if (spec.constant) p.constant_mask_ |= 1u << a;
    if (spec.role == ArgRole::kInOut) p.in_out_mask_ |= 1u << a;
    if (spec.role != ArgRole::kOut)
      for (int axis : spec.shape) shown |= 1u << axis;
  }
  for (int axis : d.var_axes()) {
    if (!(shown >> axis & 1))
      return dispatch::unsupported("operator '" + schema.op + "': no input of " + d.name() + " shows axis '" +
                                   schema.axes[static_cast<size_t>(axis)].name + "'");
    p.var_[static_cast<size_t>(p.vars_++)] = static_cast<uint8_t>(axis);
  }
  return p;
}

std::string CallPlan::describe(const Misfit& m, const dispatch::Definition& d) const {
  const dispatch::OpSchema& schema = d.schema();
  if (m.kind == Misfit::Kind::kCount)
    return d.name() + ": " + std::to_string(m.got) + " arguments given, the schema has " +
           std::to_string(m.want);
  const dispatch::ArgSpec& arg = schema.args[static_cast<size_t>(m.arg)];
  const std::string where = "argument '" + arg.name + "' of " + d.name() + ": ";
  switch (m.kind) {
    case Misfit::Kind::kMissing:
      return where + "is missing";
    case Misfit::Kind::kUnexpected:
      return where + "is given, but the Definition has no such argument";
    case Misfit::Kind::kRank:
      return where + std::to_string(m.got) + " dimensions, not " + std::to_string(m.want);
    case Misfit::Kind::kExtent: {
      const int axis = arg.shape[static_cast<size_t>(m.dim)];
      return where + "dimension " + std::to_string(m.dim) + " is " + std::to_string(m.got) + ", not " +
             std::to_string(m.want) + " (axis " + schema.axes[static_cast<size_t>(axis)].name + ")";
    }
    case Misfit::Kind::kDtype:
      return where + "its element type is not " + std::string(dispatch::dtype_name(d.arg_dtype(m.arg)));
    case Misfit::Kind::kDevice:
      return where + "is not in host memory";
    default:
      return where + "does not fit";
  }
}

}  // namespace niche::core
