// ProposalRequest, ProposalReply: one question to a model and its answer, whatever the model is: a service, a
// program, or a person behind a mailbox folder.
//
// Thread-safety: values and pure functions. Bounds: a request is at most 1 MiB of JSON, a reply's text 1 MiB.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "dispatch/base/status.h"

namespace niche::evolve::proposer {

inline constexpr size_t kReplyTextBytesMax = size_t{1} << 20;

struct ProposalRequest {
  std::string id;      // names files and logs: letters, digits, '-', '_', '.'
  std::string task;    // "draft", "improve", "repair", "combine"
  std::string stable;  // equal in all requests of a session, so that a service can cache it: rules, ABI,
                       // hardware, operator
  std::string prompt;  // what is new: measured attempts, the failure to repair
  std::string parent;  // the program that SEARCH/REPLACE edits refer to; empty: whole programs only
  double seconds_max = 300;
  int tokens_max = 16'384;  // of the answer
};

struct Usage {
  int64_t input_tokens = 0, output_tokens = 0, cached_tokens = 0;
  double usd = 0;
  bool estimated = false;  // the service did not say: counted from bytes
};

struct ProposalReply {
  std::string id;     // the request's
  std::string text;   // the answer in full; parse_reply() finds programs in it
  std::string model;  // who answered, for provenance
  Usage usage;
};

// {"niche_proposal": 1, "id", "task", "stable", "prompt", "parent", "seconds_max", "tokens_max"}
std::string request_to_json(const ProposalRequest& request);
dispatch::Result<ProposalRequest> request_from_json(std::string_view text);

// {"id", "text", "model", "usage": {...}}; only "text" must be there.
std::string reply_to_json(const ProposalReply& reply);
// What a program or a person wrote: the JSON of a reply, or any other text, which then is the answer itself.
// kInvalid: empty, too long, not UTF-8, or with a NUL in it.
dispatch::Result<ProposalReply> reply_from_text(std::string_view text, const ProposalRequest& request);

// Length in bytes of the longest prefix that is UTF-8 without NUL.
size_t valid_utf8(std::string_view text);

}  // namespace niche::evolve::proposer
