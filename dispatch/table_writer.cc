#include "dispatch/table_writer.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace niche::dispatch {
namespace {

constexpr uint64_t kMask = kShardSlots - 1;

// A Snapshot and its directory in one block.
struct SnapshotBlock {
  Snapshot snapshot;
  uint64_t capacity;  // directory entries that fit
  const TableShard* entries[1];
};
size_t block_bytes(uint64_t entries) { return sizeof(SnapshotBlock) + entries * sizeof(const TableShard*); }
SnapshotBlock* block_of(Snapshot* s) { return reinterpret_cast<SnapshotBlock*>(s); }

// The slot that holds `key`, or the empty one where it would go. Requires: an empty slot somewhere.
TableSlot* seek(TableShard* shard, const ProblemKey& key, uint64_t hash) {
  for (uint64_t i = hash & kMask;; i = (i + 1) & kMask) {
    TableSlot& s = shard->slots[i];
    if (s.key.w0 == 0 || s.key == key) return &s;
  }
}

void clear(TableShard* shard) { std::memset(static_cast<void*>(shard), 0, sizeof(TableShard)); }

// Linear probing without tombstones: entries after the hole move back where their probe allows it.
void remove_at(TableShard* shard, uint64_t hole) {
  for (uint64_t i = (hole + 1) & kMask; shard->slots[i].key.w0 != 0; i = (i + 1) & kMask) {
    const uint64_t home = shard->slots[i].key.hash() & kMask;
    if (((i - home) & kMask) >= ((i - hole) & kMask)) {
      shard->slots[hole] = shard->slots[i];
      hole = i;
    }
  }
  shard->slots[hole] = TableSlot{};
}

}  // namespace

TableWriter::TableWriter() {
  empty_ = arena_.take();
  clear(empty_);
  directory_.resize(2);
  for (Shard*& s : directory_) {
    s = new Shard{empty_};
    ++live_;
  }
  blocks_.assign(2, empty_);
}

TableWriter::~TableWriter() {
  for (uint64_t i = 0; i < directory_.size();) {
    const Shard* s = directory_[i];
    i += uint64_t{1} << (depth_ - s->depth);
    delete s;
  }
  for (Snapshot* s : spare_snapshots_) std::free(s);
}

// `hash`: of any key of the shard.
void TableWriter::set_block(Shard* s, uint64_t hash, TableShard* block) {
  s->block = block;
  const uint64_t span = uint64_t{1} << (depth_ - s->depth);
  const uint64_t first = hash >> (64 - s->depth) << (depth_ - s->depth);
  std::fill_n(blocks_.begin() + static_cast<std::ptrdiff_t>(first), span, block);
}

TableWriter::Shard* TableWriter::writable(uint64_t hash) {
  Shard* s = directory_[directory_index(hash)];
  if (s->batch == batch_) return s;
  TableShard* copy = arena_.take();
  std::memcpy(static_cast<void*>(copy), s->block, sizeof(TableShard));
  if (s->block != empty_) replaced_.push_back(s->block);
  s->batch = batch_;
  set_block(s, hash, copy);
  return s;
}

