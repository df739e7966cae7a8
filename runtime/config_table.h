// The table behind RuntimeConfig: one row a key. File, environment, validation, messages and `niche config` read it.
//
// Thread-safety: constant.
#pragma once

#include <span>
#include <string_view>
#include <variant>

#include "runtime/config.h"

namespace niche {

using ConfigMember = std::variant<bool RuntimeConfig::*, int RuntimeConfig::*, int64_t RuntimeConfig::*,
                                  double RuntimeConfig::*, std::string RuntimeConfig::*,
                                  std::vector<std::string> RuntimeConfig::*>;

struct ConfigRow {
  std::string_view name;
  ConfigMember member;
  double lo = 0, hi = 0;  // of a number
  std::string_view unit;  // "bytes", "s", ...; empty: none
  std::string_view meaning;
};

std::span<const ConfigRow> config_table();

}  // namespace niche
