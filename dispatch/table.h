// Snapshot: what readers see: a directory of shards, each a fixed block of open-addressed slots, plus the
// niche index.
//
// Roles: built by TableWriter, published through the EpochDomain; read by every serving thread.
// Invariants: (1) immutable once published; (2) a key lies in the shard that the top bits of its hash name,
// at or after (cyclic)
//   the slot that the low bits name, with no empty slot between; (3) every shard has an empty slot, so that
//   probes end; (4) each slot's kernels were checked against the slot's key when it was published.
// Progress: find() is wait-free: at most kShardSlots steps, 1.2 on average at the fullest.
// Reclamation: a Snapshot and the shards it does not share with its successor go together, by epoch.
// Cost: find 6–8 ns with everything in L1/L2: one directory load (8 bytes a shard: 16 shards among 1,024
// routes) and one
//   64-byte slot.
// Why not simpler: one flat array is one load less, but a change copies it whole (10,000 routes: 44 µs into
// reused pages, 380 into
//   fresh ones). Shards of one size are reused warm, and splitting one (extendible hashing, Fagin et al.
//   1979) never moves the others.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "dispatch/niche_index.h"
#include "dispatch/problem_key.h"
#include "dispatch/published_kernel.h"
#include "dispatch/route.h"

namespace niche::dispatch {

// Where a thread keeps the counters of a route: byte offsets, so that counting costs no address arithmetic.
struct CounterPlace {
  uint32_t chunk = 0;  // into ThreadState::chunks
  uint32_t row = 0;    // into the chunk's row of exact hits
  bool operator==(const CounterPlace&) const = default;
};

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
  CounterPlace counter;  // of Route::index()
};
static_assert(sizeof(TableSlot) == 64);

inline constexpr uint32_t kShardSlots = 128;      // 8 KiB: a copy costs about 0.3 µs warm
inline constexpr uint32_t kShardEntriesMax = 64;  // splits past load 0.5

struct TableShard {
  TableSlot slots[kShardSlots];
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

  const TableSlot* find(const ProblemKey& k) const {
    const uint64_t h = k.hash();
    const TableSlot* slots = directory[h >> shift]->slots;
    for (uint64_t i = h & (kShardSlots - 1);; i = (i + 1) & (kShardSlots - 1)) {
      const TableSlot& s = slots[i];
      if (s.key.equals(k.w0, k.w1, k.w2, k.w3)) [[likely]]
        return &s;
      if (s.key.w0 == 0) return nullptr;
    }
  }
};

// A table without entries, regions or forced kernels. Keeps nothing alive, and needs nothing alive.
Snapshot empty_snapshot(uint64_t version, SnapshotMode mode);

}  // namespace niche::dispatch
