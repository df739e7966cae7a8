// ProposerPurse: the money that all sessions of a Runtime may spend on their model (proposer_usd_max). A session that
// starts holds all that is left; another that starts meanwhile gets none. What it did not spend is there again when it
// ends.
//
// A pure ledger. Thread-safety: one owner. Bounds: one entry a running session.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace niche {

class ProposerPurse {
 public:
  // 0: models that cost nothing, which any number of sessions may ask.
  explicit ProposerPurse(double usd_max) : usd_max_(usd_max) {}

  // Why a session that starts now gets nothing; empty: it gets something.
  std::string why_empty() const;
  // What the session at `place` (DefinitionState::place) may spend. Requires an empty why_empty().
  double take(uint32_t place);
  // What it has cost so far. A smaller figure than before, or a session that holds nothing, changes nothing.
  void cost(uint32_t place, double usd);
  // It has ended.
  void settle(uint32_t place);
  // By all sessions, running ones included.
  double spent() const;

 private:
  struct Held {
    double usd_max = 0, usd = 0;
  };
  double left() const;
  double usd_max_, ended_usd_ = 0;
  std::map<uint32_t, Held> held_;  // by running sessions
};

}  // namespace niche
