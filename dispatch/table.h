// Snapshot: what readers see: a directory of shards, each a fixed block of open-addressed slots, plus the
// niche index.
//
// Roles: built by TableWriter, published through the EpochDomain; read by every serving thread.
// Invariants: (1) immutable once published; (2) a key lies in the shard that the top bits of its hash name, in
//   the very slot that its bucket's Place chooses out of the hash; only where the Place says `further`, at or
//   after (cyclic) that slot with no empty slot between; (3) every shard has an empty slot, so that probes end;
//   (4) each slot's kernels were checked against the slot's key when it was published.
// Progress: find() is wait-free: one slot; at most kShardSlots of them in a bucket that says `further`.
// Reclamation: a Snapshot and the shards it does not share with its successor go together, by epoch.
// Cost: find 5–7 ns with everything in L1/L2: one directory load (8 bytes a shard: 16 shards among 1,024
//   routes), one byte of the shard's line of Places, one 64-byte slot.
// Why not simpler: one flat array is one load less, but a change copies it whole (10,000 routes: 44 µs into
//   reused pages, 380 into fresh ones). Shards of one size are reused warm, and splitting one (extendible
//   hashing, Fagin et al. 1979) never moves the others. Plain linear probing is a byte load less, but at half
//   load every third call in random order goes on to another slot, which no predictor can tell: a wrong guess is
//   known only when the slot has come, and throws away what was begun of the next calls: 6 ns a call. So the
//   writer displaces (CHD, Belazzougui et al. 2009): it searches each bucket a Place under which no two keys meet.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "dispatch/base/hot_inline.h"
#include "dispatch/niche_index.h"
#include "dispatch/problem_key.h"
#include "dispatch/published_kernel.h"
#include "dispatch/route.h"

namespace niche::dispatch {

// What a table entry for a wide key adds.
struct WideEntry {
  WideProblem problem;
  const Kernel* kernel = nullptr;
};

struct alignas(64) TableSlot {
  ProblemKey key;  // definition 0: empty
  const std::atomic<uint32_t>* state =
      nullptr;  // the Route's word; or a constant that sends the call the long way
  union {
    const Kernel* kernel = nullptr;  // the Route's incumbent, else its fallback
    const WideEntry* wide;           // key.wide()
  };
  const Route* route = nullptr;
  uint32_t route_index = 0;  // Route::index(): what a hit is counted under
};
static_assert(sizeof(TableSlot) == 64);

inline constexpr uint32_t kShardSlots = 128;      // 8 KiB: a copy costs about 0.3 µs warm
inline constexpr uint32_t kShardEntriesMax = 64;  // splits past load 0.5
inline constexpr uint32_t kShardBuckets = 64;     // a line of Places

// Where the keys of one bucket lie: which seven bits of a hash are the slot, and whether some lie further on.
class Place {
 public:
  constexpr Place() = default;
  constexpr Place(uint32_t shift, bool further)
      : bits_(static_cast<uint8_t>(shift | (further ? kFurther : 0u))) {}
  static constexpr uint64_t bucket_of(uint64_t hash) { return hash & (kShardBuckets - 1); }
  // As a byte offset: bits 6 to 12 of the shifted hash.
  constexpr uint64_t offset_of(uint64_t hash) const {
    return hash >> (bits_ & 63) & ((kShardSlots - 1) * sizeof(TableSlot));
  }
  constexpr uint64_t slot_of(uint64_t hash) const { return offset_of(hash) / sizeof(TableSlot); }
  constexpr bool further() const { return (bits_ & kFurther) != 0; }

 private:
  static constexpr uint8_t kFurther = 0x80;
  uint8_t bits_ = 0;
};

struct alignas(64) TableShard {
  TableSlot slots[kShardSlots];
  Place places[kShardBuckets];
};

// The last two are no modes of a dispatcher: they mark the empty tables that send every call of a thread the
// long way, because it cannot be attached, or is under capture.
enum class SnapshotMode : uint8_t { kServing, kDisabled, kShutdown, kProbation, kDetached, kCapturing };

struct Snapshot {
  uint64_t version = 0;  // 1, 2, ... never reused: what call-site caches compare
  uint32_t shift = 63;   // 64 - log2(directory entries)
  SnapshotMode mode = SnapshotMode::kServing;
  const NicheIndex* niches = nullptr;  // never null once published
  // Indexed by definition; null where nothing is forced. Asked on misses alone: a forced Definition has no
  // entries.
  const std::vector<const Kernel*>* forced = nullptr;
  const TableShard* const* directory = nullptr;

  // Null: no such key. A miss, too, looks at one slot, and ends at a branch that is predicted.
  NICHE_HOT_INLINE const TableSlot* find(const ProblemKey& k) const {
    const uint64_t h = k.hash();
    const TableShard& shard = *directory[h >> shift];
    const Place place = shard.places[Place::bucket_of(h)];
    const auto* s =
        reinterpret_cast<const TableSlot*>(reinterpret_cast<const char*>(shard.slots) + place.offset_of(h));
    if (!s->key.equals(k.w0, k.w1, k.w2, k.w3)) [[unlikely]]
      return place.further() ? find_further(shard, place.slot_of(h), k) : nullptr;
    return s;
  }

 private:
  static const TableSlot* find_further(const TableShard& shard, uint64_t at, const ProblemKey& k) {
    for (;;) {
      const TableSlot& s = shard.slots[at];
      if (s.key.equals(k.w0, k.w1, k.w2, k.w3)) return &s;
      if (s.key.w0 == 0) return nullptr;
      at = (at + 1) & (kShardSlots - 1);
    }
  }
};

// A table without entries, regions or forced kernels. Keeps nothing alive, and needs nothing alive.
Snapshot empty_snapshot(uint64_t version, SnapshotMode mode);

}  // namespace niche::dispatch
