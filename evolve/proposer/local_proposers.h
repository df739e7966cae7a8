// Proposers without a service: a program that is run for each request, and a folder in which a person, or an
// agent that can read and write files, answers.
#pragma once

#include <string>

#include "evolve/proposer/proposer.h"

namespace niche::evolve::proposer {

// Runs `command` by /bin/sh: the request's JSON on its standard input, the answer (a reply's JSON, or just
// text) from its standard output. It and what it started is killed at the deadline, or when it says more than
// 1 MiB. kUnsupported: status 126 or 127, the shell could not run it; kIo: any other failure, with the last
// line of its standard error. Money: it must count itself; what it states is booked against the budget.
class ExecProposer final : public Proposer {
 public:
  ExecProposer(std::string command, const ProposerOptions& options)
      : command_(std::move(command)), options_(options), budget_(options.budget, options.price) {}
  dispatch::Result<ProposalReply> propose(const ProposalRequest& request) override;
  ModelBudget* budget() override { return &budget_; }

 private:
  std::string command_;
  ProposerOptions options_;
  ModelBudget budget_;
};

// Writes DIR/ID.request.json and, the same for reading, DIR/ID.request.md; waits for DIR/ID.reply.json, .md,
// .txt or .cc. A reply counts once its size and time have stood still for `settle_seconds`; write it under
// another name and rename it, and it is complete from the first. A reply that lies there before its request
// belongs to an earlier one of that name (a session that was killed): it is renamed to *.old, not taken.
// Requests that are over are removed, replies stay.
class MailboxProposer final : public Proposer {
 public:
  MailboxProposer(std::string dir, const ProposerOptions& options, double settle_seconds = 1)
      : dir_(std::move(dir)), options_(options), settle_seconds_(settle_seconds) {}
  dispatch::Result<ProposalReply> propose(const ProposalRequest& request) override;

 private:
  std::string dir_;
  ProposerOptions options_;
  double settle_seconds_;
};

}  // namespace niche::evolve::proposer
