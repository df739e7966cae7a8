#include "kernels_cache/entry_file.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels_cache/sha256.h"

namespace niche::kernels_cache {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

constexpr char kMagic[8] = {'N', 'I', 'C', 'H', 'E', 'K', 'C', 1};
constexpr size_t kDigestAt = 48;

struct Header {
  char magic[8];
  uint32_t kind;
  uint32_t version;
  uint64_t payload_bytes;
  uint64_t attachment_bytes;
  EnvironmentTag tag;
  Digest digest;
};
static_assert(sizeof(Header) == kHeaderBytes);

Digest digest_of(const Header& h, std::span<const uint8_t> payload) {
  return sha256({reinterpret_cast<const uint8_t*>(&h), kDigestAt}, payload);
}

std::optional<Header> check_header(std::span<const uint8_t> bytes, uint64_t file_bytes, FrameKind kind,
                                   const EnvironmentTag* tag, const std::string& where, Miss* miss) {
  const auto fail = [&](MissReason reason, const std::string& text) {
    *miss = {reason, where + ": " + text};
    return std::nullopt;
  };
  Header h;
  if (bytes.size() < sizeof h)
    return fail(MissReason::kTruncated,
                "ends at byte " + std::to_string(bytes.size()) + ", inside the header");
  std::memcpy(&h, bytes.data(), sizeof h);
  if (std::memcmp(h.magic, kMagic, sizeof kMagic) != 0)
    return fail(MissReason::kForeign, "no niche entry (magic)");
  if (h.version != kFormatVersion)
    return fail(MissReason::kStale, "format version " + std::to_string(h.version) + ", this build reads " +
                                        std::to_string(kFormatVersion));
  if (h.kind != static_cast<uint32_t>(kind))
    return fail(MissReason::kForeign, "holds kind " + std::to_string(h.kind) + ", not " +
                                          std::to_string(static_cast<uint32_t>(kind)));
  if (h.payload_bytes > static_cast<uint64_t>(kPayloadBytesMax) ||
      h.attachment_bytes >
          static_cast<uint64_t>(kind == FrameKind::kArchive ? kArchiveBytesMax : kArtefactBytesMax))
    return fail(MissReason::kCorrupt, "header names " + std::to_string(h.payload_bytes) + " + " +
                                          std::to_string(h.attachment_bytes) + " bytes, past the bounds");
  const uint64_t want = sizeof h + h.payload_bytes + h.attachment_bytes;
  if (file_bytes != want)
    return fail(MissReason::kTruncated,
                "has " + std::to_string(file_bytes) + " bytes, its header names " + std::to_string(want));
  if (tag != nullptr && h.tag != *tag)
    return fail(MissReason::kForeign, "was written in another environment");
  return h;
}

bool check_digest(const Header& h, std::span<const uint8_t> payload, const std::string& where, Miss* miss) {
  if (digest_of(h, payload) == h.digest) return true;
  *miss = {MissReason::kCorrupt, where + ": checksum mismatch over " + std::to_string(payload.size()) +
                                     " payload bytes at byte " + std::to_string(kHeaderBytes)};
  return false;
}

}  // namespace

EnvironmentTag environment_tag(std::string_view canonical_text) {
  const Digest d = sha256(canonical_text);
  EnvironmentTag tag;
  std::copy_n(d.begin(), tag.size(), tag.begin());
  return tag;
}

const char* miss_reason_name(MissReason reason) {
  switch (reason) {
    case MissReason::kAbsent:
      return "absent";
    case MissReason::kTruncated:
      return "truncated";
    case MissReason::kCorrupt:
      return "corrupt";
    case MissReason::kForeign:
      return "foreign";
    case MissReason::kStale:
      return "stale";
    case MissReason::kHeld:
      return "held";
    case MissReason::kQuarantined:
      return "quarantined";
    case MissReason::kIo:
      return "io";
  }
  return "unknown";
}

Miss miss_of(const dispatch::Status& status) {
  switch (status.code()) {
    case dispatch::Code::kNotFound:
      return {MissReason::kAbsent, status.message()};
    case dispatch::Code::kUnsupported:
      return {MissReason::kForeign, status.message()};
    case dispatch::Code::kCorrupt:
      return {MissReason::kTruncated, status.message()};
    default:
      return {MissReason::kIo, status.message()};
  }
}

std::array<uint8_t, kHeaderBytes> frame_header(FrameKind kind, const EnvironmentTag& tag,
                                               std::span<const uint8_t> payload, uint64_t attachment_bytes) {
  Header h{};
  std::memcpy(h.magic, kMagic, sizeof kMagic);
  h.kind = static_cast<uint32_t>(kind);
  h.version = kFormatVersion;
  h.payload_bytes = payload.size();
  h.attachment_bytes = attachment_bytes;
  h.tag = tag;
  h.digest = digest_of(h, payload);
  std::array<uint8_t, kHeaderBytes> bytes;
  std::memcpy(bytes.data(), &h, sizeof h);
  return bytes;
}

std::optional<Frame> parse_frame(std::span<const uint8_t> bytes, FrameKind kind, const EnvironmentTag& tag,
                                 const std::string& where, Miss* miss) {
  const auto h = check_header(bytes, bytes.size(), kind, &tag, where, miss);
  if (!h) return std::nullopt;
  const auto payload = bytes.subspan(kHeaderBytes, h->payload_bytes);
  if (!check_digest(*h, payload, where, miss)) return std::nullopt;
  return Frame{{payload.begin(), payload.end()}, h->attachment_bytes};
}

std::optional<Frame> read_frame(const Directory& directory, const std::string& name, FrameKind kind,
                                const EnvironmentTag* tag, Miss* miss, Directory::OpenFile* keep_open) {
  auto file = directory.open_file(name);
  if (!file.ok()) {
    *miss = miss_of(file.status());
    return std::nullopt;
  }
  std::array<uint8_t, kHeaderBytes> head;
  const size_t head_bytes = static_cast<size_t>(std::min<int64_t>(file->bytes, kHeaderBytes));
  auto read = directory.read_exactly(*file, head.data(), head_bytes, 0, name);
  const std::string where = directory.path() + "/" + name;
  std::optional<Header> h;
  if (read.ok())
    h = check_header({head.data(), head_bytes}, static_cast<uint64_t>(file->bytes), kind, tag, where, miss);
  else
    *miss = miss_of(read);
  if (!h) return std::nullopt;
  Frame frame{std::vector<uint8_t>(h->payload_bytes), h->attachment_bytes};
  read = directory.read_exactly(*file, frame.payload.data(), frame.payload.size(), kHeaderBytes, name);
  if (!read.ok()) {
    *miss = miss_of(read);
    return std::nullopt;
  }
  if (!check_digest(*h, frame.payload, where, miss)) return std::nullopt;
  if (keep_open != nullptr) *keep_open = std::move(*file);
  return frame;
}

}  // namespace niche::kernels_cache
