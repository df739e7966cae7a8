#include "kernels_cache/maintenance.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <unordered_map>

namespace niche::kernels_cache {
namespace {

using dispatch::Code;
using dispatch::corrupt;
using dispatch::Result;
using dispatch::Status;
using dispatch::unsupported;

constexpr int64_t kEntryBytesMax = static_cast<int64_t>(kHeaderBytes) + kPayloadBytesMax + kArtefactBytesMax;
constexpr std::string_view kManifestBreak = "---\n";

struct PathParts {
  std::string directory, file;
};
PathParts split(const std::string& path) {
  const std::filesystem::path p(path);
  const std::string parent = p.parent_path().string();
  return {parent.empty() ? "." : parent, p.filename().string()};
}

// Archive manifest: the environment's text, "---", then one "<bytes>" a line, in the order of the entries
// behind it.
std::string manifest_of(const std::string& environment, const std::vector<std::vector<uint8_t>>& entries) {
  std::string text = environment + std::string(kManifestBreak);
  for (const auto& e : entries) text += std::to_string(e.size()) + "\n";
  return text;
}

Result<std::vector<int64_t>> entry_sizes(std::string_view lines, uint64_t attachment_bytes,
                                         const std::string& where) {
  std::vector<int64_t> sizes;
  uint64_t sum = 0;
  while (!lines.empty()) {
    int64_t size = 0;
    const auto [end, error] = std::from_chars(lines.data(), lines.data() + lines.size(), size);
    const size_t used = static_cast<size_t>(end - lines.data());
    if (error != std::errc() || used >= lines.size() || lines[used] != '\n' || size < 0 ||
        size > kEntryBytesMax)
      return corrupt(where + ": manifest line " + std::to_string(sizes.size() + 1));
    lines.remove_prefix(used + 1);
    sizes.push_back(size);
    sum += static_cast<uint64_t>(size);
  }
  if (sum != attachment_bytes) return corrupt(where + ": manifest and size differ");
  return sizes;
}

Status as_status(const Miss& miss) {
  switch (miss.reason) {
    case MissReason::kAbsent:
      return dispatch::not_found(miss.text);
    case MissReason::kIo:
      return dispatch::io_error(miss.text);
    case MissReason::kForeign:
    case MissReason::kStale:
      return unsupported(miss.text);
    default:
      return corrupt(miss.text);
  }
}

}  // namespace

Result<VerifyReport> verify_entries(KernelCache& cache, bool remove_bad) {
  VerifyReport report;
  if (!cache.kernels()) return report;
  const Directory& kernels = *cache.kernels();
  auto names = kernels.list();
  if (!names.ok()) return names.status();
  std::sort(names->begin(), names->end());
  for (const std::string& name : *names) {
    const auto id = KernelId::from_file_name(name);
    Miss miss{MissReason::kForeign, kernels.path() + "/" + name + ": no entry's file name"};
    std::optional<KernelRecord> record;
    if (id) record = read_entry(kernels, name, cache.tag(), Part::kRecordAndArtefact, &miss);
    if (record && kernel_id(*record) != *id) {
      miss = {MissReason::kForeign,
              kernels.path() + "/" + name + ": holds another kernel, '" + record->name + "'"};
      record.reset();
    }
    if (record) {
      ++report.good;
      continue;
    }
    if (miss.reason == MissReason::kAbsent) continue;  // evicted meanwhile
    report.bad.push_back({name, miss.reason, miss.text});
    if (remove_bad && id && miss.reason != MissReason::kIo) NICHE_RETURN_IF_ERROR(cache.remove(*id));
  }
  return report;
}

Result<TransferReport> export_entries(KernelCache& cache, std::vector<KernelId> ids,
                                      const std::string& path) {
  TransferReport report;
  if (ids.empty()) ids = cache.all();
  std::vector<std::vector<uint8_t>> entries;
  uint64_t bytes = 0;
  for (const KernelId& id : ids) {
    Miss miss;
    const auto record = cache.load(id, Part::kRecordAndArtefact, &miss);
    if (!record) {
      report.refused.push_back(miss.text);
      continue;
    }
    auto entry = encode_entry(*record, cache.tag());
    if (!entry.ok()) return entry.status();
    bytes += entry->size();
    if (bytes > static_cast<uint64_t>(kArchiveBytesMax))
      return dispatch::invalid("archive " + path + " would pass " + std::to_string(kArchiveBytesMax) +
                               " bytes");
    entries.push_back(std::move(*entry));
  }
  const PathParts to = split(path);
  auto directory = Directory::open_anywhere(cache.home().files(), to.directory);
  if (!directory.ok()) return directory.status();
  const std::string manifest = manifest_of(cache.environment_text(), entries);
  const std::span<const uint8_t> payload(reinterpret_cast<const uint8_t*>(manifest.data()), manifest.size());
  const auto header = frame_header(FrameKind::kArchive, cache.tag(), payload, bytes);
  std::vector<std::span<const uint8_t>> parts{header, payload};
  for (const auto& e : entries) parts.emplace_back(e);
  NICHE_RETURN_IF_ERROR(directory->write_atomic(to.file, std::span<const std::span<const uint8_t>>(parts)));
  report.done = static_cast<int>(entries.size());
  return report;
}

Result<TransferReport> import_entries(KernelCache& cache, const std::string& path) {
  const PathParts from = split(path);
  auto directory = Directory::open_anywhere(cache.home().files(), from.directory);
  if (!directory.ok()) return directory.status();
  Miss miss;
  Directory::OpenFile file;
  const auto frame = read_frame(*directory, from.file, FrameKind::kArchive, nullptr, &miss, &file);
  if (!frame) return as_status(miss);
  const std::string manifest(frame->payload.begin(), frame->payload.end());
  const size_t cut = manifest.find(kManifestBreak);
  if (cut == std::string::npos) return corrupt(path + ": manifest without its entries");
  const std::string environment = manifest.substr(0, cut);
  if (environment != cache.environment_text())
    return unsupported(path + " was verified in another environment: " +
                       describe_difference(environment, cache.environment_text()));
  auto sizes = entry_sizes(std::string_view(manifest).substr(cut + kManifestBreak.size()),
                           frame->attachment_bytes, path);
  if (!sizes.ok()) return sizes.status();

  std::unordered_map<KernelId, int64_t, KernelIdHash> created;
  for (const auto& e : cache.entries()) created.emplace(e.id, e.created_unix_ns);
  TransferReport report;
  int64_t offset = static_cast<int64_t>(kHeaderBytes + frame->payload.size());
  for (size_t i = 0; i < sizes->size(); ++i) {
    std::vector<uint8_t> bytes(static_cast<size_t>((*sizes)[i]));
    NICHE_RETURN_IF_ERROR(directory->read_exactly(file, bytes.data(), bytes.size(), offset, from.file));
    offset += (*sizes)[i];
    const auto record = decode_entry(bytes, cache.tag(), path + " entry " + std::to_string(i), &miss);
    if (!record) {
      report.refused.push_back(miss.text);
      continue;
    }
    const KernelId id = kernel_id(*record);
    const auto known = created.find(id);
    const bool newer_here = known != created.end() && known->second >= record->created_unix_ns;
    if (newer_here || cache.standings().state(id) >= StandingState::kHeld) {
      ++report.skipped;
      continue;
    }
    auto committed = cache.commit(*record);
    if (!committed.ok()) return committed.status();
    ++report.done;
  }
  return report;
}

Result<PruneReport> prune(KernelCache& cache, const PruneOptions& options) {
  if (cache.options().access == Access::kReadOnly || !cache.kernels())
    return unsupported("the cache at " + cache.home().path() + " is read-only");
  PruneReport report;
  const int64_t now = cache.options().now_unix_ns();
  auto entries = cache.entries();  // most served first
  const auto drop = [&](const KernelCache::EntryInfo& e) -> Status {
    const Status removed = cache.remove(e.id);
    if (!removed.ok() && removed.code() != Code::kNotFound) return removed;
    ++report.entries;
    report.bytes += e.bytes;
    return {};
  };
  for (const auto& e : entries) {
    const bool condemned = options.quarantined && e.standing == StandingState::kQuarantined;
    const bool idle = options.unserved_older_than_ns >= 0 && e.served_calls == 0 &&
                      e.created_unix_ns <= now - options.unserved_older_than_ns;
    if (condemned || idle) NICHE_RETURN_IF_ERROR(drop(e));
  }
  if (options.bytes_max >= 0) {
    entries = cache.entries();
    while (!entries.empty() && cache.bytes() > options.bytes_max) {
      NICHE_RETURN_IF_ERROR(drop(entries.back()));
      entries.pop_back();
    }
  }
  if (options.standings_older_than_ns >= 0) {
    for (const Standing& s : cache.standings().list()) {
      if (s.when_unix_ns > now - options.standings_older_than_ns) continue;
      NICHE_RETURN_IF_ERROR(cache.standings().forget(s.id));
      ++report.standings;
    }
  }
  report.leftovers = cache.home().remove_leftovers(now) + cache.kernels()->remove_leftovers(now);
  if (cache.leases()) report.leases = remove_free_leases(*cache.leases());
  if (options.other_environments) {
    const std::filesystem::path home(cache.home().path());
    std::error_code ec;
    for (const auto& sibling : std::filesystem::directory_iterator(home.parent_path(), ec)) {
      // Only what a cache made: a directory with an environment.txt in it.
      if (sibling.path() == home || !std::filesystem::exists(sibling.path() / "environment.txt", ec))
        continue;
      if (sibling.is_symlink(ec)) continue;
      std::filesystem::remove_all(sibling.path(), ec);
      if (ec) return dispatch::io_error(sibling.path().string() + ": " + ec.message());
      ++report.environments;
    }
  }
  return report;
}

}  // namespace niche::kernels_cache
