#include "evolve/definition_json.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace niche::evolve {
namespace {

using dispatch::ArgRole;
using dispatch::ArgSpec;
using dispatch::AxisKind;
using dispatch::Definition;
using dispatch::invalid;
using dispatch::OpSchema;
using dispatch::Result;
using dispatch::Status;
using json = nlohmann::ordered_json;

constexpr size_t kDocumentBytesMax = size_t{1} << 20;

// The names of the FlashInfer Trace schema.
std::string trace_dtype(DLDataType t) {
  const std::string short_name(dispatch::dtype_name(t));
  if (short_name == "bf16") return "bfloat16";
  const std::string bits = std::to_string(t.bits);
  switch (t.code) {
    case kDLFloat:
      return "float" + bits;
    case kDLInt:
      return "int" + bits;
    case kDLUInt:
      return "uint" + bits;
    default:
      return short_name;
  }
}

// What may stand under "niche", here or in a user's operator (runtime/ops/user_document.h).
constexpr std::array<std::string_view, 13> kNicheKeys{"dtype",   "constants", "updates", "optional", "attrs",
                                                      "derived", "derive",    "range",   "sorted",   "scale",
                                                      "flops",   "tolerance", "fallback"};

// Reads one document; the first error stays in `status` and stops the rest.
class Reader {
 public:
  Result<DefinitionDocument> read(std::string_view text) {
    if (text.size() > kDocumentBytesMax)
      return invalid("definition: " + std::to_string(text.size()) + " bytes, at most 1 MiB is read");
    json root;
    try {
      root = json::parse(text);
    } catch (const json::parse_error& e) {
      return invalid(std::string("definition: not JSON: ") + e.what());
    }
    if (!root.is_object()) return invalid("definition: not a JSON object");
    doc_.name = string_at(root, "name", false);
    doc_.op_type = string_at(root, "op_type", true);
    doc_.reference = string_at(root, "reference", false);
    if (status_.ok()) read_axes(root);
    const json extra = root.contains("niche") ? root["niche"] : json::object();
    if (status_.ok() && !extra.is_object()) fail("niche: not an object");
    if (status_.ok())
      for (const auto& [key, value] : extra.items())
        if (std::find(kNicheKeys.begin(), kNicheKeys.end(), key) == kNicheKeys.end())
          fail("niche: unknown key '" + key + "'");
    if (status_.ok()) read_args(root, "inputs", doc_.inputs);
    if (status_.ok()) read_args(root, "outputs", doc_.outputs);
    if (status_.ok()) read_constraints(root);
    if (status_.ok()) read_extra(extra);
    if (!status_.ok()) return status_;
    return doc_;
  }

