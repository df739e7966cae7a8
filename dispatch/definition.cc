#include "dispatch/definition.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "dispatch/base/hash.h"

namespace niche::dispatch {
namespace {

template <typename T>
int index_of(const std::vector<T>& v, std::string_view name) {
  for (size_t i = 0; i < v.size(); ++i)
    if (v[i].name == name) return static_cast<int>(i);
  return -1;
}

// Shortest text that reads back as the same double: a name must not differ by how it was computed.
std::string number(double v) {
  char buf[40];
  for (int digits = 1; digits <= 17; ++digits) {
    std::snprintf(buf, sizeof buf, "%.*g", digits, v);
    double back = 0;
    if (std::sscanf(buf, "%lf", &back) == 1 && back == v) break;
  }
  return buf;
}

std::string known_attrs(const OpSchema& schema) {
  if (schema.attrs.empty()) return "the operator has none";
  std::string names;
  for (const AttrSpec& a : schema.attrs)
    names += (names.empty() ? "" : ", ") + a.name + " (default " + number(a.default_value) + ")";
  return "there are: " + names;
}

Status check_attr(const OpSchema& schema, const AttrSpec& attr, double value) {
  AttrSpec a = attr;
  for (const ArgSpec& arg : schema.args)
    if (arg.optional && a.name == "has_" + arg.name) a.lo = 0, a.hi = 1, a.whole = true;
  // A NaN fails both comparisons.
  if (value >= a.lo && value <= a.hi && (!a.whole || value == std::floor(value))) return {};
  constexpr double kMost = std::numeric_limits<double>::max();
  std::string allowed = a.whole ? "a whole number" : "a finite number";
  if (a.lo > -kMost && a.hi < kMost)
    allowed += " from " + number(a.lo) + " to " + number(a.hi);
  else if (a.lo > -kMost)
    allowed += " of at least " + number(a.lo);
  else if (a.hi < kMost)
    allowed += " of at most " + number(a.hi);
  return invalid("definition of '" + schema.op + "': attribute '" + a.name + "' is " + number(value) +
                 "; it must be " + allowed);
}

}  // namespace

int OpSchema::axis_index(std::string_view name) const { return index_of(axes, name); }
int OpSchema::arg_index(std::string_view name) const { return index_of(args, name); }
int OpSchema::attr_index(std::string_view name) const { return index_of(attrs, name); }

Status OpSchema::validate() const {
  const std::string where = "operator '" + op + "': ";
  if (op.empty()) return invalid("operator without a name");
  if (axes.size() > kMaxAxes) return invalid(where + "more than " + std::to_string(kMaxAxes) + " axes");
  if (args.empty() || args.size() > kMaxArgs)
    return invalid(where + "needs 1 to " + std::to_string(kMaxArgs) + " arguments");
  if (attrs.size() > kMaxAttrs)
    return invalid(where + "more than " + std::to_string(kMaxAttrs) + " attributes");
  int vars = 0;
  for (const AxisSpec& a : axes) vars += a.kind == AxisKind::kVar;
  if (vars > kMaxVarAxes)
    return invalid(where + "more than " + std::to_string(kMaxVarAxes) + " variable axes");
  if (dtypes.empty()) return invalid(where + "no element type listed");
  bool writes = false;
  ArgRole last = ArgRole::kIn;
  for (const ArgSpec& a : args) {
    writes |= a.role != ArgRole::kIn;
    const auto rank = [](ArgRole r) { return r == ArgRole::kIn ? 0 : r == ArgRole::kInOut ? 1 : 2; };
    if (rank(a.role) < rank(last))
      return invalid(where + "argument '" + a.name + "' out of order: inputs, then in-out, then outputs");
    last = a.role;
    for (int axis : a.shape)
      if (axis < 0 || axis >= static_cast<int>(axes.size()))
        return invalid(where + "argument '" + a.name + "' names axis " + std::to_string(axis) +
                       ", the schema has " + std::to_string(axes.size()));
    if (a.optional && attr_index("has_" + a.name) < 0)
      return invalid(where + "optional argument '" + a.name + "' needs the attribute 'has_" + a.name + "'");
    if (a.dtype != "T" && !parse_dtype(a.dtype).ok())
      return invalid(where + "argument '" + a.name + "' has unknown element type '" + a.dtype + "'");
  }
  if (!writes) return invalid(where + "no output");
  return {};
}

Result<std::shared_ptr<const Definition>> Definition::make(
    std::shared_ptr<const OpSchema> schema, DLDataType dtype,
    const std::vector<std::pair<std::string, int64_t>>& const_axes,
    const std::vector<std::pair<std::string, double>>& attrs) {
  NICHE_RETURN_IF_ERROR(schema->validate());
  const std::string where = "definition of '" + schema->op + "': ";
  const std::string type(dtype_name(dtype));
  if (std::find(schema->dtypes.begin(), schema->dtypes.end(), type) == schema->dtypes.end()) {
    std::string listed;
    for (const std::string& t : schema->dtypes) listed += ' ' + t;
    return unsupported(where + "element type " + type + " is not one the operator lists:" + listed);
  }

  auto d = std::shared_ptr<Definition>(new Definition());
  d->dtype_ = dtype;
  d->const_extents_.assign(schema->axes.size(), 0);
  for (const auto& [name, extent] : const_axes) {
    const int i = schema->axis_index(name);
    if (i < 0 || schema->axes[static_cast<size_t>(i)].kind != AxisKind::kConst)
      return invalid(where + "'" + name + "' is not a constant axis");
    if (extent <= 0)
      return invalid(where + "axis '" + name + "' must be positive, got " + std::to_string(extent));
    d->const_extents_[static_cast<size_t>(i)] = extent;
  }
  for (const AttrSpec& a : schema->attrs) d->attrs_.push_back(a.default_value);
  for (const auto& [name, value] : attrs) {
    const int i = schema->attr_index(name);
    if (i < 0) return invalid(where + "unknown attribute '" + name + "'; " + known_attrs(*schema));
    NICHE_RETURN_IF_ERROR(check_attr(*schema, schema->attrs[static_cast<size_t>(i)], value));
    d->attrs_[static_cast<size_t>(i)] = value;
  }

  d->name_ = schema->op + "." + type;
  for (size_t i = 0; i < schema->axes.size(); ++i) {
    const AxisSpec& a = schema->axes[i];
    if (a.kind == AxisKind::kVar) d->var_axes_.push_back(static_cast<int>(i));
    if (a.kind != AxisKind::kConst) continue;
    if (d->const_extents_[i] == 0) return invalid(where + "constant axis '" + a.name + "' has no extent");
    d->name_ += "." + a.name + std::to_string(d->const_extents_[i]);
  }
  for (size_t i = 0; i < schema->attrs.size(); ++i)
    d->name_ += "." + schema->attrs[i].name + number(d->attrs_[i]);
  d->hash_ = hash_bytes(d->name_);
  for (const ArgSpec& a : schema->args) {
    d->present_.push_back(!a.optional ||
                          d->attrs_[static_cast<size_t>(schema->attr_index("has_" + a.name))] != 0);
    d->arg_dtypes_.push_back(a.dtype == "T" ? dtype : *parse_dtype(a.dtype));
  }
  d->schema_ = std::move(schema);
  return std::shared_ptr<const Definition>(std::move(d));
}

double Definition::attr(std::string_view name) const {
  return attrs_[static_cast<size_t>(schema_->attr_index(name))];
}

std::vector<int64_t> Problem::arg_shape(int arg) const {
  std::vector<int64_t> shape;
  for (int axis : definition->schema().args[static_cast<size_t>(arg)].shape)
    shape.push_back(axes[static_cast<size_t>(axis)]);
  return shape;
}

int64_t Problem::arg_elements(int arg) const {
  int64_t n = 1;
  for (int64_t e : arg_shape(arg)) n *= e;
  return n;
}

int64_t Problem::arg_bytes(int arg) const {
  return arg_elements(arg) * static_cast<int64_t>(dtype_bytes(definition->arg_dtype(arg)));
}

std::string Problem::to_string() const {
  std::string text;
  for (int axis : definition->var_axes()) {
    if (!text.empty()) text += ' ';
    text += definition->schema().axes[static_cast<size_t>(axis)].name + "=" +
            std::to_string(axes[static_cast<size_t>(axis)]);
  }
  return text;
}

}  // namespace niche::dispatch
