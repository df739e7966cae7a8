#include "dispatch/table_writer.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
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
  for (uint64_t i = shard->places[Place::bucket_of(hash)].slot_of(hash);; i = (i + 1) & kMask) {
    TableSlot& s = shard->slots[i];
    if (s.key.w0 == 0 || s.key == key) return &s;
  }
}

void clear(TableShard* shard) { std::memset(static_cast<void*>(shard), 0, sizeof(TableShard)); }

// The shifts that a bucket is tried with: their slots come out of bits shift + 6 to shift + 12. Below the first, the
// bits that chose the bucket, equal for all in it; above the last, those that chose the shard.
constexpr uint32_t kShiftMin = 0, kShiftMax = 35;
static_assert(kShardBuckets == 1u << (kShiftMin + 6) && sizeof(TableSlot) == 1u << 6);
static_assert(kShiftMax + 13 <= 64 - TableWriter::kDepthMax);

struct Entry {
  TableSlot slot;
  uint64_t hash;
};

// Writes the shard anew: every bucket, the fullest first, gets the first Place that puts each of its keys on a
// slot that is free. What finds none (equal hashes; a shard beyond half load) goes last, by linear probing.
void lay_out(const std::vector<Entry>& entries, TableShard* shard) {
  clear(shard);
  uint8_t first[kShardBuckets + 1] = {}, order[kShardBuckets], of[kShardSlots];
  for (const Entry& e : entries) ++first[Place::bucket_of(e.hash) + 1];
  for (uint32_t b = 0; b < kShardBuckets; ++b) {
    first[b + 1] = static_cast<uint8_t>(first[b + 1] + first[b]);
    order[b] = static_cast<uint8_t>(b);
  }
  uint8_t next[kShardBuckets];
  std::copy_n(first, kShardBuckets, next);
  for (size_t i = 0; i < entries.size(); ++i)
    of[next[Place::bucket_of(entries[i].hash)]++] = static_cast<uint8_t>(i);
  const auto size = [&](uint8_t b) { return first[b + 1] - first[b]; };
  std::sort(order, order + kShardBuckets, [&](uint8_t a, uint8_t b) { return size(a) > size(b); });
  const auto fits = [&](uint8_t b, Place place) {
    uint64_t taken[2] = {};
    for (int i = first[b]; i < first[b + 1]; ++i) {
      const uint64_t at = place.slot_of(entries[of[i]].hash), bit = uint64_t{1} << (at & 63);
      if (shard->slots[at].key.w0 != 0 || (taken[at >> 6] & bit) != 0) return false;
      taken[at >> 6] |= bit;
    }
    return true;
  };
  for (const uint8_t b : order) {
    if (size(b) == 0) break;
    Place place(kShiftMin, true);
    for (uint32_t shift = kShiftMin; shift <= kShiftMax && place.further(); ++shift)
      if (fits(b, Place(shift, false))) place = Place(shift, false);
    shard->places[b] = place;
    if (place.further()) continue;
    for (int i = first[b]; i < first[b + 1]; ++i)
      shard->slots[place.slot_of(entries[of[i]].hash)] = entries[of[i]].slot;
  }
  for (const Entry& e : entries)
    if (shard->places[Place::bucket_of(e.hash)].further()) *seek(shard, e.slot.key, e.hash) = e.slot;
}

std::vector<Entry> entries_of(const TableShard& shard) {
  std::vector<Entry> all;
  all.reserve(kShardSlots);
  for (const TableSlot& s : shard.slots)
    if (s.key.w0 != 0) all.push_back({s, s.key.hash()});
  return all;
}

// Requires: the key is not there, and one slot stays empty.
void add(TableShard* shard, const TableSlot& slot, uint64_t hash) {
  const Place place = shard->places[Place::bucket_of(hash)];
  TableSlot& at = shard->slots[place.slot_of(hash)];
  if (at.key.w0 == 0 && !place.further()) {
    at = slot;
    return;
  }
  std::vector<Entry> all = entries_of(*shard);
  all.push_back({slot, hash});
  lay_out(all, shard);
}

void remove_at(TableShard* shard, uint64_t at) {
  shard->slots[at] = TableSlot{};
  for (const Place& p : shard->places) {
    if (!p.further()) continue;
    lay_out(entries_of(*shard), shard);  // a key that lies further on must not lie behind the hole
    return;
  }
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
  ++live_;
  TableShard* low = arena_.take();
  const uint64_t bit = uint64_t{1} << (63 - s->depth);
  std::vector<Entry> lows = entries_of(*s->block), highs;
  const auto is_low = [bit](const Entry& e) { return (e.hash & bit) == 0; };
  std::copy_if(lows.begin(), lows.end(), std::back_inserter(highs), std::not_fn(is_low));
  std::erase_if(lows, std::not_fn(is_low));
  lay_out(lows, low);
  lay_out(highs, high->block);
  recycle(s->block);  // made in this batch, seen by nobody
  s->count = static_cast<uint32_t>(lows.size());
  high->count = static_cast<uint32_t>(highs.size());
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
    if (s->count >= kShardEntriesMax && split(h)) continue;
    if (s->count == kShardSlots - 1) return false;
    add(s->block, slot, h);
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
