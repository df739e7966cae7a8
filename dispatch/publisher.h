// Publisher: the only writer of the table: collects changes, publishes them as one new Snapshot, and bounds
// what old Snapshots hold.
//
// Roles: the rollout controller and the aggregator call it; readers never do. A lock inside makes it safe to
// call from several
//   threads; they take turns.
// Invariants: (1) readers see all changes of a commit or none; (2) a kernel enters the table only for keys
// and boxes that its Guard,
//   layout and properties hold for; (3) retired Snapshots number at most `retired_tables_max` and hold at
//   most `retired_bytes_max`: past either, changes wait (coalesced, last one wins) and waiting() says so;
//   rollback, by the Route's word, does not wait; (4) waiting changes are at most `waiting_changes_max`.
// Progress: commit never waits for a reader.
// Reclamation: by epoch; Routes, their kernels and regions are held until no reader can have them.
// Cost: a commit of one change: a shard copy (8 KiB), a directory copy (8 bytes a shard: 2.5 KiB at 10,000
// routes), one membarrier. Why not simpler: see table.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "dispatch/base/clock.h"
#include "dispatch/base/status.h"
#include "dispatch/niche_index.h"
#include "dispatch/table.h"
#include "dispatch/thread_state.h"

namespace niche::dispatch {

struct PublisherLimits {
  uint32_t entries_max = 1u << 20;
  uint32_t waiting_changes_max = 1u << 16;
  uint32_t retired_tables_max = 64;
  int64_t retired_bytes_max = int64_t{64} << 20;
};

struct PublisherStats {
  uint64_t version = 0;  // of the published Snapshot
  uint64_t publications = 0;
  uint64_t coalesced = 0;  // commits that had to wait
  uint64_t entries = 0, regions = 0, shards = 0;
  uint64_t retired_tables = 0;  // not yet freed
  int64_t retired_bytes = 0;
  uint64_t waiting_changes = 0;
  int64_t waiting_ns = 0;  // age of the oldest waiting change; 0: none waits
  int64_t table_bytes = 0;
};

class Publisher {
 public:
  using Resolve = std::function<std::shared_ptr<const Definition>(uint32_t definition)>;
  // `domain` must hold first_snapshot(). `domain` and `clock` outlive the Publisher. `resolve` gives the
  // Definition of a number, or null; called under the lock.
  // `reserved` gives the workspace units that every thread has: a kernel that wants more goes the long way,
  // where each call asks.
  Publisher(EpochDomain* domain, const Clock* clock, const PublisherLimits& limits, Resolve resolve,
            std::function<uint32_t()> reserved);
  // Requires: no reader is inside the domain, or ever will be.
  ~Publisher();
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;
  // An empty table: what a domain starts with.
  static const Snapshot* first_snapshot();

  // One exact problem. Replaces what was there. kInvalid: definition 0 or unknown, or a kernel of the route
  // does not hold for it (which and why). kBusy: a stated bound. Nothing is visible before commit().
  Status put(const WideProblem& problem, std::shared_ptr<Route> route);
  Status erase(const WideProblem& problem);  // not there: OK
  // Replaces `from` by `to` in every entry and region that has it (promotion, a new challenger).
  Status replace_route(const Route& from, std::shared_ptr<Route> to);
  // Every entry and region of the route out (the misses take the fallback).
  Status erase_route(const Route& route);
  // A niche. The id is for erase_region.
  Result<uint64_t> put_region(const RegionSpec& region);
  Status erase_region(uint64_t id);

  // Would put() take it?
  struct Placement {
    WideProblem problem;
    std::shared_ptr<Route> route;
  };
  Status check(const Placement& placement) const;
  // Puts all and publishes, as one and at once, whoever stalls: what a group has agreed on may not wait. The
  // bounds are the caller's to keep: it asks for room before it agrees. Requires: check() said OK to each.
  void apply(std::span<const Placement> placements);
  // kBusy: a bound is reached, so that an apply() of so many would exceed it.
  Status room(size_t placements);

  // Publishes all changes since the last commit as one. kBusy: they wait for a stalled reader (invariant 3);
  // call again, or let poll() do it.
  Status commit();
  // Frees what can be freed and publishes what waits. For the aggregator's loop.
  void poll();

  // Every call of this Definition goes to `kernel` wherever it can run (Rung::kForced), else to the fallback.
  // A fallback kernel may be forced. Null: back to normal. Commits at once.
  Status force(uint32_t definition, std::shared_ptr<const Kernel> kernel);
  // kDisabled, kShutdown, kProbation: everything to the fallback, with that reason. Commits at once.
  Status set_mode(SnapshotMode mode);

  // Keeps `holder` alive until no call that has begun by now can still use it.
  void retire(std::shared_ptr<void> holder, int64_t bytes);

  // The route that answers a problem, as published; null: none. For explain and tests; takes the lock.
  std::shared_ptr<Route> find(const WideProblem& problem) const;
  // The first region whose incumbent does not refuse the problem.
  std::shared_ptr<Route> find_region(const WideProblem& problem) const;
  PublisherStats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace niche::dispatch
