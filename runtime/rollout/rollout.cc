#include "runtime/rollout/rollout.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace niche::rollout {
namespace {

// Shares the canary climbs, and the e-value for FASTER that each asks for. Evidence before exposure: at e =
// 10 at most one in ten kernels that are no faster ever reaches half of the traffic.
struct Step {
  double share, e_faster;
};
constexpr Step kSteps[] = {{0.01, 2}, {0.10, 4}, {0.50, 10}};
// While the e-value for SLOWER is above this nothing climbs.
constexpr double kUneasy = 2;

}  // namespace

const char* stage_name(Stage stage) {
  switch (stage) {
    case Stage::kShadow:
      return "shadow";
    case Stage::kCanary:
      return "canary";
    case Stage::kIncumbent:
      return "incumbent";
    case Stage::kRolledBack:
      return "rolled back";
  }
  return "?";
}

const char* cause_name(Cause cause) {
  switch (cause) {
    case Cause::kNone:
      return "none";
    case Cause::kSlower:
      return "slower";
    case Cause::kNotProven:
      return "not proven";
    case Cause::kWithdrawn:
      return "withdrawn";
  }
  return "?";
}

Rollout::Rollout(const Policy& policy, int64_t now_ns)
    : policy_(policy), born_ns_(now_ns), test_(policy.margin) {}

Decision Rollout::set(Stage stage, double share) {
  decision_.changed = decision_.stage != stage || decision_.share != share;
  decision_.stage = stage;
  decision_.share = share;
  return decision_;
}

Decision Rollout::out(Cause cause, const std::string& what) {
  if (decision_.stage == Stage::kRolledBack) return set(Stage::kRolledBack, 0);
  decision_.cause = cause;
  decision_.quarantine = cause == Cause::kSlower;
  why_ = what;
  return set(Stage::kRolledBack, 0);
}

double Rollout::first_share(double calls_per_s) const {
  if (!(calls_per_s > 0)) return policy_.first_share_max;
  const double floor = calls_per_s > policy_.busy_calls_per_s ? policy_.busy_share : 0;
  return std::clamp(policy_.exposed_per_s / calls_per_s, floor, policy_.first_share_max);
}

double Rollout::next_share() const {
  const double share = decision_.share;
  const int64_t since = test_.pairs() - pairs_at_step_;
  if (since < policy_.step_pairs_min || test_.e_slower() >= kUneasy) return share;
  for (const Step& s : kSteps) {
    if (s.share <= share) continue;
    return test_.e_faster() >= s.e_faster || since >= policy_.step_pairs_patient ? s.share : share;
  }
  return share;
}

double Rollout::tail_ratio() const {
  if (std::min(challenger_.count(), control_.count()) < policy_.tail_observations_min) return 0;
  return challenger_.quantile(0.99) / control_.quantile(0.99);
}

bool Rollout::ready() const {
  const double tail = tail_ratio();
  return test_.e_faster() >= policy_.e_promote && mean_.ratio_upper() < 1 && tail > 0 &&
         tail <= policy_.tail_slack;
}

Decision Rollout::shadow_match() {
  ++matches_;
  return set(decision_.stage, decision_.share);
}

Decision Rollout::start_in_canary(int64_t now_ns) {
  canary_ns_ = now_ns;
  return set(Stage::kCanary, kSteps[std::size(kSteps) - 1].share);
}

Decision Rollout::tick(double calls_per_s, int64_t now_ns) {
  if (decision_.stage == Stage::kShadow) {
    const bool unseen_for_long = matches_ == 0 && now_ns - born_ns_ >= policy_.shadow_wait_ns;
    if (matches_ < policy_.shadow_matches_min && !unseen_for_long) return set(Stage::kShadow, 0);
    canary_ns_ = now_ns;
    return set(Stage::kCanary, first_share(calls_per_s));
  }
  if (decision_.stage == Stage::kCanary) {
    if (now_ns - canary_ns_ >= policy_.canary_ns_max) return out(Cause::kNotProven, "not proven in time");
    if (ready() && now_ns - canary_ns_ >= policy_.canary_ns_min) return set(Stage::kIncumbent, 0);
  }
  return set(decision_.stage, decision_.share);
}

Decision Rollout::observe(const Observation& o, int64_t now_ns) {
  if (decision_.stage != Stage::kCanary || !std::isfinite(o.log_ratio))
    return set(decision_.stage, decision_.share);
  (o.arm == Arm::kChallenger ? challenger_ : control_).add(o.log_ratio);
  if (const auto pair = pairing_.add(o)) {
    test_.add(pair->challenger, pair->control);
    mean_.add(pair->challenger, pair->control);
    if (test_.e_slower() >= policy_.e_rollback) return out(Cause::kSlower, "slower on live traffic");
    if (ready() && now_ns - canary_ns_ >= policy_.canary_ns_min) return set(Stage::kIncumbent, 0);
    if (test_.pairs() >= policy_.pairs_max) return out(Cause::kNotProven, "not proven within its pairs");
    const double share = next_share();
    if (share != decision_.share) pairs_at_step_ = test_.pairs();
    return set(Stage::kCanary, share);
  }
  return set(decision_.stage, decision_.share);
}

std::string Rollout::explain() const {
  char text[320];
  if (decision_.stage == Stage::kShadow) {
    std::snprintf(text, sizeof text, "shadow: %lld of %d comparisons matched",
                  static_cast<long long>(matches_), policy_.shadow_matches_min);
    return text;
  }
  const int n = std::snprintf(text, sizeof text,
                              "%s: %lld pairs, mean ratio %.3f (bound %.3f), e-faster %.3g, e-slower %.3g",
                              stage_name(decision_.stage), static_cast<long long>(test_.pairs()),
                              mean_.ratio(), mean_.ratio_upper(), test_.e_faster(), test_.e_slower());
  std::string line(text, static_cast<size_t>(n));
  const double tail = tail_ratio();
  if (tail > 0) {
    std::snprintf(text, sizeof text, ", p99 %.3f of the control's", tail);
    line += text;
  }
  if (decision_.stage == Stage::kRolledBack) {
    line += std::string("; ") + cause_name(decision_.cause) + ": " + why_;
    if (decision_.quarantine) line += "; quarantined";
    return line;
  }
  if (decision_.stage != Stage::kCanary) return line;
  std::snprintf(text, sizeof text, "; share %.3g %%", 100 * decision_.share);
  line += text;
  if (test_.e_faster() < policy_.e_promote)
    line += "; waits for evidence";
  else if (mean_.ratio_upper() >= 1)
    line += "; waits for the mean's bound";
  else if (tail == 0)
    line += "; waits for observations of p99";
  else if (tail > policy_.tail_slack)
    line += "; its p99 is too high";
  return line;
}

}  // namespace niche::rollout
