// On which device a session runs: not where its operator is served, if another device of the same class has less to
// do. What is verified there is verified for every device of that class: they share an environment and its cache.
//
// Thread-safety: choose_tuning_device is pure; BusyWindow has one owner; TuningGate may be used from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "evolve/probe/permit_gate.h"

namespace niche {

// Share of the last seconds that each device spent on timed calls of this Runtime. Replays of captured graphs are not
// timed: a device that does nothing else looks idle here.
class BusyWindow {
 public:
  static constexpr int kDevicesMax = 65;  // the host first
  static constexpr int64_t kWindowNs = 1'000'000'000;

  void add(int device, double ns);
  // Time goes on: what is older than two windows is forgotten.
  void advance(int64_t now_ns);
  double share(int device) const;

 private:
  std::array<double, kDevicesMax> now_{}, before_{};
  int64_t began_ns_ = 0, before_length_ns_ = 0, length_ns_ = 0;
};

// As CallFrame::device says; element 0, the host, is never chosen.
struct DeviceLoad {
  bool usable = false;  // a sound device of the class that is wanted, whose cache can be written
  int sessions = 0;     // that run there now
  double busy = 0;      // BusyWindow::share
};
// "cuda:0" of a device numbered as CallFrame::device says. Not of the host.
std::string device_name(int device);

struct TuningChoice {
  int device = 0;
  std::string why;  // "cuda:1: busy 0 %, where cuda:0, which serves it, is busy 12 %"
};
// `home`: the device on which the operator is hot. `policy`: RuntimeConfig::tuning_device. A device is left for another
// one only where that has fewer sessions, or is idle, or is less busy by more than kWorthMoving.
TuningChoice choose_tuning_device(int home, std::string_view policy, std::span<const DeviceLoad> devices);
inline constexpr double kWorthMoving = 0.01;
inline constexpr double kIdleBelow = 0.002;

// Permits for sessions on one device: as the gate between requests says where it serves, and all of the time of a device
// that nobody ever called, one permit at a time. One that is out when the first call comes is not called back: it ends
// within kOwnBurstNs.
class TuningGate final : public evolve::PermitSource {
 public:
  static constexpr int64_t kOwnBurstNs = 2'000'000;
  explicit TuningGate(std::unique_ptr<evolve::PermitSource> between_requests)
      : between_requests_(std::move(between_requests)) {}
  // relaxed: acts on some later ask.
  void set_serves(bool serves) { serves_.store(serves, std::memory_order_relaxed); }

  evolve::Permit ask(int64_t wanted_ns) override;
  void give_back(const evolve::Permit& permit) override;
  void revoke(const evolve::Permit& permit) override;
  void request_took(double ns, double quiet_p99_ns) override {
    between_requests_->request_took(ns, quiet_p99_ns);
  }
  double duty() const override {
    return serves_.load(std::memory_order_relaxed) ? between_requests_->duty() : 1;
  }

 private:
  static constexpr uint64_t kOwn = uint64_t{1}
                                   << 63;  // in a permit's id: of this gate, not of the one between requests
  bool end(const evolve::Permit& permit);  // whether it is the other gate's
  const std::unique_ptr<evolve::PermitSource> between_requests_;
  std::atomic<bool> serves_{true};
  std::mutex mutex_;
  uint64_t out_ = 0, next_ = 0;  // out_: the permit that is out; 0: none
};

}  // namespace niche