 private:
  void fail(const std::string& what) {
    if (status_.ok())
      status_ = invalid("definition '" + (doc_.name.empty() ? doc_.op_type : doc_.name) + "': " + what);
  }
  std::string string_at(const json& object, const char* key, bool required) {
    const auto it = object.find(key);
    if (it == object.end() || it->is_null()) {
      if (required) fail(std::string(key) + ": missing");
      return {};
    }
    if (!it->is_string()) {
      fail(std::string(key) + ": not a string");
      return {};
    }
    return it->get<std::string>();
  }
  void read_axes(const json& root) {
    const auto axes = root.find("axes");
    if (axes == root.end() || !axes->is_object()) return fail("axes: missing or not an object");
    if (axes->size() > dispatch::kMaxAxes)
      return fail("axes: " + std::to_string(axes->size()) + ", at most " +
                  std::to_string(dispatch::kMaxAxes));
    for (const auto& [name, spec] : axes->items()) {
      const std::string where = "axes." + name + ": ";
      if (!spec.is_object()) return fail(where + "not an object");
      DefinitionDocument::Axis axis{name, std::nullopt, false};
      const std::string type = string_at(spec, "type", true);
      if (!status_.ok()) return;
      if (type == "const") {
        const auto value = spec.find("value");
        if (value == spec.end() || !value->is_number_integer())
          return fail(where + "constant without an integer value");
        axis.value = value->get<int64_t>();
        if (*axis.value <= 0) return fail(where + "must be positive, got " + std::to_string(*axis.value));
      } else if (type != "var") {
        return fail(where + "type '" + type + "' is neither 'const' nor 'var'");
      }
      doc_.axes.push_back(std::move(axis));
    }
  }
  bool has_axis(const std::string& name) const {
    return std::any_of(doc_.axes.begin(), doc_.axes.end(), [&](const auto& a) { return a.name == name; });
  }
  void read_args(const json& root, const char* key, std::vector<DefinitionDocument::Arg>& args) {
    const auto it = root.find(key);
    if (it == root.end() || !it->is_object()) return fail(std::string(key) + ": missing or not an object");
    if (it->size() > dispatch::kMaxArgs)
      return fail(std::string(key) + ": " + std::to_string(it->size()) + ", at most " +
                  std::to_string(dispatch::kMaxArgs));
    for (const auto& [name, spec] : it->items()) {
      const std::string where = std::string(key) + "." + name + ": ";
      if (!spec.is_object()) return fail(where + "not an object");
      DefinitionDocument::Arg arg;
      arg.name = name;
      const auto shape = spec.find("shape");
      if (shape != spec.end() && !shape->is_null()) {
        if (!shape->is_array()) return fail(where + "shape is neither an array nor null");
        for (const json& axis : *shape) {
          if (!axis.is_string() || !has_axis(axis.get<std::string>()))
            return fail(where + "shape names " + axis.dump() + ", which is no axis");
          arg.shape.push_back(axis.get<std::string>());
        }
      }
      const std::string type = string_at(spec, "dtype", true);
      if (!status_.ok()) return;
      auto dtype = dispatch::parse_dtype(type);
      if (!dtype.ok()) return fail(where + dtype.status().message());
      arg.dtype = *dtype;
      args.push_back(std::move(arg));
    }
  }
  void read_constraints(const json& root) {
    const auto it = root.find("constraints");
    if (it == root.end() || it->is_null()) return;
    if (!it->is_array()) return fail("constraints: not an array");
    for (const json& c : *it) {
      if (!c.is_string()) return fail("constraints: holds " + c.dump() + ", which is no string");
      doc_.constraints.push_back(c.get<std::string>());
    }
  }
  // Applies `mark` to each name of a list under "niche"; the names must be known to `find`.
  template <typename Find>
  void mark_names(const json& extra, const char* key, Find find) {
    const auto it = extra.find(key);
    if (it == extra.end()) return;
    if (!it->is_array()) return fail(std::string("niche.") + key + ": not an array");
    for (const json& name : *it)
      if (!name.is_string() || !find(name.get<std::string>()))
        return fail(std::string("niche.") + key + ": " + name.dump() + " is not known");
  }
  void read_extra(const json& extra) {
    const std::string dtype = string_at(extra, "dtype", false);
    if (!dtype.empty()) {
      auto parsed = dispatch::parse_dtype(dtype);
      if (!parsed.ok()) return fail("niche.dtype: " + parsed.status().message());
      doc_.dtype = *parsed;
    }
    if (const auto attrs = extra.find("attrs"); attrs != extra.end()) {
      if (!attrs->is_object()) return fail("niche.attrs: not an object");
      for (const auto& [name, value] : attrs->items()) {
        if (!value.is_number()) return fail("niche.attrs." + name + ": not a number");
        doc_.attrs.emplace_back(name, value.get<double>());
      }
    }
    mark_names(extra, "derived", [this](const std::string& name) {
      for (auto& axis : doc_.axes)
        if (axis.name == name) return axis.derived = true;
      return false;
    });
    const auto input = [this](const std::string& name) -> DefinitionDocument::Arg* {
      for (auto& arg : doc_.inputs)
        if (arg.name == name) return &arg;
      return nullptr;
    };
    mark_names(extra, "updates", [&](const std::string& name) {
      auto* arg = input(name);
      return arg != nullptr && (arg->updated = true);
    });
    mark_names(extra, "optional", [&](const std::string& name) {
      auto* arg = input(name);
      return arg != nullptr && (arg->optional = true);
    });
  }

