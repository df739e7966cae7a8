#include "runtime/ops/user_document.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "evolve/definition_json.h"

namespace niche::ops {
namespace {

using namespace niche::dispatch;
using json = nlohmann::ordered_json;

// The name becomes part of file names and kernel names.
bool good_name(const std::string& s) {
  return !s.empty() && s.size() <= 64 &&
         std::ranges::all_of(s, [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

class Extras {
 public:
  Extras(const json& niche, UserDocument& doc) : niche_(niche), doc_(doc) {}

  Status read() {
    doc_.sorted.assign(doc_.schema.args.size(), false);
    doc_.scale.assign(doc_.schema.args.size(), 1.0);
    NICHE_RETURN_IF_ERROR(each("constants", [&](int arg, const json&) {
      doc_.schema.args[static_cast<size_t>(arg)].constant = true;
      return Status();
    }));
    NICHE_RETURN_IF_ERROR(each("sorted", [&](int arg, const json&) {
      doc_.sorted[static_cast<size_t>(arg)] = true;
      return Status();
    }));
    NICHE_RETURN_IF_ERROR(each("scale", [&](int arg, const json& v) {
      if (!v.is_number() || v.get<double>() <= 0) return bad("scale: not a positive number");
      doc_.scale[static_cast<size_t>(arg)] = v.get<double>();
      return Status();
    }));
    NICHE_RETURN_IF_ERROR(each("range", [&](int arg, const json& v) {
      if (!v.is_array() || v.size() != 2) return bad("range: not a pair [lo, hi]");
      auto lo = expression(v[0]), hi = expression(v[1]);
      if (!lo.ok()) return lo.status();
      if (!hi.ok()) return hi.status();
      doc_.ranges.emplace(arg, std::pair(*lo, *hi));
      return Status();
    }));
    NICHE_RETURN_IF_ERROR(read_axes());
    if (niche_.contains("flops")) {
      auto e = expression(niche_["flops"]);
      if (!e.ok()) return e.status();
      doc_.flops = *e;
    }
    if (const auto it = niche_.find("fallback"); it != niche_.end()) {
      if (!it->is_string() || it->get<std::string>().empty()) return bad("fallback: not a text");
      doc_.fallback = it->get<std::string>();
    }
    NICHE_RETURN_IF_ERROR(read_tolerance());
    return check_integers();
  }

 private:
  Status bad(const std::string& what) const {
    return invalid("definition '" + doc_.name + "': niche." + what);
  }

  Result<AxisExpression> expression(const json& v) const {
    if (v.is_number_integer()) return AxisExpression::parse(std::to_string(v.get<int64_t>()), doc_.schema);
    if (!v.is_string()) return bad("expression is neither a string nor an integer: " + v.dump());
    auto e = AxisExpression::parse(v.get<std::string>(), doc_.schema);
    if (!e.ok()) return invalid("definition '" + doc_.name + "': " + e.status().message());
    return e;
  }
  // Calls take(argument, value) for each name of a list or object.
  template <typename Take>
  Status each(const char* key, Take take) {
    const auto it = niche_.find(key);
    if (it == niche_.end()) return {};
    if (!it->is_array() && !it->is_object()) return bad(std::string(key) + ": neither a list nor an object");
    for (const auto& item : it->items()) {
      const json& value = item.value();
      if (it->is_array() && !value.is_string())
        return bad(std::string(key) + ": holds " + value.dump() + ", no name");
      const std::string arg = it->is_array() ? value.get<std::string>() : item.key();
      const int i = doc_.schema.arg_index(arg);
      if (i < 0 || doc_.schema.args[static_cast<size_t>(i)].role == ArgRole::kOut)
        return bad(std::string(key) + ": '" + arg + "' is no input");
      NICHE_RETURN_IF_ERROR(take(i, value));
    }
    return {};
  }
  Status read_axes() {
    if (const auto it = niche_.find("derive"); it != niche_.end()) {
      if (!it->is_object()) return bad("derive: not an object");
      for (const auto& [name, value] : it->items()) {
        const int axis = doc_.schema.axis_index(name);
        if (axis < 0 || doc_.schema.axes[static_cast<size_t>(axis)].kind != AxisKind::kDerived)
          return bad("derive: '" + name + "' is not listed in niche.derived");
        auto e = expression(value);
        if (!e.ok()) return e.status();
        doc_.derive.emplace(axis, *e);
      }
    }
    for (size_t i = 0; i < doc_.schema.axes.size(); ++i)
      if (doc_.schema.axes[i].kind == AxisKind::kDerived && !doc_.derive.count(static_cast<int>(i)))
        return bad("derive: no expression for the derived axis '" + doc_.schema.axes[i].name + "'");
    return {};
  }
  Status read_tolerance() {
    const auto it = niche_.find("tolerance");
    if (it == niche_.end()) return {};
    if (!it->is_object()) return bad("tolerance: not an object");
    Tolerance t;
    t.factor = it->value("factor", 2.0);
    t.floor_abs = it->value("floor", 0.0);
    t.reason = it->value("reason", "");
    if (!(t.factor >= 1 && t.factor <= 64)) return bad("tolerance.factor: must be 1 to 64");
    if (!(t.floor_abs >= 0)) return bad("tolerance.floor: negative");
    if (t.reason.empty()) return bad("tolerance.reason: missing; Verdicts show it");
    doc_.tolerance = t;
    return {};
  }
  Status check_integers() const {
    for (size_t i = 0; i < doc_.schema.args.size(); ++i) {
      const ArgSpec& a = doc_.schema.args[i];
      const DLDataType type = a.dtype == "T" ? doc_.dtype : *parse_dtype(a.dtype);
      if (a.role != ArgRole::kOut && !is_float(type) && !doc_.ranges.count(static_cast<int>(i)))
        return bad("range: missing for the integer input '" + a.name +
                   "'; without it no valid input can be made");
    }
    return {};
  }

  const json& niche_;
  UserDocument& doc_;
};

}  // namespace

Result<UserDocument> parse_user_document(std::string_view text) {
  auto parsed = evolve::parse_definition_document(text);
  if (!parsed.ok()) return parsed.status();
  UserDocument doc;
  doc.name = parsed->name.empty() ? parsed->op_type : parsed->name;
  doc.reference = parsed->reference;
  if (!good_name(parsed->op_type))
    return invalid("definition '" + doc.name + "': op_type '" + parsed->op_type +
                   "' must be 1 to 64 letters, digits and underscores");
  auto schema = evolve::schema_from_document(*parsed);
  if (!schema.ok()) return schema.status();
  doc.schema = *schema;
  doc.dtype = *parse_dtype(doc.schema.dtypes.front());
  for (const auto& axis : parsed->axes)
    if (axis.value && !axis.derived) doc.constants.emplace_back(axis.name, *axis.value);
  for (const std::string& c : parsed->constraints) {
    auto e = AxisExpression::parse(c, doc.schema);
    if (!e.ok())
      return unsupported("definition '" + doc.name +
                         "': constraint is not over axes alone: " + e.status().message());
    doc.constraints.push_back(*e);
  }
  const json root = json::parse(text, nullptr, false);
  const json niche = root.contains("niche") ? root["niche"] : json::object();
  try {
    NICHE_RETURN_IF_ERROR(Extras(niche, doc).read());
  } catch (const json::exception& e) {
    return invalid("definition '" + doc.name + "': niche: " + e.what());
  }
  return doc;
}

}  // namespace niche::ops
