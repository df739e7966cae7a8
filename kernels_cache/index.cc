#include "kernels_cache/index.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "dispatch/base/hash.h"

namespace niche::kernels_cache {
namespace {

struct IndexHead {
  uint64_t count;
  int64_t directory_modified_ns;
};
static_assert(std::is_trivially_copyable_v<IndexEntry> && sizeof(IndexHead) == 16);

}  // namespace

IndexEntry index_entry(const KernelRecord& r, int64_t bytes) {
  IndexEntry e;
  e.id = kernel_id(r);
  e.definition_hash = dispatch::hash_bytes(r.definition);
  e.served_calls = r.served_calls;
  e.bytes = bytes;
  e.created_unix_ns = r.created_unix_ns;
  e.speedup = r.kernel_ns > 0 ? static_cast<float>(r.fallback_ns / r.kernel_ns) : 1.0f;
  return e;
}

void Index::sort() {
  std::sort(entries.begin(), entries.end(), [](const IndexEntry& a, const IndexEntry& b) {
    if (a.served_calls != b.served_calls) return a.served_calls > b.served_calls;
    if (a.created_unix_ns != b.created_unix_ns) return a.created_unix_ns > b.created_unix_ns;
    return a.id < b.id;
  });
}

std::optional<Index> read_index(const Directory& home, const EnvironmentTag& tag, Miss* miss) {
  const auto frame = read_frame(home, kIndexFile, FrameKind::kIndex, &tag, miss);
  if (!frame) return std::nullopt;
  IndexHead head{};
  const std::vector<uint8_t>& p = frame->payload;
  if (p.size() >= sizeof head) std::memcpy(&head, p.data(), sizeof head);
  if (p.size() < sizeof head || head.count != (p.size() - sizeof head) / sizeof(IndexEntry) ||
      p.size() != sizeof head + head.count * sizeof(IndexEntry)) {
    *miss = {MissReason::kCorrupt, home.path() + "/" + kIndexFile + ": count does not fit its size"};
    return std::nullopt;
  }
  Index index;
  index.directory_modified_ns = head.directory_modified_ns;
  index.entries.resize(head.count);
  if (head.count > 0)
    std::memcpy(static_cast<void*>(index.entries.data()), p.data() + sizeof head, p.size() - sizeof head);
  return index;
}

dispatch::Status write_index(const Directory& home, const EnvironmentTag& tag, const Index& index) {
  const IndexHead head{index.entries.size(), index.directory_modified_ns};
  std::vector<uint8_t> payload(sizeof head + index.entries.size() * sizeof(IndexEntry));
  if (static_cast<int64_t>(payload.size()) > kPayloadBytesMax)
    return dispatch::invalid("index of " + std::to_string(index.entries.size()) + " entries is too large");
  std::memcpy(payload.data(), &head, sizeof head);
  if (!index.entries.empty())
    std::memcpy(payload.data() + sizeof head, index.entries.data(), payload.size() - sizeof head);
  const auto header = frame_header(FrameKind::kIndex, tag, payload, 0);
  return home.write_atomic(kIndexFile, {header, payload}, Durability::kReplaceable);
}

}  // namespace niche::kernels_cache
