// ProposerProcess: a Proposer in a process of its own, so that the session goes on while a model thinks, and
// so that keys, libcurl and its threads are never in a process that forks evaluators.
//
// Started before the session, with the caller's whole environment; the caller then scrubs its own
// (secrets.h). Frames of JSON over a socket pair. Its end closes the socket; the death of either side ends
// the other's wait. Thread-safety: one owner.
#pragma once

#include <memory>
#include <string>

#include "evolve/proposer/proposal_source.h"
#include "evolve/proposer/proposer.h"

namespace niche::evolve::proposer {

struct ProposerProcessOptions {
  std::string program;            // one whose main calls proposer_main()
  std::vector<std::string> args;  // usually {"proposer"}
  std::string spec;               // make_proposer()'s
  BudgetLimits budget;
  ModelPrice price;
  std::string key_file;
  double stall_seconds = 300;
  // For its first word, which comes when libtorch is loaded: beside a busy server that may take half a minute. 0: not at
  // all; what make_proposer() says is then what came of the first request.
  double hello_seconds_max = 120;
};

// kNotFound, kIo: no such program, or no word from it; else what make_proposer() says.
dispatch::Result<std::unique_ptr<ProposalSource>> start_proposer_process(
    const ProposerProcessOptions& options);

// The other end, on descriptor 3. Returns the exit status.
int proposer_main();

}  // namespace niche::evolve::proposer
