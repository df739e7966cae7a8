#include "kb/document.h"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace niche::kb {
namespace {

using dispatch::invalid;
using dispatch::Result;
using dispatch::Status;

constexpr std::array<std::string_view, 5> kTiers{"constraints", "guidance", "hardware", "languages",
                                                 "samples"};

std::string_view trimmed(std::string_view s) {
  const size_t first = s.find_first_not_of(" \t\r");
  return first == std::string_view::npos ? std::string_view()
                                         : s.substr(first, s.find_last_not_of(" \t\r") - first + 1);
}

std::vector<std::string> list_of(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    if (const auto w = trimmed(text.substr(0, comma)); !w.empty()) words.emplace_back(w);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return words;
}

bool parse_metric(std::string_view text, MetricTrigger& m) {
  const size_t at = text.find_first_of("<>");
  if (at == std::string_view::npos) return false;
  m.name = trimmed(text.substr(0, at));
  m.op = text[at];
  const std::string number(trimmed(text.substr(at + 1)));
  char* end = nullptr;
  m.bound = std::strtod(number.c_str(), &end);
  return !m.name.empty() && !number.empty() && *end == '\0';
}

// False: no such field, or a value that it cannot have.
bool set_field(Document& d, std::string_view name, std::string_view value) {
  if (name == "id") return d.id = value, true;
  if (name == "title") return d.title = value, true;
  if (name == "symptom") return d.symptom = value, true;
  if (name == "source") return d.source = value, true;
  if (name == "tier") return d.tier = value, std::find(kTiers.begin(), kTiers.end(), value) != kTiers.end();
  if (name == "platform") return d.platforms = list_of(value), true;
  if (name == "lang") return d.langs = list_of(value), true;
  if (name == "op") return d.ops = list_of(value), true;
  if (name == "phase") return d.phases = list_of(value), true;
  if (name == "bottleneck") return d.bottlenecks = list_of(value), true;
  if (name == "error") return d.errors.emplace_back(value), true;
  if (name == "settings") return d.settings.emplace_back(value), value.find('=') != std::string_view::npos;
  if (name == "metric") return parse_metric(value, d.metrics.emplace_back());
  return false;
}

}  // namespace

Result<Document> parse_document(std::string_view text, const std::string& origin) {
  if (text.size() > kDocumentBytesMax) return invalid(origin + ": more than 64 KiB");
  Document d;
  int number = 0;
  enum class In { kStart, kFields, kBody } in = In::kStart;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    const auto refuse = [&](const std::string& what) {
      return invalid(origin + " line " + std::to_string(number) + ": " + what);
    };
    if (in == In::kStart) {
      if (trimmed(line) != "---") return refuse("no front matter; the first line must be ---");
      in = In::kFields;
    } else if (in == In::kFields) {
      if (trimmed(line) == "---") {
        in = In::kBody;
        continue;
      }
      const size_t colon = line.find(':');
      if (colon == std::string_view::npos) return refuse("'" + std::string(line) + "' is no field");
      const auto name = trimmed(line.substr(0, colon)), value = trimmed(line.substr(colon + 1));
      if (!set_field(d, name, value))
        return refuse("field '" + std::string(name) + "' is unknown, or cannot be '" + std::string(value) +
                      "'");
    } else {
      if (line.starts_with("## ")) d.modules.push_back({std::string(trimmed(line.substr(3))), ""});
      if (!d.modules.empty()) d.modules.back().text.append(line) += '\n';
    }
  }
  if (in != In::kBody) return invalid(origin + ": its front matter does not end");
  if (d.id.empty() || d.title.empty() || d.tier.empty())
    return invalid(origin + ": id, title and tier are needed");
  if (d.modules.empty()) return invalid(origin + ": no section; sections begin with '## '");
  return d;
}

}  // namespace niche::kb
