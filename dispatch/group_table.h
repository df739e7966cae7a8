// GroupTable: the problems of a Dispatcher whose kernels a tensor-parallel group chooses together.
//
//   GroupTable table(dispatcher, resolve);                       // one a rank
//   auto group = RankGroup::make(board, &table, {...}).value();
//   group->propose(table.proposal({{"linear.bf16.K4096", ..., "fused_all_reduce.v2"}}).value());
//   group->propose(table.rollback().value());                    // undoes the version that serves
//
// A proposal carries the whole table of the group and what each of its changes replaces, so that a rank that
// joins later has it all and can propose the rollback as well as any; and the version that it was made from:
// two ranks that propose at once cannot undo each other by accident.
//
// A change names a problem and a kernel by name; each rank resolves the name to a Route of its own device.
// Nobody else may publish for these problems, and their Routes stay in state kIncumbent: a canary share or a
// rollback of one rank alone is what the group is there to prevent. A kernel that must go is taken out by
// proposing the rollback, which serves two steps later.
//
// Thread-safety: as GroupMember; rollback() and serving() from any thread. Reclamation: Routes of dropped
// versions go with drop(), of served ones by the publisher.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "dispatch/dispatcher.h"
#include "dispatch/rank_group.h"

namespace niche::dispatch {

// "This kernel serves this problem." The device is each rank's own.
struct GroupChange {
  std::string definition;  // Definition::name()
  uint32_t tenant = 0, threads = 1;
  ConstraintSet constraints{};
  LayoutClass layout;
  std::array<int64_t, kMaxVarAxes> axes{};
  std::string kernel;  // empty: the library
  bool operator==(const GroupChange&) const = default;
};

struct GroupProposal {
  uint64_t base = 0;      // the version that `table` was made from
  bool rollback = false;  // undoes `base`, and is not undone itself
  std::vector<GroupChange> table;
  std::vector<GroupChange> undo;  // of the problems that it changes: what served them in `base`
  bool operator==(const GroupProposal&) const = default;
};

class GroupTable final : public GroupMember {
 public:
  static constexpr size_t kProblemsMax = 512;
  static constexpr size_t kNameBytesMax = 255;
  // An encoded problem at its longest: three names, and the numbers between them.
  static constexpr size_t kProblemBytesMax = 3 * (1 + kNameBytesMax) + 4 + 4 + 1 + 8 + 8 * kMaxVarAxes + 1;
  static constexpr size_t kHeaderBytes = 8 + 1 + 4;
  static_assert(kHeaderBytes + kProblemsMax * kProblemBytesMax <= RankGroup::kProposalBytesMax,
                "a full table is a proposal");
  // The placement of a change on this rank. Any Status: this rank cannot, and the proposal is dropped for
  // all.
  using Resolve = std::function<Result<Publisher::Placement>(const GroupChange&)>;

  GroupTable(std::shared_ptr<Dispatcher> dispatcher, Resolve resolve)
      : dispatcher_(std::move(dispatcher)), resolve_(std::move(resolve)) {}

  // What serves, with these changes. kInvalid: none, a name past kNameBytesMax, two changes of one problem.
  // kBusy: past kProblemsMax.
  Result<std::vector<uint8_t>> proposal(std::span<const GroupChange> changes) const;
  // The proposal that undoes the version that serves. kNotFound: none serves, or it is a rollback itself: the
  // group goes back by one version, not along its history.
  Result<std::vector<uint8_t>> rollback() const;
  // What serves, by problem, of all problems that the group has ever changed.
  std::vector<GroupChange> serving() const;

  // Requires: `undo` has problems of `table` alone.
  static std::vector<uint8_t> encode(const GroupProposal& proposal);
  // kCorrupt names the byte.
  static Result<GroupProposal> decode(std::span<const uint8_t> payload);

  Status prepare(uint64_t version, std::span<const uint8_t> payload) override;
  // kNotFound: never prepared here, or dropped.
  Status take(uint64_t version) override;
  void drop(uint64_t version) override;

 private:
  struct Prepared {
    std::vector<GroupChange> table, undo;
    std::vector<Publisher::Placement> placements;  // of what differs from what serves here
  };

  const std::shared_ptr<Dispatcher> dispatcher_;
  const Resolve resolve_;
  mutable std::mutex mutex_;
  std::map<uint64_t, Prepared> prepared_;  // at most two
  uint64_t version_ = 0;                   // that serves
  std::vector<GroupChange> serving_;       // at most one a problem
  std::vector<GroupChange> undo_;          // the version that serves; empty: it is a rollback
};

}  // namespace niche::dispatch
