// PermitGate: when a tuning process may use the device that serves. On one GPU each switch to another
// process's context costs a running request about 0.13 ms, whatever the other does (measured, docs/cuda.md):
// so work for tuning runs in bursts of a few hundred microseconds, begun only when no request is in flight,
// at a bounded duty.
//
// Roles: whoever tunes asks and gives back; the server's traffic is read, never made to wait. Requests that
// arrive while a permit is out are counted, since those are the ones that pay.
// Invariants: (1) at most one permit is out; (2) over any time t, the bursts given out take at most
// duty * t + bursts_saved bursts; (3) a permit that is not given back counts its whole time until it is revoked;
// (4) one that is given back counts what its holder says the device worked, never more than its whole time: the
// messages of a grant take as long as a short burst, and the device is free meanwhile.
// Thread-safety: one mutex, off the serving path. Cost: some 100 ns. No clock and no I/O of its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <mutex>

#include "dispatch/base/clock.h"
#include "evolve/probe/duty_governor.h"

namespace niche::evolve {

struct PermitLimits {
  int64_t burst_ns = 300'000;
  double duty = 0.01;  // share of the device's time; 1: an idle device of its own
  // Above `duty`: what it may rise to while requests stay as quick as without tuning (duty_governor.h).
  double duty_max = 0;
  // What a busy stretch left unused, for the gap after it. With one, 2 % are not reached beside a server that is busy
  // half of the time (simulated, docs/cuda.md).
  int bursts_saved = 4;
  // What is owed at most: a worker that its server stopped while it held a permit did nothing meanwhile.
  int64_t debt_ns_max = 100'000'000;
};

// What the server has to do: both only grow.
struct Traffic {
  uint64_t opened = 0, closed = 0;  // requests
  uint64_t in_flight() const { return opened > closed ? opened - closed : 0; }
};

struct Permit {
  uint64_t id = 0;             // 0: not now
  int64_t burst_ns = 0;        // from the grant on
  int64_t retry_after_ns = 0;  // id 0: when asking again makes sense
  int64_t used_ns = 0;         // of one that goes back: how long the device worked; 0: not known
  explicit operator bool() const { return id != 0; }
};

// Whoever hands out permits: the gate of this process, or a channel to it.
class PermitSource {
 public:
  virtual ~PermitSource() = default;
  virtual Permit ask(int64_t wanted_ns) = 0;
  virtual void give_back(const Permit& permit) = 0;
  // The holder had to be killed `late_ns` after the end of its permit.
  virtual void revoke(const Permit& permit) = 0;
  // A request of the server's ended while sessions ran, which without them takes `quiet_p99_ns` in one case of a
  // hundred (0: not known yet).
  virtual void request_took(double, double) {}
  // The share of the device's time that is given out now; 0: not known.
  virtual double duty() const { return 0; }
};

class PermitGate final : public PermitSource {
 public:
  struct Counts {
    uint64_t granted = 0;
    uint64_t busy = 0;       // refused: requests in flight, or another permit is out
    uint64_t throttled = 0;  // refused: the duty is used up
    uint64_t revoked = 0;
    uint64_t overrun = 0;    // given back after their end
    uint64_t disturbed = 0;  // requests that arrived while a permit was out
    int64_t used_ns = 0;
    double duty = 0;  // now
  };

  // `clock` outlives the gate; `traffic` is called under its lock.
  PermitGate(const PermitLimits& limits, const dispatch::Clock& clock, std::function<Traffic()> traffic);

  Permit ask(int64_t wanted_ns) override;
  void give_back(const Permit& permit) override;
  void revoke(const Permit& permit) override;
  void request_took(double ns, double quiet_p99_ns) override;
  double duty() const override { return counts().duty; }
  Counts counts() const;

 private:
  void end(const Permit& permit, bool revoked);
  void refill(int64_t now);
  double depth_ns() const {
    return static_cast<double>(limits_.burst_ns * std::max(1, limits_.bursts_saved));
  }

  const PermitLimits limits_;
  const dispatch::Clock& clock_;
  const std::function<Traffic()> traffic_;
  mutable std::mutex mutex_;
  DutyGovernor governor_;
  double tokens_ns_;
  int64_t refilled_at_;
  Permit out_;
  int64_t out_since_ = 0;
  uint64_t opened_at_grant_ = 0, next_id_ = 1;
  Counts counts_;
};

}  // namespace niche::evolve
