// run_local_session: a whole session in this process: opens the cache and the store, takes the Definition's
// lease, runs, and gives everything back. What `niche evolve` runs in the foreground, and what a worker runs
// for its server.
//
// The process must have no other threads (the evaluator forks). Thread-safety: one session a process at a
// time.
#pragma once

#include <functional>
#include <string>

#include "evolve/session/session.h"
#include "kernels_cache/environment.h"

namespace niche::evolve {

struct LocalSessionOptions {
  const dispatch::OpRegistry* ops = nullptr;
  const FamilyRegistry* families = nullptr;
  kernels_cache::Environment environment;  // as the server that will read the cache makes it
  EvaluatorFactory make_evaluator;         // required
  EvaluatorOptions evaluator_options;      // child_start and limits; the rest is the session's
  const dispatch::Clock* clock = nullptr;  // null: the system's
  std::function<void(const SessionEvent&)> on_event;
  std::function<bool()> stop;
  std::function<void(const std::string&)> log;  // one line a trouble that does not end the session
  std::string device{};                         // "cuda.sm_90a": CpuTarget::device
  std::shared_ptr<const CudaTarget> cuda{};     // CpuTarget::cuda
  ModelParts model;                             // its skills are opened here, in the cache directory
  bool profile = false;                         // SessionParts::profile
};

// The session's last event. Before a session exists: kBusy: another process evolves this Definition (the
// message names it); kIo, kUnsupported: the cache directory; what Session::create gives. An empty
// request.session_id gets a fresh one; an empty store_path means no store. A damaged store is logged and a
// fresh one used beside it.
dispatch::Result<SessionEvent> run_local_session(SessionRequest request, LocalSessionOptions options);

// "20261129T154107-3f2a9c01": the time and some entropy; sorts by time.
std::string new_session_id(int64_t unix_ns);

}  // namespace niche::evolve
