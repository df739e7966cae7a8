// Dialect: how a family of services spells a chat: the request's body and headers, the stream of its answer,
// and what its errors mean. ChatProposer does the rest alike for all of them.
//
// Thread-safety: a Dialect is immutable but for what it learnt of its service; one owner. An AnswerReader
// reads one answer.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/base/status.h"
#include "evolve/proposer/proposal.h"

namespace niche::evolve::proposer {

// How an answer ended, as far as it was read.
struct ChatAnswer {
  std::string text;
  Usage usage;  // input_tokens 0: the service did not say
  std::string model;
  bool complete = false;   // the service said that it is at its end
  bool cut = false;        // at the token limit
  std::string refusal;     // why the service would not answer
  dispatch::Status error;  // one that came inside the stream, after status 200
  bool error_passes = true;
};

class AnswerReader {
 public:
  virtual ~AnswerReader() = default;
  virtual void event(std::string_view name, std::string_view data, ChatAnswer& answer) = 0;
};

class Dialect {
 public:
  virtual ~Dialect() = default;
  virtual std::string url() const = 0;
  virtual std::vector<std::string> headers(const std::string& key) const = 0;
  virtual std::string body(const ProposalRequest& request) const = 0;
  virtual std::unique_ptr<AnswerReader> reader() const = 0;
  // A refusal that names an optional parameter: leave it out from now on. True: worth asking again at once.
  virtual bool learn(int status, std::string_view error_body) = 0;
};

// base: "http://127.0.0.1:8080/v1" (what stands before /chat/completions).
std::unique_ptr<Dialect> openai_dialect(const std::string& base, const std::string& model);
// base: "https://host" (what stands before /v1/messages).
std::unique_ptr<Dialect> anthropic_dialect(const std::string& base, const std::string& model);

// A short text out of a service's error body: its "message", else the beginning of the body.
std::string error_message(std::string_view error_body);

}  // namespace niche::evolve::proposer
