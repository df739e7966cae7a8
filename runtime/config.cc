#include "runtime/config.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/config_table.h"
#include "runtime/near_name.h"

namespace niche {
namespace {

using dispatch::invalid;
using dispatch::Status;

using Member = ConfigMember;
using Field = ConfigRow;

std::string_view type_name(const Member& m) {
  static constexpr std::string_view kNames[] = {"bool", "int", "int", "number", "text", "list"};
  return kNames[m.index()];
}

std::string number_text(double v) {
  std::ostringstream s;
  s << v;
  return s.str();
}

Status out_of_range(const Field& f, double v) {
  return invalid("config key '" + std::string(f.name) + "' is " + number_text(v) + "; it must be within " +
                 number_text(f.lo) + " and " + number_text(f.hi));
}

const Field* find_field(std::string_view name) {
  for (const Field& f : config_table())
    if (f.name == name) return &f;
  return nullptr;
}

std::string_view nearest_field(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Field& f : config_table()) names.push_back(f.name);
  return nearest_name(name, names);
}

Status unknown_key(std::string_view key, std::string_view origin) {
  std::string m = std::string(origin) + ": unknown config key '" + std::string(key) + "'";
  const std::string_view near = nearest_field(key);
  if (!near.empty()) m += "; did you mean '" + std::string(near) + "'?";
  return invalid(std::move(m));
}

Status wrong_type(const Field& f, std::string_view origin, const std::string& got) {
  return invalid(std::string(origin) + ": config key '" + std::string(f.name) + "' takes a " +
                 std::string(type_name(f.member)) + ", not " + got);
}

struct JsonSetter {
  const nlohmann::json& v;
  RuntimeConfig* c;
  bool operator()(bool RuntimeConfig::*m) const { return v.is_boolean() && (c->*m = v.get<bool>(), true); }
  bool operator()(double RuntimeConfig::*m) const { return v.is_number() && (c->*m = v.get<double>(), true); }
  bool operator()(std::string RuntimeConfig::*m) const {
    return v.is_string() && (c->*m = v.get<std::string>(), true);
  }
  bool operator()(int64_t RuntimeConfig::*m) const {
    return v.is_number_integer() && (c->*m = v.get<int64_t>(), true);
  }
  bool operator()(int RuntimeConfig::*m) const {
    if (!v.is_number_integer()) return false;
    const int64_t x = v.get<int64_t>();
    if (x != static_cast<int>(x)) return false;
    c->*m = static_cast<int>(x);
    return true;
  }
  bool operator()(std::vector<std::string> RuntimeConfig::*m) const {
    if (!v.is_array()) return false;
    std::vector<std::string> out;
    for (const auto& e : v) {
      if (!e.is_string()) return false;
      out.push_back(e.get<std::string>());
    }
    c->*m = std::move(out);
    return true;
  }
};

struct TextSetter {
  const std::string& v;
  RuntimeConfig* c;
  bool operator()(bool RuntimeConfig::*m) const {
    for (const char* yes : {"1", "true", "on", "yes"})
      if (v == yes) return c->*m = true, true;
    for (const char* no : {"", "0", "false", "off", "no"})
      if (v == no) return c->*m = false, true;
    return false;
  }
  template <typename Number>
  bool number(Number* out) const {
    std::istringstream s(v);
    s.imbue(std::locale::classic());
    Number x{};
    if (!(s >> x) || s.peek() != std::istringstream::traits_type::eof()) return false;
    *out = x;
    return true;
  }
  bool operator()(int RuntimeConfig::*m) const { return number(&(c->*m)); }
  bool operator()(int64_t RuntimeConfig::*m) const { return number(&(c->*m)); }
  bool operator()(double RuntimeConfig::*m) const { return number(&(c->*m)); }
  bool operator()(std::string RuntimeConfig::*m) const { return c->*m = v, true; }
  bool operator()(std::vector<std::string> RuntimeConfig::*m) const {
    std::vector<std::string> out;
    std::istringstream s(v);
    for (std::string part; std::getline(s, part, ':');)
      if (!part.empty()) out.push_back(part);
    c->*m = std::move(out);
    return true;
  }
};

struct RangeReader {
  const RuntimeConfig& c;
  double operator()(int RuntimeConfig::*m) const { return c.*m; }
  double operator()(int64_t RuntimeConfig::*m) const { return static_cast<double>(c.*m); }
  double operator()(double RuntimeConfig::*m) const { return c.*m; }
  template <typename Other>
  double operator()(Other RuntimeConfig::*) const {
    return std::nan("");
  }
};

// As the environment would spell it.
struct DefaultText {
  const RuntimeConfig& c;
  std::string operator()(bool RuntimeConfig::*m) const { return c.*m ? "true" : "false"; }
  std::string operator()(int RuntimeConfig::*m) const { return std::to_string(c.*m); }
  std::string operator()(int64_t RuntimeConfig::*m) const { return std::to_string(c.*m); }
  std::string operator()(double RuntimeConfig::*m) const { return number_text(c.*m); }
  std::string operator()(std::string RuntimeConfig::*m) const { return c.*m; }
  std::string operator()(std::vector<std::string> RuntimeConfig::*m) const {
    std::string text;
    for (const std::string& one : c.*m) text += (text.empty() ? "" : ":") + one;
    return text;
  }
};

constexpr std::string_view kPrefix = "NICHE_";

std::string environment_name(std::string_view key) {
  std::string name(kPrefix);
  for (char ch : key) name += static_cast<char>(std::toupper(static_cast<unsigned char>(ch)));
  return name;
}

bool is_number(const Field& f) { return f.member.index() >= 1 && f.member.index() <= 3; }

Status check_range(const Field& f, const RuntimeConfig& c) {
  if (!is_number(f)) return {};
  const double v = std::visit(RangeReader{c}, f.member);
  return v >= f.lo && v <= f.hi ? Status() : out_of_range(f, v);  // a NaN fails both comparisons
}

}  // namespace

