// A CUDA device as `niche evolve` and `niche evaluate` use one. Nobody serves in this process: the device is the session's,
// burst after burst.
//
// Thread-safety: one owner thread. It must outlive the evaluators that it makes.
#pragma once

#include <memory>
#include <string>

#include "dispatch/base/clock.h"
#include "evolve/probe/permit_gate.h"
#include "evolve/worker/worker_main.h"

namespace niche::cli {

class SessionDevice {
 public:
  // `request`: its device, op_libraries and cache_dir (empty: cubins are not kept). `profile`: with Nsight Compute, where it is
  // found; else that is said on stderr. kUnsupported: this build has no CUDA, or no device is here: the message says what to
  // do.
  static dispatch::Result<std::unique_ptr<SessionDevice>> open(const evolve::SessionRequest& request,
                                                               bool profile);

  const evolve::DeviceSession& session() const { return session_; }
  bool profiles() const { return profiles_; }

 private:
  SessionDevice() = default;
  dispatch::SystemClock clock_;
  evolve::PermitGate gate_{{.burst_ns = 20'000'000, .duty = 1.0}, clock_, [] { return evolve::Traffic(); }};
  evolve::DeviceSession session_;
  bool profiles_ = false;
};

}  // namespace niche::cli
