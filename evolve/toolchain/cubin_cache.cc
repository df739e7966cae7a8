#include "evolve/toolchain/cubin_cache.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "kernels_cache/sha256.h"

namespace niche::evolve {
namespace {

constexpr size_t kDigestBytes = 32, kHeaderBytes = kDigestBytes + 8;  // digest, then the log's length

}  // namespace

bool CubinCache::load(const std::string& key, std::vector<uint8_t>* cubin, std::string* log) const {
  if (dir_.empty()) return false;
  std::ifstream in(dir_ + "/" + key + ".cubin", std::ios::binary);
  const std::vector<uint8_t> file{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (file.size() < kHeaderBytes) return false;
  const std::span<const uint8_t> rest = std::span(file).subspan(kDigestBytes);
  const kernels_cache::Digest digest = kernels_cache::sha256(rest);
  if (std::memcmp(digest.data(), file.data(), kDigestBytes) != 0) return false;
  uint64_t log_bytes = 0;
  std::memcpy(&log_bytes, rest.data(), sizeof log_bytes);
  if (log_bytes > rest.size() - 8) return false;
  log->assign(reinterpret_cast<const char*>(rest.data()) + 8, log_bytes);
  cubin->assign(rest.begin() + 8 + static_cast<std::ptrdiff_t>(log_bytes), rest.end());
  return !cubin->empty();
}

void CubinCache::store(const std::string& key, std::span<const uint8_t> cubin, const std::string& log) const {
  if (dir_.empty()) return;
  const uint64_t log_bytes = log.size();
  std::vector<uint8_t> rest(sizeof log_bytes + log.size() + cubin.size());
  std::memcpy(rest.data(), &log_bytes, sizeof log_bytes);
  std::memcpy(rest.data() + sizeof log_bytes, log.data(), log.size());
  std::memcpy(rest.data() + sizeof log_bytes + log.size(), cubin.data(), cubin.size());
  const kernels_cache::Digest digest = kernels_cache::sha256(rest);
  static std::atomic<uint64_t> counter{0};
  const std::string path = dir_ + "/" + key + ".cubin";
  const std::string part = path + "." + std::to_string(getpid()) + "." + std::to_string(counter.fetch_add(1));
  std::ofstream out(part, std::ios::binary);
  out.write(reinterpret_cast<const char*>(digest.data()), kDigestBytes);
  out.write(reinterpret_cast<const char*>(rest.data()), static_cast<std::streamsize>(rest.size()));
  out.close();
  std::error_code ec;
  if (out) std::filesystem::rename(part, path, ec);
  if (!out || ec) std::filesystem::remove(part, ec);
}

}  // namespace niche::evolve
