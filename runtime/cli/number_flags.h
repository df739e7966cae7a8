// Checks for options that take numbers: a whole decimal number or a finite one and nothing beside it, within bounds. CLI11's
// own Range lets NaN pass, and its conversion to an unsigned type a minus sign.
//
// Thread-safety: pure.
#pragma once

#include <charconv>
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace niche::cli {

// All of `text`; nothing for anything else: spaces, hexadecimal, "nan", "inf", what does not fit.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if constexpr (std::is_floating_point_v<Number>)
    if (!std::isfinite(value)) return std::nullopt;
  return value;
}

template <typename Number>
CLI::Validator number_that(const std::string& is, std::function<bool(Number)> fits) {
  return CLI::Validator(
      [is, fits](std::string& text) {
        const auto value = parse_number<Number>(text);
        return value && fits(*value) ? std::string() : "'" + text + "' is not " + is;
      },
      "");
}

// From `least` to `most`, both included.
inline CLI::Validator number_in(double least, double most) {
  return number_that<double>(
      "a number from " + CLI::detail::to_string(least) + " to " + CLI::detail::to_string(most),
      [=](double v) { return v >= least && v <= most; });
}
inline CLI::Validator whole_in(int64_t least, int64_t most) {
  return number_that<int64_t>("a whole number from " + std::to_string(least) + " to " + std::to_string(most),
                              [=](int64_t v) { return v >= least && v <= most; });
}
// Of seconds and the like; a billion of them are 31 years, and fit wherever they are multiplied.
inline constexpr double kNumberMost = 1e9;
inline CLI::Validator positive() {
  return number_that<double>("a number above 0, a billion at most",
                             [](double v) { return v > 0 && v <= kNumberMost; });
}
inline CLI::Validator not_negative() {
  return number_that<double>("0 or a number above it, a billion at most",
                             [](double v) { return v >= 0 && v <= kNumberMost; });
}
// 64 bits of any value.
inline CLI::Validator seed_number() {
  return number_that<uint64_t>("a whole number from 0 to 18446744073709551615",
                               [](uint64_t) { return true; });
}

}  // namespace niche::cli
