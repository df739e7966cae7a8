#include "runtime/config.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <variant>

namespace niche {
namespace {

using dispatch::invalid;
using dispatch::Status;

using Member = std::variant<bool RuntimeConfig::*, int RuntimeConfig::*, int64_t RuntimeConfig::*,
                            double RuntimeConfig::*, std::string RuntimeConfig::*,
                            std::vector<std::string> RuntimeConfig::*>;

struct Field {
  std::string_view name;
  Member member;
  double lo = 0, hi = 0;
  std::string_view meaning;
};

constexpr double kBytesMax = 1e15;

const Field kFields[] = {
    {"op_libraries", &RuntimeConfig::op_libraries, 0, 0, "shared objects and JSON Definitions to load"},
    {"disable", &RuntimeConfig::disable, 0, 0, "every call goes to its fallback"},
    {"force", &RuntimeConfig::force, 0, 0, "kernel that serves wherever its Guard holds, or \"fallback\""},
    {"cache_dir", &RuntimeConfig::cache_dir, 0, 0, "directory of verified kernels; empty: none"},
    {"cache_read_only", &RuntimeConfig::cache_read_only, 0, 0,
     "never write to cache_dir; evolution stays off"},
    {"state_dir", &RuntimeConfig::state_dir, 0, 0, "quarantines and probation marks of a read-only cache"},
    {"cache_bytes_max", &RuntimeConfig::cache_bytes_max, 1 << 20, kBytesMax,
     "least useful kernels go past this"},
    {"evolve", &RuntimeConfig::evolve, 0, 0, "run evolution sessions in a worker process"},
    {"worker_program", &RuntimeConfig::worker_program, 0, 0,
     "the niche program; empty: beside libniche, then PATH"},
    {"worker_args", &RuntimeConfig::worker_args, 0, 0, "its arguments"},
    {"python_program", &RuntimeConfig::python_program, 0, 0,
     "interpreter with torch for references in Python; empty: python3 on PATH"},
    {"sessions_max", &RuntimeConfig::sessions_max, 1, 64, "sessions at a time"},
    {"session_seconds_max", &RuntimeConfig::session_seconds_max, 0.1, 86400, "wall time of one session"},
    {"session_evaluations_max", &RuntimeConfig::session_evaluations_max, 1, 1e6,
     "candidates judged in one session"},
    {"session_target_speedup", &RuntimeConfig::session_target_speedup, 0, 1e4,
     "end a session there; 0: none"},
    {"session_cpu_share", &RuntimeConfig::session_cpu_share, 0.01, 1024, "cores for all sessions, averaged"},
    {"session_gap_seconds", &RuntimeConfig::session_gap_seconds, 0, 86400, "rest between two sessions"},
    {"session_nice", &RuntimeConfig::session_nice, 0, 19, "niceness of the worker"},
    {"tuning_device", &RuntimeConfig::tuning_device, 0, 0,
     "\"idle\": sessions run on the least busy device of the class; \"same\": where their operator serves"},
    {"p99_slack", &RuntimeConfig::p99_slack, 1.0, 100, "sessions pause above this multiple of the quiet p99"},
    {"memory_share_max", &RuntimeConfig::memory_share_max, 0.1, 1.0,
     "sessions pause above this share of memory"},
    {"hot_seconds_min", &RuntimeConfig::hot_seconds_min, 0, 86400, "how long an operator is watched first"},
    {"hot_share_min", &RuntimeConfig::hot_share_min, 0, 1, "share of a core that makes an operator hot"},
    {"resident_bytes_max", &RuntimeConfig::resident_bytes_max, 1 << 20, kBytesMax, "code of loaded kernels"},
    {"workspace_bytes_max", &RuntimeConfig::workspace_bytes_max, 0, kBytesMax, "a thread's workspace"},
    {"packed_bytes_max", &RuntimeConfig::packed_bytes_max, 0, kBytesMax, "packed constants, all bindings"},
    {"shadow_arena_bytes", &RuntimeConfig::shadow_arena_bytes, 0, kBytesMax, "inputs waiting for comparison"},
    {"shadow_bytes_per_second", &RuntimeConfig::shadow_bytes_per_second, 0, kBytesMax,
     "copied for comparison"},
    {"time_one_in", &RuntimeConfig::time_one_in, 1, 1 << 24, "calls timed, on average"},
    {"shadow_one_in", &RuntimeConfig::shadow_one_in, 1, 1 << 24,
     "calls compared with the fallback, on average"},
    {"tick_seconds", &RuntimeConfig::tick_seconds, 0.001, 60, "how often the aggregator looks"},
    {"canary_seconds_min", &RuntimeConfig::canary_seconds_min, 0, 86400, "least time in canary"},
    {"probation_calls", &RuntimeConfig::probation_calls, 0, 1e12, "calls until a kernel's probation ends"},
    {"probation_seconds", &RuntimeConfig::probation_seconds, 0, 1e9, "time until a kernel's probation ends"},
    {"group_board", &RuntimeConfig::group_board, 0, 0,
     "file that the ranks of a group agree through, in /dev/shm"},
    {"group_rank", &RuntimeConfig::group_rank, 0, 63, "this server's rank in its group"},
    {"group_ranks", &RuntimeConfig::group_ranks, 0, 64, "ranks of the group; 0: no group"},
    {"group_ops", &RuntimeConfig::group_ops, 0, 0, "operators whose kernels the group chooses; empty: all"},
    {"http_address", &RuntimeConfig::http_address, 0, 0,
     "address:port of /metrics, /status, /health; empty: off"},
};

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
  for (const Field& f : kFields)
    if (f.name == name) return &f;
  return nullptr;
}

// The known key with the smallest edit distance: turns a typing error into a helpful message.
std::string_view nearest_field(std::string_view name) {
  std::string_view best;
  size_t best_distance = 4;
  for (const Field& f : kFields) {
    std::vector<size_t> row(f.name.size() + 1);
    for (size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= name.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j < row.size(); ++j) {
        const size_t next =
            std::min({row[j] + 1, row[j - 1] + 1, diagonal + (name[i - 1] == f.name[j - 1] ? 0u : 1u)});
        diagonal = row[j];
        row[j] = next;
      }
    }
    if (row.back() < best_distance) best_distance = row.back(), best = f.name;
  }
  return best;
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

bool is_number(const Field& f) { return f.member.index() >= 1 && f.member.index() <= 3; }

Status check_range(const Field& f, const RuntimeConfig& c) {
  if (!is_number(f)) return {};
  const double v = std::visit(RangeReader{c}, f.member);
  return v >= f.lo && v <= f.hi ? Status() : out_of_range(f, v);  // a NaN fails both comparisons
}

}  // namespace

Status RuntimeConfig::validate() const {
  for (const Field& f : kFields) NICHE_RETURN_IF_ERROR(check_range(f, *this));
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
  for (const Field& f : kFields) out.push_back({f.name, type_name(f.member), f.lo, f.hi, f.meaning});
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
  constexpr std::string_view kPrefix = "NICHE_";
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

}  // namespace niche
