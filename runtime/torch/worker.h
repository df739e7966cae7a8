// worker_main: a server's own binary as the worker program: for servers that cannot ship `niche` beside them.
//
//   int main(int argc, char** argv) {
//     if (niche::is_worker(argc, argv)) return niche::worker_main(argc, argv);   // first: before any thread
//     config.worker_program = "/proc/self/exe";
//     config.worker_args = {"niche-worker"};
//
// Thread-safety: call before the process starts any thread, ATen's included.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/op_spec.h"
#include "evolve/evaluator.h"
#include "evolve/proposer/proposal_source.h"
#include "evolve/template_family.h"
#include "kernels_cache/environment.h"

namespace niche {

// argv[1] is "worker" or "niche-worker"; in a build with CUDA also "probe": the process in which a session's
// candidates for a GPU run.
bool is_worker(int argc, char** argv);
// Starts the process that asks a session's model. `niche` gives one; a server's own binary has none: it would have to
// link libcurl, and its sessions then search templates alone.
using ProposerStart = std::function<dispatch::Result<std::unique_ptr<evolve::proposer::ProposalSource>>(
    const evolve::ModelRequest&)>;
// Serves one session over the socket that a WorkerClient gave it (or a DeviceProbe). See evolve/worker/worker_main.h for exit
// codes.
int worker_main(int argc, char** argv, ProposerStart proposer = {});

// What server, worker and command line share, so that their environment keys are equal.
std::vector<std::string> torch_libraries();  // {"torch 2.11.0"}
// RuntimeConfig::has_family for the CPU's families.
std::function<bool(const dispatch::Definition&)> family_lookup();
dispatch::Status register_everything(dispatch::OpRegistry* ops, evolve::FamilyRegistry* families);
// Sets a forked child's thread count before it computes.
dispatch::Executor torch_child_start(int threads);

}  // namespace niche
