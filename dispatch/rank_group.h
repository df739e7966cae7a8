// RankGroup: one rank's part in agreeing on a numbered table version, and on the step from which it serves.
//
// Servers of one tensor-parallel group must choose alike where kernels differ in the collectives they issue:
// one rank in a fused all-reduce and another in reduce-scatter and all-gather wait for each other for ever.
// So such problems are changed only by the group:
//
//   group->step(n);               // every rank, before the calls of step n; n grows
//   ... calls ...                 // all of them by one version
//
//   group->propose(payload);      // any rank, any thread: "this shall serve"; a rollback is a proposal too
//   group->poll();                // every rank's control loop: prepares what is proposed
//
// The way of a proposal: (1) written and announced; (2) every rank prepares it (loads kernels, makes routes)
// while it serves on, and says so; (3) armed: at its next step each rank acknowledges, and from then on
// enters at most `lead_steps` - 1 further steps without a decision; (4) whoever finds all acknowledgements
// decides: it serves from step max(acknowledged at) + lead_steps. No rank can have entered that step yet, and
// none enters it without having read the decision. A rank that cannot prepare, or waits too long, drops the
// proposal for all.
//
// Roles: one thread calls step(); one polls; any may propose. Invariants: (1) every rank serves version v in
// exactly the steps from v's switch step to the next one's; (2) versions grow; (3) one proposal at a time.
// Progress: step() is one load where nothing is proposed. A rank waits in step() only for ranks that have not
// entered a step for lead_steps of its own: never, in a group whose steps have a collective in them. Then it
// waits at most `decide_ns_max`, and the proposal is dropped by the same compare-and-set that would have
// decided it. Reclamation: the member's. Cost: step 2 ns; a switch some ten loads and stores a rank. Why not
// simpler: "switch at step n + 100" is right until a rank is 100 steps late in reading it; a barrier at each
// step costs what the collectives themselves do.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "dispatch/base/clock.h"
#include "dispatch/base/status.h"
#include "dispatch/group_board.h"

namespace niche::dispatch {

// What the group agrees about, on this rank. Called by one thread a method, but for `drop`.
class GroupMember {
 public:
  virtual ~GroupMember() = default;
  // Makes everything ready, so that take() cannot fail. May take its time. The same version at most once.
  virtual Status prepare(uint64_t version, std::span<const uint8_t> payload) = 0;
  // From this step on. Called in step(), between the steps' calls. Fails only where the version was never
  // prepared here, which the protocol excludes: see RankGroupStats::fault.
  virtual Status take(uint64_t version) = 0;
  // Was prepared and will not be taken.
  virtual void drop(uint64_t version) = 0;
};

struct RankGroupOptions {
  int rank = 0;
  const Clock* clock = nullptr;  // required; outlives the group
  uint64_t lead_steps = 2;       // at least 2
  int64_t prepare_ns_max = 120'000'000'000;
  int64_t decide_ns_max = 2'000'000'000;
};

struct RankGroupStats {
  uint64_t version = 0;   // that serves
  uint64_t switches = 0;  // by this rank
  uint64_t dropped = 0;   // proposals that this rank saw dropped
  uint64_t waits = 0;     // steps that had to wait for a decision
  std::string last_drop;  // why, as far as this rank knows
  // Not empty: this rank did not take a version that the others serve. It serves what it served, no further
  // version can be proposed, and its next collective may not be the others': stop the rank and join again.
  std::string fault;
};

class RankGroup {
 public:
  // Joins, and takes what the others serve. A proposal that is open is dropped: a rank has come that does not
  // know it. kInvalid names the option. What the member says where it cannot prepare the version that serves.
  static Result<std::unique_ptr<RankGroup>> make(std::shared_ptr<GroupBoard> board, GroupMember* member,
                                                 const RankGroupOptions& options);

  // Before the calls of step n. Requires: n grows; no call or RequestScope is open on the threads that serve
  // the step. Returns the version that serves it on this rank.
  uint64_t step(uint64_t n) {
    if (board_->load(GroupBoard::Word::kState) == settled_) [[likely]]
      return version_;
    return step_slowly(n);
  }

  // The longest payload; the board's place holds its hash besides.
  static constexpr size_t kProposalBytesMax = GroupBoard::kPayloadBytesMax - sizeof(uint64_t);
  // Announces a version; returns its number. kBusy: another is on its way, or a rank has not taken the last
  // one yet. kInvalid: a payload past kProposalBytesMax.
  Result<uint64_t> propose(std::span<const uint8_t> payload);
  // Prepares, drops, gives up. From a control loop, some ten times a second while idle; cheap.
  void poll();

  RankGroupStats stats() const;

 private:
  enum class Phase : uint8_t { kNone, kWriting, kPreparing, kArmed, kCommitted, kDropped };
  static constexpr int kPhaseBits = 3;
  static uint64_t state_of(Phase p, uint64_t version) {
    return version << kPhaseBits | static_cast<uint64_t>(p);
  }
  static Phase phase_of(uint64_t state) { return static_cast<Phase>(state & ((1u << kPhaseBits) - 1)); }
  static uint64_t version_of(uint64_t state) { return state >> kPhaseBits; }

  RankGroup(std::shared_ptr<GroupBoard> board, GroupMember* member, const RankGroupOptions& options)
      : board_(std::move(board)), member_(member), options_(options) {}
  Status join();
  uint64_t step_slowly(uint64_t n);
  void try_to_decide(uint64_t state);
  bool all(GroupBoard::RankWord w, uint64_t version) const;
  void prepare(uint64_t state);
  void note_drop(const std::string& why);
  void note_fault(const std::string& why);

  const std::shared_ptr<GroupBoard> board_;
  GroupMember* const member_;
  const RankGroupOptions options_;

  // The stepping thread's.
  uint64_t settled_ = 0;  // the state that holds nothing new for this rank
  uint64_t acknowledged_ = 0, acknowledged_at_ = 0;
  std::atomic<uint64_t> version_{0};
  std::atomic<uint64_t> switches_{0}, waits_{0}, dropped_{0};

  // The polling thread's.
  uint64_t tried_ = 0;     // newest version that prepare() was called for
  uint64_t prepared_ = 0;  // newest that it succeeded for; 0 once dropped
  uint64_t watched_ = 0;   // the state whose age `since_ns_` tells
  int64_t since_ns_ = 0;

  mutable std::mutex mutex_;
  std::string last_drop_, fault_;  // under mutex_
};

}  // namespace niche::dispatch
