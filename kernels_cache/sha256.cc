#include "kernels_cache/sha256.h"

#include <nettle/sha2.h>

namespace niche::kernels_cache {

Digest sha256(std::span<const uint8_t> a, std::span<const uint8_t> b) {
  sha256_ctx ctx;
  sha256_init(&ctx);
  sha256_update(&ctx, a.size(), a.data());
  sha256_update(&ctx, b.size(), b.data());
  Digest digest;
  sha256_digest(&ctx, digest.size(), digest.data());
  return digest;
}

Digest sha256(std::string_view text) {
  return sha256({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

std::string to_hex(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (uint8_t b : bytes) {
    text += kDigits[b >> 4];
    text += kDigits[b & 15];
  }
  return text;
}

}  // namespace niche::kernels_cache
