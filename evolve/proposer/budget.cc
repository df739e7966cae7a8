#include "evolve/proposer/budget.h"

#include <algorithm>
#include <cstdio>

namespace niche::evolve::proposer {
namespace {

std::string dollars(double usd) {
  char text[32];
  std::snprintf(text, sizeof text, "$%.4f", usd);
  return text;
}

}  // namespace

int64_t estimate_tokens(size_t bytes) { return static_cast<int64_t>(bytes * 2 / 7 + 1); }

double ModelBudget::price_of(const Usage& u) const {
  if (!price_.known()) return 0;
  return (static_cast<double>(u.input_tokens) * price_.input +
          static_cast<double>(u.output_tokens) * price_.output) *
         1e-6;
}

dispatch::Status ModelBudget::reserve(int64_t input_tokens, int64_t output_tokens) {
  const double usd = price_of({input_tokens, output_tokens, 0, 0, false});
  if (usd > std::max(0.0, usd_left()))
    return dispatch::busy("model budget: a call may cost " + dollars(usd) + ", " +
                          dollars(std::max(0.0, usd_left())) + " of " + dollars(limits_.usd_max) +
                          " are left");
  const int64_t tokens = input_tokens + output_tokens;
  if (limits_.tokens_max > 0 && tokens > limits_.tokens_max - tokens_spent_ - tokens_reserved_)
    return dispatch::busy(
        "model budget: a call may take " + std::to_string(tokens) + " tokens, " +
        std::to_string(std::max<int64_t>(0, limits_.tokens_max - tokens_spent_ - tokens_reserved_)) + " of " +
        std::to_string(limits_.tokens_max) + " are left");
  usd_reserved_ += usd;
  tokens_reserved_ += tokens;
  return {};
}

void ModelBudget::settle(Usage& usage) {
  release();
  if (usage.usd <= 0) usage.usd = price_of(usage);
  usd_spent_ += usage.usd;
  tokens_spent_ += usage.input_tokens + usage.output_tokens;
}

void ModelBudget::release() { usd_reserved_ = 0, tokens_reserved_ = 0; }

}  // namespace niche::evolve::proposer
