#include "runtime/proposer_purse.h"

#include <algorithm>
#include <cstdio>

namespace niche {

double ProposerPurse::left() const {
  double held = 0;
  for (const auto& [place, h] : held_) held += h.usd_max;
  return usd_max_ - ended_usd_ - held;
}

std::string ProposerPurse::why_empty() const {
  if (usd_max_ <= 0 || left() > 0) return {};
  if (ended_usd_ < usd_max_) return "its money is held by a session that runs";
  char text[96];
  std::snprintf(text, sizeof text, "its money is spent ($%.4f of $%.4f)", ended_usd_, usd_max_);
  return text;
}

double ProposerPurse::take(uint32_t place) {
  Held& h = held_[place];
  h = {usd_max_ > 0 ? left() : 0, 0};
  return h.usd_max;
}

void ProposerPurse::cost(uint32_t place, double usd) {
  if (const auto at = held_.find(place); at != held_.end()) at->second.usd = std::max(at->second.usd, usd);
}

void ProposerPurse::settle(uint32_t place) {
  const auto at = held_.find(place);
  if (at == held_.end()) return;
  ended_usd_ += at->second.usd;
  held_.erase(at);
}

double ProposerPurse::spent() const {
  double usd = ended_usd_;
  for (const auto& [place, h] : held_) usd += h.usd;
  return usd;
}

}  // namespace niche
