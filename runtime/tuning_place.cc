#include "runtime/tuning_place.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace niche {

using evolve::Permit;

std::string device_name(int device) { return "cuda:" + std::to_string(device - 1); }

void BusyWindow::add(int device, double ns) {
  if (device >= 0 && device < kDevicesMax) now_[static_cast<size_t>(device)] += ns;
}

void BusyWindow::advance(int64_t now_ns) {
  if (began_ns_ == 0) began_ns_ = now_ns;
  length_ns_ = now_ns - began_ns_;
  if (length_ns_ < kWindowNs) return;
  before_ = length_ns_ < 2 * kWindowNs ? now_ : decltype(now_){};
  before_length_ns_ = length_ns_ < 2 * kWindowNs ? length_ns_ : kWindowNs;
  now_ = {};
  began_ns_ = now_ns;
  length_ns_ = 0;
}

double BusyWindow::share(int device) const {
  if (device < 0 || device >= kDevicesMax) return 0;
  const auto length = static_cast<double>(before_length_ns_ + length_ns_);
  const auto d = static_cast<size_t>(device);
  return length > 0 ? (before_[d] + now_[d]) / length : 0;
}

namespace {

std::string percent(double share) { return std::to_string(std::lround(share * 100)) + " %"; }
std::string told(int device, const DeviceLoad& l) {
  return device_name(device) + (l.sessions > 0        ? " with " + std::to_string(l.sessions) + " sessions"
                                : l.busy < kIdleBelow ? " idle"
                                                      : " busy " + percent(l.busy));
}

}  // namespace

TuningChoice choose_tuning_device(int home, std::string_view policy, std::span<const DeviceLoad> devices) {
  const DeviceLoad& mine = devices[static_cast<size_t>(home)];
  if (policy == "same") return {home, device_name(home) + ", where it is served: tuning_device = same"};
  int best = home, others = 0;
  for (int i = 1; i < static_cast<int>(devices.size()); ++i) {
    const DeviceLoad &l = devices[static_cast<size_t>(i)], &b = devices[static_cast<size_t>(best)];
    if (i == home || !l.usable) continue;
    ++others;
    if (std::tie(l.sessions, l.busy) < std::tie(b.sessions, b.busy)) best = i;
  }
  if (others == 0)
    return {home, device_name(home) + ", where it is served: no other device of its class can be used"};
  const DeviceLoad& there = devices[static_cast<size_t>(best)];
  const bool worth = there.sessions < mine.sessions || mine.busy - there.busy > kWorthMoving ||
                     (there.busy < kIdleBelow && mine.busy >= kIdleBelow);
  if (best == home || !worth)
    return {home, device_name(home) + ", where it is served: no device of its class has less to do"};
  return {best, told(best, there) + ", where " + told(home, mine) + " serves it"};
}

Permit TuningGate::ask(int64_t wanted_ns) {
  constexpr int64_t kRetryNs = 200'000;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (out_ != 0) return {0, 0, kRetryNs};
  const Permit p = serves_.load(std::memory_order_relaxed)
                       ? between_requests_->ask(wanted_ns)
                       : Permit{kOwn | ++next_, std::clamp<int64_t>(wanted_ns, 1, kOwnBurstNs), 0};
  out_ = p.id;
  return p;
}

bool TuningGate::end(const Permit& permit) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (permit.id == out_) out_ = 0;
  return (permit.id & kOwn) == 0;
}
void TuningGate::give_back(const Permit& permit) {
  if (end(permit)) between_requests_->give_back(permit);
}
void TuningGate::revoke(const Permit& permit) {
  if (end(permit)) between_requests_->revoke(permit);
}

}  // namespace niche
