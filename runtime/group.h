// Group: one server's part in a tensor-parallel group whose ranks choose kernels together, because kernels that
// differ in the collectives they issue deadlock a group that does not choose alike.
//
//   config.group_board = "/dev/shm/niche.my_model";  // one file a group, the same for all its ranks
//   config.group_rank = rank, config.group_ranks = 4;
//   config.group_ops = {"linear_all_reduce"};        // empty: every operator
//   ...
//   auto group = runtime->join_group();              // once the handles of these operators are made
//   for (uint64_t n = 1;; ++n) {
//     (*group)->step(n);                             // every rank, before the calls of step n
//     serve(next_batch());
//   }
//
// Until it has joined, and for every problem that the group has not chosen a kernel for, the library answers. Rank 0
// proposes verified kernels; every rank loads what is proposed, out of its own cache, while it serves on; all switch
// at one step. A rank on which a kernel is slower than the library was proposes that the group goes back, and so does
// one that finds it quarantined. There is no canary and no shadow run in a group: both are choices of one rank alone.
// dispatch/rank_group.h has the protocol.
//
// Thread-safety: step() by one thread; the others by any. Reclamation: may outlive the Runtime, which then proposes
// and prepares nothing more. Cost: a step without news is one load, 2 ns.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dispatch/group_table.h"
#include "dispatch/rank_group.h"

namespace niche {

namespace core {
class RuntimeCore;
}

struct GroupStatus {
  int rank = 0, ranks = 0;
  uint64_t version = 0;  // that serves; 0: none yet
  uint64_t switches = 0, dropped = 0, waits = 0;
  std::string last_drop;  // why, as far as this rank knows
  // Not empty: this rank serves another version than the others. Stop it; Health says so too.
  std::string fault;
  std::vector<dispatch::GroupChange> serving;  // by problem; an empty kernel: the library
};

class Group {
 public:
  // Use Runtime::join_group().
  static dispatch::Result<std::shared_ptr<Group>> join(std::shared_ptr<core::RuntimeCore> core,
                                                       dispatch::GroupTable::Resolve resolve);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Before the calls of step n; n grows. Returns the version that serves it, the same on every rank. Requires: no
  // RequestScope is open on the threads that serve the step.
  uint64_t step(uint64_t n) { return group_->step(n); }
  // Proposes what served before the version that serves now; returns the number it will have. kNotFound: nothing to
  // undo. kBusy: a proposal is on its way.
  dispatch::Result<uint64_t> roll_back();
  GroupStatus status() const;

  // "From an agreed step on these kernels serve these problems", by any rank; an empty name: the library. Returns the
  // version that it will have, should all ranks prepare it. The control plane proposes verified kernels by itself; a
  // server proposes those that it has offered (Runtime::offer_to_group). kBusy: a proposal is on its way.
  dispatch::Result<uint64_t> propose(std::span<const dispatch::GroupChange> changes);

  // ---- the control plane's
  void poll() { group_->poll(); }

 private:
  Group(std::shared_ptr<core::RuntimeCore> core, dispatch::GroupTable::Resolve resolve);

  const std::shared_ptr<core::RuntimeCore> core_;  // its clock and dispatcher
  dispatch::GroupTable table_;
  std::unique_ptr<dispatch::RankGroup> group_;
};

}  // namespace niche
