// CubinCache: compiled cubins with their logs in a directory, by the hash of everything that made them.
//
// A file holds its own SHA-256: a damaged or half-written one is a miss. Written by rename, so that several
// processes may share a directory. Not bounded by itself: it lives in a session's scratch or a benchmark's
// folder. Thread-safety: const methods, several threads and processes. Cost: a hit 50 µs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace niche::evolve {

class CubinCache {
 public:
  explicit CubinCache(std::string dir) : dir_(std::move(dir)) {}  // empty: always a miss
  bool load(const std::string& key, std::vector<uint8_t>* cubin, std::string* log) const;
  // A failure leaves the cache without the entry: it costs the next compile, nothing else.
  void store(const std::string& key, std::span<const uint8_t> cubin, const std::string& log) const;

 private:
  std::string dir_;
};

}  // namespace niche::evolve