// Splits the shard of `hash` by one more bit. False: it is as deep as shards get.
bool TableWriter::split(uint64_t hash) {
  Shard* s = writable(hash);
  if (s->depth == kDepthMax) return false;
  if (s->depth == depth_) {
    std::vector<Shard*> twice(directory_.size() * 2);
    for (size_t i = 0; i < twice.size(); ++i) twice[i] = directory_[i / 2];
    directory_ = std::move(twice);
    std::vector<const TableShard*> twice_blocks(directory_.size());
    for (size_t i = 0; i < twice_blocks.size(); ++i) twice_blocks[i] = blocks_[i / 2];
    blocks_ = std::move(twice_blocks);
    ++depth_;
  }
  auto* high = new Shard{arena_.take(), 0, s->depth + 1, batch_};
  clear(high->block);
  ++live_;
  TableShard* low = arena_.take();
  clear(low);
  const uint64_t bit = uint64_t{1} << (63 - s->depth);
  uint32_t low_count = 0;
  for (const TableSlot& e : s->block->slots) {
    if (e.key.w0 == 0) continue;
    const uint64_t h = e.key.hash();
    if (h & bit) {
      *seek(high->block, e.key, h) = e;
      ++high->count;
    } else {
      *seek(low, e.key, h) = e;
      ++low_count;
    }
  }
  recycle(s->block);  // made in this batch, seen by nobody
  s->count = low_count;
  ++s->depth;
  const uint64_t low_hash = hash & ~bit,
                 high_hash = hash | bit;  // of keys of either half, as far as depth goes
  set_block(s, low_hash, low);
  set_block(high, high_hash, high->block);
  const uint64_t span = uint64_t{1} << (depth_ - high->depth);
  const uint64_t first = high_hash >> (64 - high->depth) << (depth_ - high->depth);
  std::fill_n(directory_.begin() + static_cast<std::ptrdiff_t>(first), span, high);
  return true;
}

bool TableWriter::upsert(const TableSlot& slot) {
  const uint64_t h = slot.key.hash();
  for (;;) {
    Shard* s = writable(h);
    TableSlot* at = seek(s->block, slot.key, h);
    if (at->key.w0 != 0) {
      *at = slot;
      return true;
    }
    if (s->count < kShardEntriesMax) {
      *at = slot;
      ++s->count;
      return true;
    }
    if (split(h)) continue;
    if (s->count == kShardSlots - 1) return false;
    *at = slot;
    ++s->count;
    return true;
  }
}

void TableWriter::erase(const ProblemKey& key) {
  const uint64_t h = key.hash();
  const Shard* now = directory_[directory_index(h)];
  if (seek(now->block, key, h)->key.w0 == 0) return;
  Shard* s = writable(h);
  remove_at(s->block, static_cast<uint64_t>(seek(s->block, key, h) - s->block->slots));
  --s->count;
}

Snapshot* TableWriter::finish(uint64_t version, bool serving) {
  const uint64_t entries = serving ? directory_.size() : 2;
  SnapshotBlock* b = nullptr;
  while (!spare_snapshots_.empty() && b == nullptr) {
    b = block_of(spare_snapshots_.back());
    spare_snapshots_.pop_back();
    if (b->capacity < entries) {
      std::free(b);
      b = nullptr;
    }
  }
  if (b == nullptr) {
    const size_t bytes = (block_bytes(entries) + 63) / 64 * 64;
    void* p = std::aligned_alloc(64, bytes);
    if (p == nullptr) throw std::bad_alloc();
    b = static_cast<SnapshotBlock*>(p);
    b->capacity = entries;
  }
  new (&b->snapshot) Snapshot();
  b->snapshot.version = version;
  b->snapshot.shift = serving ? 64 - depth_ : 63;
  b->snapshot.directory = b->entries;
  if (serving) {
    std::copy(blocks_.begin(), blocks_.end(), b->entries);
  } else {
    std::fill_n(b->entries, entries, empty_);
  }
  return &b->snapshot;
}

std::vector<TableShard*> TableWriter::take_replaced() {
  ++batch_;
  return std::exchange(replaced_, {});
}

void TableWriter::recycle(TableShard* shard) { arena_.give(shard); }

void TableWriter::recycle(Snapshot* snapshot) {
  if (spare_snapshots_.size() < 4) {
    spare_snapshots_.push_back(snapshot);
  } else {
    std::free(snapshot);
  }
}

int64_t TableWriter::bytes(const Snapshot& s) {
  return static_cast<int64_t>(block_bytes(uint64_t{1} << (64 - s.shift)));
}

int64_t TableWriter::table_bytes() const {
  return arena_.bytes() + static_cast<int64_t>(block_bytes(directory_.size()));
}

}  // namespace niche::dispatch
