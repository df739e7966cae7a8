// JSON that a store holds, read as what it may be: texts of a damaged or a foreign store have any shape.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace niche::evolve::report {

inline constexpr int kNestingMax = 64;

// Deeper than any text of niche's own: what walks it would need a stack as deep.
inline bool nested_too_deep(std::string_view text) {
  int depth = 0;
  for (const char c : text) {
    depth += (c == '[' || c == '{') - (c == ']' || c == '}');
    if (depth > kNestingMax) return true;
  }
  return false;
}

// Null: no JSON, or nested too deep.
inline nlohmann::ordered_json parsed(std::string_view text) {
  if (nested_too_deep(text)) return {};
  nlohmann::ordered_json j = nlohmann::ordered_json::parse(text, nullptr, false);
  return j.is_discarded() ? nlohmann::ordered_json() : j;
}

// `fallback` where there is no such key, or it is no string.
inline std::string string_at(const nlohmann::ordered_json& j, const char* key, std::string fallback = {}) {
  const auto at = j.is_object() ? j.find(key) : j.end();
  return at != j.end() && at->is_string() ? at->get<std::string>() : std::move(fallback);
}

}  // namespace niche::evolve::report
