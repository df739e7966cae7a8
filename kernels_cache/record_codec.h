// KernelRecord <-> flatbuffers. Every decoded buffer passes the flatbuffers Verifier and then a check of each
// value's range, so that a decoded record can be launched from without further checks of its form.
//
// Thread-safety: pure functions. Cost: some 2 µs a record of usual size, plus copying source and artefact.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dispatch/base/status.h"
#include "kernels_cache/entry_file.h"
#include "kernels_cache/record.h"

namespace niche::kernels_cache {

// Ranges and forms: names not empty and without control characters, axes within bounds, symbols C
// identifiers, positive divisors, SHA-256 in hex. kInvalid names the field. The artefact's own digest is not
// computed here.
dispatch::Status validate(const KernelRecord& record);

// The payload without the artefact. Requires: validate(record).ok().
std::vector<uint8_t> encode_record(const KernelRecord& record);
// kCorrupt says which check failed. `artefact` is left empty.
dispatch::Result<KernelRecord> decode_record(std::span<const uint8_t> payload);

// A whole entry, as it stands in a file. kInvalid: see validate; also when artefact_sha256 is not the
// artefact's.
dispatch::Result<std::vector<uint8_t>> encode_entry(const KernelRecord& record, const EnvironmentTag& tag);
// A whole entry held in memory, artefact checked.
std::optional<KernelRecord> decode_entry(std::span<const uint8_t> bytes, const EnvironmentTag& tag,
                                         const std::string& where, Miss* miss);

enum class Part : uint8_t { kRecord, kRecordAndArtefact };
// From a file. With kRecord the artefact is neither read nor checked.
std::optional<KernelRecord> read_entry(const Directory& directory, const std::string& name,
                                       const EnvironmentTag& tag, Part part, Miss* miss);

}  // namespace niche::kernels_cache
