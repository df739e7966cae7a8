// ModelBudget: money and tokens that a session may spend on models. The worst case of a call is reserved
// before it is made, and settled when its usage is known, so that the limit holds even when every call
// answers at its full length.
//
// A pure ledger. Thread-safety: one owner.
#pragma once

#include <cstdint>
#include <string>

#include "dispatch/base/status.h"
#include "evolve/proposer/proposal.h"

namespace niche::evolve::proposer {

// US dollars a million tokens. A negative input price: unknown.
struct ModelPrice {
  double input = -1, output = -1;
  bool known() const { return input >= 0 && output >= 0; }
};

struct BudgetLimits {
  double usd_max = 0;      // 0: no money may be spent; only calls that cost nothing pass
  int64_t tokens_max = 0;  // input and output together; 0: no limit
};

// Tokens of a text, guessed high: code and prose have 3.5 bytes a token and more.
int64_t estimate_tokens(size_t bytes);

class ModelBudget {
 public:
  ModelBudget(BudgetLimits limits, ModelPrice price) : limits_(limits), price_(price) {}

  // kBusy: the call might exceed what is left; the message says by which limit.
  dispatch::Status reserve(int64_t input_tokens, int64_t output_tokens);
  // Ends the reservation. `usage.usd` is set from the price when the service stated no cost of its own.
  void settle(Usage& usage);
  // Ends the reservation of a call that cost nothing (refused, never connected).
  void release();

  // What was spent of the same limits before this ledger began: once, before the first reservation.
  void start_from(double usd, int64_t tokens) {
    usd_spent_ = usd;
    tokens_spent_ = tokens;
  }

  double usd_spent() const { return usd_spent_; }
  double usd_left() const { return limits_.usd_max - usd_spent_ - usd_reserved_; }
  int64_t tokens_spent() const { return tokens_spent_; }
  double price_of(const Usage& usage) const;

 private:
  BudgetLimits limits_;
  ModelPrice price_;
  double usd_spent_ = 0, usd_reserved_ = 0;
  int64_t tokens_spent_ = 0, tokens_reserved_ = 0;
};

}  // namespace niche::evolve::proposer
