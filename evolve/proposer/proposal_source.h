// ProposalSource: what a session sees of a model: one request under way at a time, asked for without waiting.
// Real: ProposerProcess; tests answer from memory.
//
// Thread-safety: one owner.
#pragma once

#include <optional>

#include "dispatch/base/status.h"
#include "evolve/proposer/proposal.h"

namespace niche::evolve::proposer {

class ProposalSource {
 public:
  virtual ~ProposalSource() = default;
  // No request under way, and it may take one.
  virtual bool idle() const = 0;
  // It will never answer again: its process died, its key is refused.
  virtual bool ended() const = 0;
  // What all calls have cost, failed ones too, as the payer counts it; nothing: it does not count, what
  // replies state is all there is, or it has not said a word yet.
  virtual std::optional<Usage> spent() const { return std::nullopt; }
  // What an earlier process spent of the same budget. Before the first request.
  virtual dispatch::Status start_from(const Usage& spent) {
    (void)spent;
    return {};
  }
  // Requires idle().
  virtual dispatch::Status start(const ProposalRequest& request) = 0;
  // The answer to the request under way, or why there is none (codes as Proposer); nothing within the
  // timeout.
  virtual std::optional<dispatch::Result<ProposalReply>> poll(int timeout_ms) = 0;
  // Gives up the request under way, if there is one, and waits until spent() holds what it has cost; where that does not
  // come within `seconds_max`, the most that it may have cost counts. Nothing can be asked after it.
  virtual void finish(double seconds_max) { (void)seconds_max; }
};

}  // namespace niche::evolve::proposer
