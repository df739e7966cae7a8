#include "kernels_cache/environment.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "kernels_cache/sha256.h"

namespace niche::kernels_cache {
namespace {

std::string one_line(std::string_view text) {
  std::string out;
  for (char c : text) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  return out;
}

std::string sorted_line(std::vector<std::string> values, const char* separator) {
  for (std::string& v : values) v = one_line(v);
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  std::string line;
  for (const std::string& v : values) {
    if (!line.empty()) line += separator;
    line += v;
  }
  return line;
}

std::string running_text(const Environment& e) {
  std::string t;
  t += "device_class: " + one_line(e.device_class) + "\n";
  t += "device_model: " + one_line(e.device_model) + "\n";
  t += "isa_flags: " + sorted_line(e.isa_flags, " ") + "\n";
  t += "driver: " + one_line(e.driver) + "\n";
  t += "libraries: " + sorted_line(e.libraries, "; ") + "\n";
  t += "op_libraries: " + sorted_line(e.op_libraries, "; ") + "\n";
  t += "kernel_abi: " + std::to_string(e.kernel_abi) + "\n";
  return t;
}

std::string file_name_safe(std::string_view text) {
  std::string out;
  for (char c : text) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_';
    out += plain ? c : '_';
  }
  if (out.empty() || out[0] == '.') out = "device" + out;
  return out.substr(0, 64);
}

std::map<std::string, std::string> lines_of(std::string_view text) {
  std::map<std::string, std::string> lines;
  std::istringstream in{std::string(text)};
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) lines[line.substr(0, colon)] = line.substr(colon + 2);
  }
  return lines;
}

}  // namespace

std::string Environment::canonical_text() const {
  return running_text(*this) + "compiler: " + one_line(compiler) + "\n";
}

std::string Environment::running_prefix() const {
  return file_name_safe(device_class) + "-" + to_hex(sha256(running_text(*this))).substr(0, 16) + "-";
}

std::string Environment::directory_name() const {
  return running_prefix() + (compiler.empty() ? "any" : to_hex(sha256(one_line(compiler))).substr(0, 8));
}

std::string describe_difference(std::string_view a, std::string_view b) {
  auto left = lines_of(a), right = lines_of(b);
  std::string text;
  for (const auto& [key, value] : left) {
    const auto it = right.find(key);
    const std::string other = it == right.end() ? "(absent)" : it->second;
    if (other == value) continue;
    if (!text.empty()) text += "; ";
    text += key + ": '" + value + "' != '" + other + "'";
  }
  return text;
}

}  // namespace niche::kernels_cache
