#include "runtime/group.h"

#include <utility>

#include "runtime/core.h"

namespace niche {

using dispatch::Result;

Group::Group(std::shared_ptr<core::RuntimeCore> core, dispatch::GroupTable::Resolve resolve)
    : core_(std::move(core)), table_(core_->dispatcher_ptr(), std::move(resolve)) {}

Result<std::shared_ptr<Group>> Group::join(std::shared_ptr<core::RuntimeCore> core,
                                           dispatch::GroupTable::Resolve resolve) {
  const RuntimeConfig& config = core->config();
  auto board = dispatch::SharedMemoryBoard::open(config.group_board, config.group_ranks);
  if (!board.ok()) return board.status();
  std::shared_ptr<Group> g(new Group(std::move(core), std::move(resolve)));
  dispatch::RankGroupOptions options;
  options.rank = config.group_rank;
  options.clock = &g->core_->clock();
  auto group = dispatch::RankGroup::make(*std::move(board), &g->table_, options);
  if (!group.ok()) return group.status();
  g->group_ = *std::move(group);
  return g;
}

Result<uint64_t> Group::propose(std::span<const dispatch::GroupChange> changes) {
  auto payload = table_.proposal(changes);
  if (!payload.ok()) return payload.status();
  return group_->propose(*payload);
}

Result<uint64_t> Group::roll_back() {
  auto payload = table_.rollback();
  if (!payload.ok()) return payload.status();
  return group_->propose(*payload);
}

GroupStatus Group::status() const {
  const dispatch::RankGroupStats s = group_->stats();
  GroupStatus g;
  g.rank = core_->config().group_rank;
  g.ranks = core_->config().group_ranks;
  g.version = s.version;
  g.switches = s.switches;
  g.dropped = s.dropped;
  g.waits = s.waits;
  g.last_drop = s.last_drop;
  g.fault = s.fault;
  g.serving = table_.serving();
  return g;
}

}  // namespace niche
