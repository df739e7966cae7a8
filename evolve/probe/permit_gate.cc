#include "evolve/probe/permit_gate.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace niche::evolve {
namespace {

constexpr int64_t kRetryBusyNs = 200'000;  // a request takes about so long: no use in asking sooner
// A request that ends so long after the last permit does not tell what tuning costs.
constexpr int64_t kStillFeltNs = 1'000'000'000;

}  // namespace

PermitGate::PermitGate(const PermitLimits& limits, const dispatch::Clock& clock,
                       std::function<Traffic()> traffic)
    : limits_(limits),
      clock_(clock),
      traffic_(std::move(traffic)),
      governor_({.floor = limits.duty, .ceiling = std::max(limits.duty, limits.duty_max)}),
      tokens_ns_(static_cast<double>(limits.burst_ns)),
      refilled_at_(clock.now_ns()) {}

void PermitGate::refill(int64_t now) {
  const double earned = static_cast<double>(now - refilled_at_) * governor_.duty();
  tokens_ns_ = std::min(tokens_ns_ + earned, depth_ns());
  refilled_at_ = now;
}

Permit PermitGate::ask(int64_t wanted_ns) {
  const std::lock_guard lock(mutex_);
  const int64_t now = clock_.now_ns();
  const int64_t burst = std::clamp<int64_t>(wanted_ns, 1, limits_.burst_ns);
  const Traffic traffic = traffic_();
  if (out_ || traffic.in_flight() > 0) {
    ++counts_.busy;
    return {0, 0, kRetryBusyNs};
  }
  refill(now);
  if (tokens_ns_ < static_cast<double>(burst)) {
    ++counts_.throttled;
    return {0, 0,
            static_cast<int64_t>(std::ceil((static_cast<double>(burst) - tokens_ns_) / governor_.duty()))};
  }
  ++counts_.granted;
  opened_at_grant_ = traffic.opened;
  out_since_ = now;
  out_ = {next_id_++, burst, 0};
  return out_;
}

void PermitGate::give_back(const Permit& permit) { end(permit, false); }
void PermitGate::revoke(const Permit& permit) { end(permit, true); }

void PermitGate::end(const Permit& permit, bool revoked) {
  const std::lock_guard lock(mutex_);
  if (!out_ || permit.id != out_.id) return;
  const int64_t now = clock_.now_ns(), whole = now - out_since_;
  const int64_t used = revoked || permit.used_ns <= 0 ? whole : std::min(permit.used_ns, whole);
  refill(now);
  tokens_ns_ -= static_cast<double>(used);  // below zero after a hang: it is paid for before the next one
  tokens_ns_ = std::max(tokens_ns_, -static_cast<double>(limits_.debt_ns_max));
  counts_.used_ns += used;
  counts_.disturbed += traffic_().opened - opened_at_grant_;
  counts_.revoked += revoked ? 1 : 0;
  counts_.overrun += !revoked && used > out_.burst_ns ? 1 : 0;
  out_ = {};
}

void PermitGate::request_took(double ns, double quiet_p99_ns) {
  const std::lock_guard lock(mutex_);
  const int64_t now = clock_.now_ns();
  if (counts_.granted == 0 || now - out_since_ > kStillFeltNs) return;
  refill(now);  // at the duty until now
  governor_.add(ns, quiet_p99_ns, now);
}

PermitGate::Counts PermitGate::counts() const {
  const std::lock_guard lock(mutex_);
  Counts c = counts_;
  c.duty = governor_.duty();
  return c;
}

}  // namespace niche::evolve
