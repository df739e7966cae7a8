// ShardArena: memory for table shards: blocks of 8 KiB out of chunks of 2 MiB that the kernel is asked to
// back with huge pages. A table of 1,024 routes lies on some fifty small pages, which a core's first-level
// TLB does not hold beside the kernels' own; on a huge page it takes one entry.
//
// Thread-safety: one thread at a time (the publisher, under its lock). Cost: give and take some ns but for a
// chunk's first use. Bounds: a chunk that is free is given back, unless it is the last spare one; a table's
// first shard costs 2 MiB. Why not simpler: malloc scatters blocks of 8 KiB over small pages, and keeps what
// it is given.
#pragma once

#include <cstdint>
#include <vector>

#include "dispatch/table.h"

namespace niche::dispatch {

class ShardArena {
 public:
  static constexpr size_t kChunkBytes = size_t{2} << 20;
  static constexpr uint32_t kChunkShards = kChunkBytes / sizeof(TableShard);

  ShardArena() = default;
  ~ShardArena();  // with every shard, taken or not
  ShardArena(const ShardArena&) = delete;
  ShardArena& operator=(const ShardArena&) = delete;

  // Not initialised. Throws std::bad_alloc.
  TableShard* take();
  void give(TableShard* shard);
  int64_t bytes() const { return static_cast<int64_t>(chunks_.size() * kChunkBytes); }

 private:
  struct Chunk {
    char* memory;
    uint32_t used = 0;               // blocks ever taken: the rest was never touched
    std::vector<TableShard*> spare;  // given back; the last one is the warmest
    uint32_t live() const { return used - static_cast<uint32_t>(spare.size()); }
  };
  std::vector<Chunk> chunks_;
};

}  // namespace niche::dispatch
