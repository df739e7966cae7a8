// ChatProposer: a chat service as a Proposer: negotiation of parameters, retries, budget, circuit breaker.
#pragma once

#include <memory>
#include <random>
#include <string>

#include "evolve/proposer/dialect.h"
#include "evolve/proposer/proposer.h"
#include "evolve/proposer/retry.h"

namespace niche::evolve::proposer {

class ChatProposer final : public Proposer {
 public:
  ChatProposer(std::unique_ptr<Dialect> dialect, std::string key, const ProposerOptions& options)
      : dialect_(std::move(dialect)),
        key_(std::move(key)),
        options_(options),
        budget_(options.budget, options.price),
        random_(std::random_device{}()) {}

  dispatch::Result<ProposalReply> propose(const ProposalRequest& request) override;
  ModelBudget* budget() override { return &budget_; }

 private:
  struct Attempt;
  Attempt attempt(const ProposalRequest& request, double seconds);
  void redact(std::string& text) const;
  bool wait(double seconds) const;  // false: keep_going turned false

  std::unique_ptr<Dialect> dialect_;
  std::string key_;
  ProposerOptions options_;
  ModelBudget budget_;
  CircuitBreaker breaker_;
  std::mt19937 random_;
};

}  // namespace niche::evolve::proposer
