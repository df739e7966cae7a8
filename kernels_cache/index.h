// Index: the cache's table of contents in one file, hottest kernel first, so that a start need not open
// 10,000 entries.
//
// It is a hint and can always be rebuilt from the entries: a wrong index costs time, never a wrong kernel,
// since each entry is checked when it is loaded. Counters of served calls and the "proven" flag live here
// alone; when it is lost, order starts from the records and kernels pass probation again.
//
// Read with read(2), not mapped: a file that another program truncates while it is mapped, or a disk that
// fails, would be a SIGBUS in the server; a read is an error code. bench/kernels_cache measures both.
//
// Thread-safety: a value. Cost: 0.6 ms to read and check 10,000 entries (640 KB).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels_cache/entry_file.h"
#include "kernels_cache/kernel_id.h"

namespace niche::kernels_cache {

struct IndexEntry {
  static constexpr uint32_t kProven = 1;  // has served its probation in this environment

  KernelId id;
  uint64_t definition_hash = 0;  // Definition::hash()
  int64_t served_calls = 0;
  int64_t bytes = 0;  // of the entry's file
  int64_t created_unix_ns = 0;
  float speedup = 1;  // fallback_ns / kernel_ns at admission
  uint32_t flags = 0;
  uint64_t reserved = 0;

  bool proven() const { return (flags & kProven) != 0; }
};
static_assert(sizeof(IndexEntry) == 64);

// Of a record whose file has `bytes`; not proven.
IndexEntry index_entry(const KernelRecord& record, int64_t bytes);

struct Index {
  int64_t directory_modified_ns = 0;  // of the entries' directory when this index was complete; 0: unknown
  std::vector<IndexEntry> entries;    // most served first; equals: newest first

  void sort();
};

inline constexpr const char* kIndexFile = "index.kx";

// Nothing: absent, torn or of another environment; `miss` says which.
std::optional<Index> read_index(const Directory& home, const EnvironmentTag& tag, Miss* miss);
dispatch::Status write_index(const Directory& home, const EnvironmentTag& tag, const Index& index);

}  // namespace niche::kernels_cache
