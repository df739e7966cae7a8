// Proposer: answers ProposalRequests: one step of a search in which a model writes programs. Kinds: chat
// services (chat_proposer.h), any program, and a folder through which a person or an agent answers
// (local_proposers.h).
//
// Blocking; runs in a process of its own (proposer_process.h), never where candidates run. Thread-safety: one
// owner.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "evolve/proposer/budget.h"
#include "evolve/proposer/proposal.h"

namespace niche::evolve::proposer {

class Proposer {
 public:
  virtual ~Proposer() = default;
  // kBusy: not now: budget, breaker, time, no answer yet. kUnsupported: never again in this process (a wrong
  // key, an unknown model): who asks should stop asking. kIo, kCorrupt, kInvalid: this request failed.
  virtual dispatch::Result<ProposalReply> propose(const ProposalRequest& request) = 0;
  // Its account; null: it costs nothing.
  virtual ModelBudget* budget() { return nullptr; }
};

struct ProposerOptions {
  BudgetLimits budget;
  ModelPrice price;
  std::string key_file;  // read at each start; else the variable that the kind names
  std::string base_url;  // of anthropic:; empty: ANTHROPIC_BASE_URL, else the public one
  double stall_seconds = 300;
  double retry_first_seconds = 1;
  std::function<bool()> keep_going;  // asked while waiting; empty: always
};

// "exec:CMD", "mailbox:DIR", "openai:URL#MODEL" (key: OPENAI_API_KEY, may be absent for a local server),
// "anthropic:MODEL" (key: ANTHROPIC_API_KEY, service: ANTHROPIC_BASE_URL). kInvalid says what is missing. A
// service of unknown price needs no money budget when it runs on this machine; any other is refused without a
// price.
dispatch::Result<std::unique_ptr<Proposer>> make_proposer(const std::string& spec,
                                                          const ProposerOptions& options);

}  // namespace niche::evolve::proposer
