#include "dispatch/table.h"

namespace niche::dispatch {
namespace {

constinit const TableShard kNoEntries{};
constinit const TableShard* const kNoDirectory[2] = {&kNoEntries, &kNoEntries};

}  // namespace

Snapshot empty_snapshot(uint64_t version, SnapshotMode mode) {
  static const NicheIndex kNoNiches;
  Snapshot s;
  s.version = version;
  s.mode = mode;
  s.niches = &kNoNiches;
  s.directory = kNoDirectory;
  return s;
}

}  // namespace niche::dispatch
