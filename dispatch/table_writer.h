// TableWriter: the writer's side of the table: copies the shards that change, splits full ones, builds the
// next Snapshot.
//
// Roles: the publisher alone, under its lock. Nothing here is seen by readers until the Snapshot is
// published. Invariants: (1) a shard that a published Snapshot has is never written again: it is copied
// first, once a batch; (2) a shard holds at
//   most kShardEntriesMax entries while its depth is below kDepthMax, and never more than kShardSlots - 1.
// Progress: not shared. Reclamation: replaced blocks are handed out by take_replaced() and come back through
// recycle(). Cost: a change copies one shard (8 KiB, 0.3 µs warm) once a batch; finish() copies the
// directory. Why not simpler: see table.h.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dispatch/shard_arena.h"
#include "dispatch/table.h"

namespace niche::dispatch {

class TableWriter {
 public:
  static constexpr uint32_t kDepthMax =
      16;  // 65,536 shards; past it (hash flooding) shards fill up, then refuse

  TableWriter();
  ~TableWriter();  // frees every block, in use or not
  TableWriter(const TableWriter&) = delete;
  TableWriter& operator=(const TableWriter&) = delete;

  // Adds or replaces. False: the shard cannot take one more (hash flooding).
  bool upsert(const TableSlot& slot);
  void erase(const ProblemKey& key);

  // The table as it stands now, on a directory of its own; with `serving` false, an empty one. Never fails
  // but for memory.
  Snapshot* finish(uint64_t version, bool serving);
  // Shards that the batch since the last call has replaced: for the retire list.
  std::vector<TableShard*> take_replaced();
  void recycle(TableShard* shard);
  void recycle(Snapshot* snapshot);
  static int64_t bytes(const Snapshot& s);

  uint64_t shards() const { return live_; }
  int64_t table_bytes() const;

 private:
  struct Shard {
    TableShard* block;
    uint32_t count = 0;
    uint32_t depth = 1;  // how many top bits of the hash its entries share
    uint64_t batch = 0;  // the batch in which `block` was made: may still be written
  };
  uint64_t directory_index(uint64_t hash) const { return hash >> (64 - depth_); }
  Shard* writable(uint64_t hash);
  void set_block(Shard* shard, uint64_t hash, TableShard* block);
  bool split(uint64_t hash);

  std::vector<Shard*> directory_;  // 2^depth_ entries; several may name one Shard
  // Their blocks, flat: what finish() copies. Following 4,096 Shards for it cost most of a publication at
  // 100,000 routes.
  std::vector<const TableShard*> blocks_;
  uint32_t depth_ = 1;
  uint64_t batch_ = 1;
  uint64_t live_ = 0;
  TableShard* empty_ = nullptr;
  std::vector<TableShard*> replaced_;
  ShardArena arena_;
  std::vector<Snapshot*> spare_snapshots_;
};

}  // namespace niche::dispatch