Status RuntimeConfig::validate() const {
  for (const Field& f : config_table()) NICHE_RETURN_IF_ERROR(check_range(f, *this));
  if (cuda_devices < 0 || cuda_devices > 64)
    return invalid("RuntimeConfig::cuda_devices is " + std::to_string(cuda_devices) +
                   "; 0 to 64 are possible");
  if (tuning_device != "idle" && tuning_device != "same")
    return invalid("config key 'tuning_device' is '" + tuning_device + "'; it must be 'idle' or 'same'");
  if (group_ranks != 0 && group_board.empty())
    return invalid("config key 'group_board' is empty; a group of " + std::to_string(group_ranks) +
                   " ranks needs a file that all of them open");
  if (group_ranks != 0 && group_rank >= group_ranks)
    return invalid("config key 'group_rank' is " + std::to_string(group_rank) +
                   "; the group has ranks 0 to " + std::to_string(group_ranks - 1));
  if (!http_address.empty()) {
    const size_t colon = http_address.rfind(':');
    const std::string port = colon == std::string::npos ? "" : http_address.substr(colon + 1);
    const bool digits =
        !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos;
    if (colon == 0 || !digits || std::stoi(port) > 65535)
      return invalid("config key 'http_address' is '" + http_address + "'; it must be <address>:<port>");
  }
  return {};
}

std::vector<ConfigField> config_fields() {
  std::vector<ConfigField> out;
  const RuntimeConfig defaults;
  for (const Field& f : config_table())
    out.push_back({f.name, type_name(f.member), f.lo, f.hi, f.meaning, f.unit, environment_name(f.name),
                   std::visit(DefaultText{defaults}, f.member)});
  return out;
}

Status apply_json(std::string_view text, std::string_view origin, RuntimeConfig* config) {
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& e) {
    return invalid(std::string(origin) + ": " + e.what());
  }
  if (!json.is_object()) return invalid(std::string(origin) + ": the config must be a JSON object");
  RuntimeConfig next = *config;
  for (const auto& [key, value] : json.items()) {
    const Field* f = find_field(key);
    if (f == nullptr) return unknown_key(key, origin);
    if (!std::visit(JsonSetter{value, &next}, f->member)) return wrong_type(*f, origin, value.dump());
    NICHE_RETURN_IF_ERROR(check_range(*f, next));
  }
  *config = std::move(next);
  return {};
}

Status apply_file(const std::string& path, RuntimeConfig* config) {
  std::ifstream in(path);
  if (!in) return dispatch::errno_status("config file '" + path + "'");
  std::ostringstream text;
  text << in.rdbuf();
  return apply_json(text.str(), path, config);
}

Status apply_environment(const char* const* environment, RuntimeConfig* config) {
  constexpr std::string_view kForeign[] = {"NICHE_TEST_", "NICHE_BENCH_", "NICHE_DEMO_"};
  RuntimeConfig next = *config;
  std::vector<std::pair<std::string, std::string>> entries;
  for (const char* const* e = environment; e != nullptr && *e != nullptr; ++e) {
    const std::string_view entry = *e;
    const size_t equals = entry.find('=');
    if (!entry.starts_with(kPrefix) || equals == std::string_view::npos) continue;
    bool foreign = false;
    for (std::string_view p : kForeign) foreign = foreign || entry.starts_with(p);
    if (!foreign) entries.emplace_back(entry.substr(0, equals), entry.substr(equals + 1));
  }
  for (const auto& [name, value] : entries)
    if (name == "NICHE_CONFIG") NICHE_RETURN_IF_ERROR(apply_file(value, &next));
  for (const auto& [name, value] : entries) {
    if (name == "NICHE_CONFIG") continue;
    std::string key = name.substr(kPrefix.size());
    for (char& ch : key) ch = static_cast<char>(std::tolower(static_cast<unsigned char>(ch)));
    const Field* f = find_field(key);
    if (f == nullptr) return unknown_key(key, "environment variable " + name);
    if (!std::visit(TextSetter{value, &next}, f->member))
      return wrong_type(*f, "environment variable " + name, "'" + value + "'");
    NICHE_RETURN_IF_ERROR(check_range(*f, next));
  }
  *config = std::move(next);
  return {};
}

Status apply_disable_variable(RuntimeConfig* config) {
  const char* text = std::getenv("NICHE_DISABLE");
  if (text == nullptr) return {};
  RuntimeConfig said;
  if (!TextSetter{text, &said}(&RuntimeConfig::disable))
    return wrong_type(*find_field("disable"), "environment variable NICHE_DISABLE",
                      std::string("'").append(text).append("'"));
  config->disable = config->disable || said.disable;
  return {};
}

}  // namespace niche