  DefinitionDocument doc_;
  Status status_;
};

Result<DLDataType> element_type(const DefinitionDocument& doc) {
  if (doc.dtype) return *doc.dtype;
  for (const auto* args : {&doc.inputs, &doc.outputs})
    for (const auto& arg : *args)
      if (dispatch::is_float(arg.dtype)) return arg.dtype;
  if (!doc.inputs.empty()) return doc.inputs.front().dtype;
  return invalid("definition '" + doc.op_type +
                 "': no argument and no niche.dtype to take the element type from");
}

// Arguments that the document lists must be the operator's, in name, shape and type.
Status check_args(const DefinitionDocument& doc, const Definition& d) {
  const OpSchema& schema = d.schema();
  const std::string where = "definition of '" + schema.op + "': ";
  for (const auto* args : {&doc.inputs, &doc.outputs}) {
    for (const auto& arg : *args) {
      const int i = schema.arg_index(arg.name);
      if (i < 0) return invalid(where + "the operator has no argument '" + arg.name + "'");
      const ArgSpec& spec = schema.args[static_cast<size_t>(i)];
      if ((args == &doc.inputs) != (spec.role != ArgRole::kOut))
        return invalid(where + "'" + arg.name + "' stands on the wrong side (input or output)");
      if (!dispatch::same_dtype(arg.dtype, d.arg_dtype(i)))
        return invalid(where + "'" + arg.name + "' is " + std::string(dispatch::dtype_name(d.arg_dtype(i))) +
                       ", the document says " + std::string(dispatch::dtype_name(arg.dtype)));
      std::vector<std::string> shape;
      for (int axis : spec.shape) shape.push_back(schema.axes[static_cast<size_t>(axis)].name);
      if (shape != arg.shape)
        return invalid(where + "'" + arg.name + "' has another shape than the operator's");
    }
  }
  for (size_t i = 0; i < schema.args.size(); ++i) {
    if (!d.has_arg(static_cast<int>(i))) continue;
    const auto& args = schema.args[i].role == ArgRole::kOut ? doc.outputs : doc.inputs;
    const auto same = [&](const auto& a) { return a.name == schema.args[i].name; };
    if (std::none_of(args.begin(), args.end(), same))
      return invalid(where + "argument '" + schema.args[i].name + "' is missing");
  }
  return {};
}

}  // namespace

Result<DefinitionDocument> parse_definition_document(std::string_view text) { return Reader().read(text); }

Result<std::shared_ptr<const Definition>> definition_from_json(std::string_view text,
                                                               const dispatch::OpRegistry& ops) {
  auto parsed = parse_definition_document(text);
  if (!parsed.ok()) return parsed.status();
  const DefinitionDocument& doc = *parsed;
  const dispatch::OpSpec* op = ops.find(doc.op_type);
  if (op == nullptr)
    return dispatch::not_found("definition '" + doc.name + "': no operator '" + doc.op_type + "'");
  const OpSchema& schema = *op->schema();
  std::vector<std::pair<std::string, int64_t>> constants;
  for (const auto& axis : doc.axes) {
    const int i = schema.axis_index(axis.name);
    const std::string where = "definition of '" + doc.op_type + "': axis '" + axis.name + "' ";
    if (i < 0) return invalid(where + "is unknown to the operator");
    const AxisKind kind = schema.axes[static_cast<size_t>(i)].kind;
    if (axis.value && kind == AxisKind::kVar) return invalid(where + "is variable, the document fixes it");
    if (!axis.value && kind == AxisKind::kConst)
      return invalid(where + "is constant, the document leaves it open");
    if (axis.value && kind == AxisKind::kConst) constants.emplace_back(axis.name, *axis.value);
  }
  auto dtype = element_type(doc);
  if (!dtype.ok()) return dtype.status();
  auto made = Definition::make(op->schema(), *dtype, constants, doc.attrs);
  if (!made.ok()) return made.status();
  NICHE_RETURN_IF_ERROR(check_args(doc, **made));
  return made;
}

