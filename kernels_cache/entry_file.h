// The frame around everything this folder writes: an 80-byte header, a payload (flatbuffers or index), and,
// for a kernel, its artefact. Every byte is under a SHA-256: header and payload under the frame's, the
// artefact under the one in the record, so that a record can be listed and checked without reading code.
//
//    0 magic "NICHEKC\x01"
//    8 kind u32
//   12 format version u32
//   16 payload bytes u64
//   24 attachment bytes u64
//   32 environment: 16 bytes of SHA-256 of its canonical text
//   48 SHA-256 of bytes [0, 48) and the payload
//   80 payload, then attachment; nothing after it. Little-endian.
//
// Thread-safety: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels_cache/directory.h"
#include "kernels_cache/environment.h"

namespace niche::kernels_cache {

inline constexpr uint32_t kFormatVersion = 1;
inline constexpr size_t kHeaderBytes = 80;
inline constexpr int64_t kPayloadBytesMax = int64_t{16} << 20;
inline constexpr int64_t kArtefactBytesMax = int64_t{256} << 20;
inline constexpr int64_t kArchiveBytesMax = int64_t{16} << 30;

enum class FrameKind : uint32_t {
  kKernel = 1,
  kStanding,
  kProbation,
  kRun,
  kUncleanEnd,
  kIndex,
  kArchive,
  kSeen
};

using EnvironmentTag = std::array<uint8_t, 16>;
EnvironmentTag environment_tag(std::string_view canonical_text);  // of Environment::canonical_text()

// Why an entry is not used. A miss is logged and counted; it is never an error of the call that met it.
enum class MissReason : uint8_t {
  kAbsent,       // no such file
  kTruncated,    // shorter than its header says, or longer
  kCorrupt,      // checksum, flatbuffers verifier or a value out of its range
  kForeign,      // not ours: magic, owner, mode, another environment
  kStale,        // another format version
  kHeld,         // awaits re-verification
  kQuarantined,  // condemned in this environment
  kIo,           // the disk refused
};
inline constexpr int kMissReasonCount = 8;
const char* miss_reason_name(MissReason reason);  // "absent", ...

struct Miss {
  MissReason reason = MissReason::kAbsent;
  std::string text;  // what, which, where
};

struct Frame {
  std::vector<uint8_t> payload;
  uint64_t attachment_bytes = 0;
};

// Header for a payload and an attachment of the given size.
std::array<uint8_t, kHeaderBytes> frame_header(FrameKind kind, const EnvironmentTag& tag,
                                               std::span<const uint8_t> payload, uint64_t attachment_bytes);

// Opens and checks a frame held in memory. `where` names it in the Miss.
std::optional<Frame> parse_frame(std::span<const uint8_t> bytes, FrameKind kind, const EnvironmentTag& tag,
                                 const std::string& where, Miss* miss);

// The same from a file, without reading the attachment. `tag` null: from any environment (an archive).
std::optional<Frame> read_frame(const Directory& directory, const std::string& name, FrameKind kind,
                                const EnvironmentTag* tag, Miss* miss,
                                Directory::OpenFile* keep_open = nullptr);

Miss miss_of(const dispatch::Status& status);

}  // namespace niche::kernels_cache
