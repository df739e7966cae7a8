// The process that asks a session's model: started by `niche evolve --proposer` and by `niche worker` for a server
// whose config names a proposer.
//
// Thread-safety: call before the process has a thread or a child.
#pragma once

#include <memory>

#include "evolve/proposer/proposal_source.h"
#include "evolve/worker_client.h"

namespace niche::cli {

// Runs this very program as `niche proposer` and waits so long for its first word (proposer_process.h). kInvalid names what of the request is wrong; else what
// start_proposer_process says.
dispatch::Result<std::unique_ptr<evolve::proposer::ProposalSource>> start_session_proposer(
    const evolve::ModelRequest& model, double hello_seconds_max);

}  // namespace niche::cli