Result<OpSchema> schema_from_document(const DefinitionDocument& doc) {
  auto dtype = element_type(doc);
  if (!dtype.ok()) return dtype.status();
  OpSchema schema;
  schema.op = doc.op_type;
  schema.dtypes = {std::string(dispatch::dtype_name(*dtype))};
  for (const auto& axis : doc.axes)
    schema.axes.push_back({axis.name, axis.derived ? AxisKind::kDerived
                                      : axis.value ? AxisKind::kConst
                                                   : AxisKind::kVar});
  const auto add = [&](const DefinitionDocument::Arg& arg, ArgRole role) {
    ArgSpec spec;
    spec.name = arg.name;
    spec.role = role;
    spec.optional = arg.optional;
    spec.dtype = dispatch::same_dtype(arg.dtype, *dtype) ? "T" : std::string(dispatch::dtype_name(arg.dtype));
    for (const std::string& axis : arg.shape) spec.shape.push_back(schema.axis_index(axis));
    schema.args.push_back(std::move(spec));
  };
  for (const auto& arg : doc.inputs)
    if (!arg.updated) add(arg, ArgRole::kIn);
  for (const auto& arg : doc.inputs)
    if (arg.updated) add(arg, ArgRole::kInOut);
  for (const auto& arg : doc.outputs) add(arg, ArgRole::kOut);
  for (const auto& [name, value] : doc.attrs) schema.attrs.push_back({name, value});
  NICHE_RETURN_IF_ERROR(schema.validate());
  return schema;
}

std::string definition_to_json(const Definition& d, std::string_view reference,
                               const std::vector<std::string>& constraints) {
  const OpSchema& schema = d.schema();
  json root, axes = json::object(), inputs = json::object(), outputs = json::object(), extra = json::object();
  json derived = json::array(), updates = json::array(), optional = json::array(), attrs = json::object();
  for (size_t i = 0; i < schema.axes.size(); ++i) {
    const auto& axis = schema.axes[i];
    if (axis.kind == AxisKind::kConst)
      axes[axis.name] = {{"type", "const"}, {"value", d.const_extents()[i]}};
    else
      axes[axis.name] = {{"type", "var"}};
    if (axis.kind == AxisKind::kDerived) derived.push_back(axis.name);
  }
  for (size_t i = 0; i < schema.args.size(); ++i) {
    const ArgSpec& arg = schema.args[i];
    if (!d.has_arg(static_cast<int>(i))) continue;
    json shape = json::array();
    for (int axis : arg.shape) shape.push_back(schema.axes[static_cast<size_t>(axis)].name);
    json spec = {{"shape", arg.shape.empty() ? json(nullptr) : shape},
                 {"dtype", trace_dtype(d.arg_dtype(static_cast<int>(i)))}};
    (arg.role == ArgRole::kOut ? outputs : inputs)[arg.name] = std::move(spec);
    if (arg.role == ArgRole::kInOut) updates.push_back(arg.name);
    if (arg.optional && arg.role != ArgRole::kOut) optional.push_back(arg.name);
  }
  for (size_t i = 0; i < schema.attrs.size(); ++i) attrs[schema.attrs[i].name] = d.attrs()[i];
  extra["dtype"] = std::string(dispatch::dtype_name(d.dtype()));
  extra["attrs"] = attrs;
  if (!derived.empty()) extra["derived"] = derived;
  if (!updates.empty()) extra["updates"] = updates;
  if (!optional.empty()) extra["optional"] = optional;
  root["name"] = d.name();
  root["op_type"] = schema.op;
  root["axes"] = axes;
  root["inputs"] = inputs;
  root["outputs"] = outputs;
  root["reference"] = reference.empty() ? json(nullptr) : json(std::string(reference));
  root["constraints"] = constraints;
  root["niche"] = extra;
  return root.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace niche::evolve
