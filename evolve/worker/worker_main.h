// worker_main: the process in which candidates live and die: `niche worker`, or a server's own binary
// re-executed (its main calls this first). It serves one session over the socket at descriptor 3 and ends
// with it.
//
// Single-threaded as long as the evaluator forks (a device's judge forks first, and has threads then). It makes
// itself small (oom_score_adj 1000, SCHED_IDLE, nice 19, a limit on data) and dies with the server
// (PR_SET_PDEATHSIG; end of the socket).
#pragma once

#include <functional>
#include <string>

#include "evolve/probe/permit_gate.h"
#include "evolve/session/local_session.h"

namespace niche::evolve {

// What a session for a device needs instead of the CPU's.
struct DeviceSession {
  FamilyRegistry families;
  kernels_cache::Environment environment;
  EvaluatorFactory make_evaluator;
  std::string device;                      // "cuda.sm_90a": CpuTarget::device
  std::shared_ptr<const CudaTarget> cuda;  // CpuTarget::cuda
};

// What only the program above knows.
struct WorkerHooks {
  // Loads one of SessionRequest::op_libraries, as the server did. Empty: a request that names any is refused.
  std::function<dispatch::Status(const SessionRequest&, const std::string& path, dispatch::OpRegistry&,
                                 FamilyRegistry&)>
      load_library;
  // The environment key, as the server computes it. Required.
  std::function<dispatch::Result<kernels_cache::Environment>(const SessionRequest&)> environment;
  EvaluatorFactory make_evaluator;  // required: evolve::make_evaluator
  ChildStart child_start;           // see evaluator.h
  // Starts the process that asks SessionRequest::model's proposer; called before the session has a child. Empty: a
  // request's proposer is not asked, and the session says so.
  std::function<dispatch::Result<std::unique_ptr<proposer::ProposalSource>>(const ModelRequest&)> proposer{};
  // For a request that names a device. `permits` and `clock` live as long as the session. Empty: such a
  // request is refused.
  std::function<dispatch::Result<DeviceSession>(const SessionRequest&, PermitSource& permits,
                                                const dispatch::Clock& clock)>
      device{};
};

// Exit status: 0: the session ended, or the server did; 64: not started by a WorkerClient; 65: the server
// spoke nonsense; 70: versions differ. Messages for people go to stderr.
int worker_main(int argc, char** argv, dispatch::OpRegistry& ops, FamilyRegistry& families,
                const WorkerHooks& hooks);

}  // namespace niche::evolve
