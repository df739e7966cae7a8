// KernelId: the identity of a kernel inside one environment, and the name of its files.
//
// It is a digest of (definition, kernel name, source hash), so that a kernel found again has the same id: its
// entry is replaced, and its quarantine still holds. Thread-safety: a value.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "kernels_cache/record.h"

namespace niche::kernels_cache {

struct KernelId {
  std::array<uint8_t, 16> bytes{};

  auto operator<=>(const KernelId&) const = default;
  std::string hex() const;        // 32 lower-case digits
  std::string file_name() const;  // "<hex>.kc"
  static std::optional<KernelId> from_hex(std::string_view hex);
  static std::optional<KernelId> from_file_name(std::string_view name);  // "<hex>.kc" alone
};

KernelId kernel_id(std::string_view definition, std::string_view kernel, std::string_view source_hash);
KernelId kernel_id(const KernelRecord& record);

struct KernelIdHash {
  size_t operator()(const KernelId& id) const {
    size_t h;
    std::memcpy(&h, id.bytes.data(), sizeof h);  // a digest is its own hash
    return h;
  }
};

}  // namespace niche::kernels_cache
