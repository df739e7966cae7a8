#include "kernels_cache/kernel_id.h"

#include <algorithm>

#include "kernels_cache/sha256.h"

namespace niche::kernels_cache {
namespace {

constexpr std::string_view kSuffix = ".kc";

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

std::string KernelId::hex() const { return to_hex(bytes); }

std::string KernelId::file_name() const { return hex() + std::string(kSuffix); }

std::optional<KernelId> KernelId::from_hex(std::string_view hex) {
  KernelId id;
  if (hex.size() != id.bytes.size() * 2) return std::nullopt;
  for (size_t i = 0; i < id.bytes.size(); ++i) {
    const int hi = digit(hex[2 * i]), lo = digit(hex[2 * i + 1]);
    if (hi < 0 || lo < 0) return std::nullopt;
    id.bytes[i] = static_cast<uint8_t>(hi << 4 | lo);
  }
  return id;
}

std::optional<KernelId> KernelId::from_file_name(std::string_view name) {
  if (!name.ends_with(kSuffix)) return std::nullopt;
  return from_hex(name.substr(0, name.size() - kSuffix.size()));
}

KernelId kernel_id(std::string_view definition, std::string_view kernel, std::string_view source_hash) {
  // NUL separates the parts: none of them may hold one (record_codec checks), so the text is injective.
  std::string text(definition);
  text += '\0';
  text += kernel;
  text += '\0';
  text += source_hash;
  const Digest d = sha256(text);
  KernelId id;
  std::copy_n(d.begin(), id.bytes.size(), id.bytes.begin());
  return id;
}

KernelId kernel_id(const KernelRecord& record) {
  return kernel_id(record.definition, record.name, record.provenance.source_hash);
}

}  // namespace niche::kernels_cache
