#include "dispatch/rank_group.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "dispatch/base/hash.h"

namespace niche::dispatch {
namespace {

using Word = GroupBoard::Word;
using RankWord = GroupBoard::RankWord;

// A payload starts with its hash: a proposer that was dropped while it wrote may still be writing.
std::vector<uint8_t> sealed(std::span<const uint8_t> payload) {
  const uint64_t h =
      hash_bytes({reinterpret_cast<const char*>(payload.data()), payload.size()}, payload.size());
  std::vector<uint8_t> bytes(sizeof h + payload.size());
  std::memcpy(bytes.data(), &h, sizeof h);
  std::copy(payload.begin(), payload.end(), bytes.begin() + sizeof h);
  return bytes;
}
Result<std::vector<uint8_t>> unsealed(const std::vector<uint8_t>& bytes, uint64_t version) {
  if (bytes.size() >= sizeof(uint64_t)) {
    std::vector<uint8_t> payload(bytes.begin() + sizeof(uint64_t), bytes.end());
    if (sealed(payload) == bytes) return payload;
  }
  return corrupt("group: the payload of version " + std::to_string(version) + " is torn");
}

}  // namespace

Result<std::unique_ptr<RankGroup>> RankGroup::make(std::shared_ptr<GroupBoard> board, GroupMember* member,
                                                   const RankGroupOptions& o) {
  if (board == nullptr || member == nullptr || o.clock == nullptr)
    return invalid("group: no board, no member or no clock");
  if (o.rank < 0 || o.rank >= board->ranks())
    return invalid("group: rank " + std::to_string(o.rank) + " outside [0, " +
                   std::to_string(board->ranks()) + ")");
  if (o.lead_steps < 2)
    return invalid("group: lead_steps " + std::to_string(o.lead_steps) +
                   ": ranks may be one step apart, so that less than 2 can deadlock");
  std::unique_ptr<RankGroup> g(new RankGroup(std::move(board), member, o));
  NICHE_RETURN_IF_ERROR(g->join());
  return g;
}

Status RankGroup::join() {
  // An open proposal was made without this rank, which has not prepared it: out with it. Others move it on
  // meanwhile, perhaps to its decision.
  uint64_t state = board_->load(Word::kState);
  Phase phase = phase_of(state);
  while (phase == Phase::kWriting || phase == Phase::kPreparing || phase == Phase::kArmed) {
    (void)board_->compare_exchange(Word::kState, state, state_of(Phase::kDropped, version_of(state)));
    state = board_->load(Word::kState);
    phase = phase_of(state);
  }
  uint64_t serving = 0;
  for (int r = 0; r < board_->ranks(); ++r) serving = std::max(serving, board_->load(RankWord::kTaken, r));
  const auto get_ready = [&](uint64_t version) -> Status {
    auto payload = unsealed(board_->read_payload(version), version);
    if (!payload) return payload.status();
    tried_ = prepared_ = version;
    return member_->prepare(version, *payload);
  };
  if (serving != 0) {
    NICHE_RETURN_IF_ERROR(get_ready(serving));
    NICHE_RETURN_IF_ERROR(member_->take(serving));
    version_.store(serving);
    board_->store(RankWord::kTaken, options_.rank, serving);
  }
  // Decided before this rank came, and not taken by anyone yet.
  if (phase == Phase::kCommitted && version_of(state) > serving) return get_ready(version_of(state));
  return {};
}

bool RankGroup::all(RankWord w, uint64_t version) const {
  for (int r = 0; r < board_->ranks(); ++r)
    if (board_->load(w, r) != version) return false;
  return true;
}

Result<uint64_t> RankGroup::propose(std::span<const uint8_t> payload) {
  if (payload.size() > kProposalBytesMax)
    return invalid("group: a payload of " + std::to_string(payload.size()) + " bytes, at most " +
                   std::to_string(kProposalBytesMax));
  const uint64_t state = board_->load(Word::kState);
  const Phase phase = phase_of(state);
  const uint64_t last = version_of(state), serving = version_.load();
  if (phase == Phase::kWriting || phase == Phase::kPreparing || phase == Phase::kArmed)
    return busy("group: version " + std::to_string(last) + " is on its way");
  if (!all(RankWord::kTaken, phase == Phase::kCommitted ? last : serving))
    return busy("group: a rank has not taken version " + std::to_string(std::max(last, serving)) + " yet");
  // Not into the place of the payload that serves: a rank that joins reads it.
  const uint64_t version = last + 1 + (last % 2 == serving % 2 ? 0 : 1);
  if (!board_->compare_exchange(Word::kState, state, state_of(Phase::kWriting, version)))
    return busy("group: another rank proposes");
  board_->write_payload(version, sealed(payload));
  if (!board_->compare_exchange(Word::kState, state_of(Phase::kWriting, version),
                                state_of(Phase::kPreparing, version)))
    return busy("group: version " + std::to_string(version) + " was dropped while it was written");
  return version;
}

void RankGroup::prepare(uint64_t state) {
  const uint64_t version = version_of(state);
  if (tried_ != version) {
    tried_ = version;
    // Its drop and this proposal may have come between two looks.
    if (prepared_ > version_.load() && prepared_ != version) member_->drop(std::exchange(prepared_, 0));
    auto payload = unsealed(board_->read_payload(version), version);
    const Status s = payload.ok() ? member_->prepare(version, *payload) : payload.status();
    if (!s.ok()) {
      if (board_->compare_exchange(Word::kState, state, state_of(Phase::kDropped, version)))
        note_drop("rank " + std::to_string(options_.rank) + " cannot prepare version " +
                  std::to_string(version) + ": " + s.to_string());
      return;
    }
    prepared_ = version;
    board_->store(RankWord::kPrepared, options_.rank, version);
  }
  if (prepared_ == version && all(RankWord::kPrepared, version))
    (void)board_->compare_exchange(Word::kState, state, state_of(Phase::kArmed, version));
}

void RankGroup::poll() {
  const uint64_t state = board_->load(Word::kState);
  const int64_t now = options_.clock->now_ns();
  const bool news = state != watched_;
  if (news) {
    watched_ = state;
    since_ns_ = now;
  }
  const uint64_t version = version_of(state);
  switch (phase_of(state)) {
    case Phase::kPreparing:
      prepare(state);
      [[fallthrough]];
    case Phase::kWriting:
      if (now - since_ns_ > options_.prepare_ns_max &&
          board_->compare_exchange(Word::kState, state, state_of(Phase::kDropped, version)))
        note_drop("version " + std::to_string(version) + " was not prepared in time");
      return;
    case Phase::kDropped:
      if (news) dropped_.fetch_add(1, std::memory_order_relaxed);
      if (prepared_ == version) {
        prepared_ = 0;
        member_->drop(version);
      }
      return;
    case Phase::kNone:
    case Phase::kArmed:
    case Phase::kCommitted:
      return;
  }
}

// All have acknowledged: every rank that comes to this finds the same step, so that it matters not who writes
// it.
void RankGroup::try_to_decide(uint64_t state) {
  const uint64_t version = version_of(state);
  if (!all(RankWord::kAcknowledged, version)) return;
  uint64_t latest = 0;
  for (int r = 0; r < board_->ranks(); ++r) latest = std::max(latest, board_->load(RankWord::kSeenAt, r));
  board_->store(Word::kSwitchStep, latest + options_.lead_steps);
  (void)board_->compare_exchange(Word::kState, state, state_of(Phase::kCommitted, version));
}

uint64_t RankGroup::step_slowly(uint64_t n) {
  const int rank = options_.rank;
  int64_t deadline_ns = 0;
  for (;;) {
    const uint64_t state = board_->load(Word::kState);
    const uint64_t version = version_of(state);
    switch (phase_of(state)) {
      case Phase::kNone:
      case Phase::kWriting:
      case Phase::kPreparing:
      case Phase::kDropped:
        settled_ = state;
        return version_;
      case Phase::kCommitted:
        if (version_ == version) {
          settled_ = state;
          return version;
        }
        if (n < board_->load(Word::kSwitchStep)) return version_;
        if (const Status s = member_->take(version); !s.ok()) {
          note_fault("version " + std::to_string(version) + " at step " + std::to_string(n) + ": " +
                     s.to_string());
          settled_ = state;
          return version_;
        }
        version_.store(version);
        switches_.fetch_add(1, std::memory_order_relaxed);
        board_->store(RankWord::kTaken, rank, version);
        settled_ = state;
        return version;
      case Phase::kArmed:
        if (acknowledged_ != version) {
          acknowledged_ = version;
          acknowledged_at_ = n;
          board_->store(RankWord::kSeenAt, rank, n);
          board_->store(RankWord::kAcknowledged, rank, version);
        }
        try_to_decide(state);
        if (board_->load(Word::kState) != state) continue;
        if (n < acknowledged_at_ + options_.lead_steps) return version_;
        // May not enter this step without a decision.
        if (deadline_ns == 0) {
          waits_.fetch_add(1, std::memory_order_relaxed);
          deadline_ns = options_.clock->now_ns() + options_.decide_ns_max;
        } else if (options_.clock->now_ns() > deadline_ns) {
          if (board_->compare_exchange(Word::kState, state, state_of(Phase::kDropped, version)))
            note_drop("version " + std::to_string(version) + ": a rank did not step in time");
        } else {
          std::this_thread::yield();
        }
    }
  }
}

void RankGroup::note_drop(const std::string& why) {
  std::lock_guard lock(mutex_);
  last_drop_ = why;
}

void RankGroup::note_fault(const std::string& why) {
  std::lock_guard lock(mutex_);
  fault_ = why;
}

RankGroupStats RankGroup::stats() const {
  RankGroupStats s;
  s.version = version_.load();
  s.switches = switches_.load(std::memory_order_relaxed);
  s.waits = waits_.load(std::memory_order_relaxed);
  s.dropped = dropped_.load(std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  s.last_drop = last_drop_;
  s.fault = fault_;
  return s;
}

}  // namespace niche::dispatch
