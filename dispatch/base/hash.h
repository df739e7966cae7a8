// Hashes for identities that live in memory and in file names. Not cryptographic: artefacts are checked by
// SHA-256 (kernels_cache/). Source: FNV-1a for the byte stream, finished with the splitmix64 mixer (Steele et
// al., 2014).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace niche::dispatch {

// splitmix64's finaliser: a bijection on 64 bits with good avalanche. About 1 ns.
constexpr uint64_t mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  x ^= x >> 31;
  return x;
}

// Stable across processes and machines; byte-wise, so for names, not for the hot path.
constexpr uint64_t hash_bytes(std::string_view bytes, uint64_t seed = 0) {
  uint64_t h = 0xcbf29ce484222325ULL ^ mix64(seed);
  for (char c : bytes) {
    h ^= static_cast<unsigned char>(c);
    h *= 0x100000001b3ULL;
  }
  return mix64(h);
}

}  // namespace niche::dispatch
