// MetricsText: the Prometheus text format, version 0.0.4.
//
// Thread-safety: one owner thread.
#pragma once

#include <cstdio>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace niche {

class MetricsText {
 public:
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  MetricsText& counter(std::string_view name, std::string_view help) { return family(name, help, "counter"); }
  MetricsText& gauge(std::string_view name, std::string_view help) { return family(name, help, "gauge"); }

  template <typename Number>
  MetricsText& value(Labels labels, Number v) {
    text_ += name_;
    if (labels.size() != 0) {
      char before = '{';
      for (const auto& [key, label] : labels) {
        text_ += before;
        text_ += key;
        text_ += "=\"";
        escape(label);
        text_ += '"';
        before = ',';
      }
      text_ += '}';
    }
    text_ += ' ';
    if constexpr (std::is_floating_point_v<Number>) {
      char number[32];
      std::snprintf(number, sizeof number, "%.9g", static_cast<double>(v));
      text_ += number;
    } else {
      text_ += std::to_string(v);
    }
    text_ += '\n';
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  MetricsText& family(std::string_view name, std::string_view help, std::string_view type) {
    name_ = name;
    ((((text_ += "# HELP ") += name) += ' ') += help) += '\n';
    ((((text_ += "# TYPE ") += name) += ' ') += type) += '\n';
    return *this;
  }
  void escape(std::string_view label) {
    for (char c : label) {
      if (c == '\\' || c == '"') text_ += '\\';
      if (c == '\n')
        text_ += "\\n";
      else
        text_ += c;
    }
  }
  std::string name_, text_;
};

}  // namespace niche
