// SHA-256, by nettle (libnettle8): a pure function without library start-up. OpenSSL's first digest costs 2.0
// ms of initialisation, a fifth of the whole warm-start budget; both hash 1.3 GB/s here (SHA-NI). See
// docs/kernels_cache.md.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace niche::kernels_cache {

using Digest = std::array<uint8_t, 32>;

// Digest of the concatenation a ++ b. About 0.8 ns a byte.
Digest sha256(std::span<const uint8_t> a, std::span<const uint8_t> b = {});
Digest sha256(std::string_view text);

std::string to_hex(std::span<const uint8_t> bytes);  // lower case

}  // namespace niche::kernels_cache
