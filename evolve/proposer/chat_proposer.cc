#include "evolve/proposer/chat_proposer.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "evolve/proposer/http_post.h"
#include "evolve/proposer/sse.h"

namespace niche::evolve::proposer {
namespace {

using dispatch::Code;
using dispatch::Result;
using dispatch::Status;
using SteadyClock = std::chrono::steady_clock;

constexpr int kNegotiationsMax = 4;

double now_seconds() { return std::chrono::duration<double>(SteadyClock::now().time_since_epoch()).count(); }

bool status_passes(int status) {
  return status == 408 || status == 409 || status == 429 || status == 529 || (status >= 500 && status <= 504);
}

// A 429 that no waiting heals.
bool out_of_credit(std::string_view body) {
  for (std::string_view word :
       {"insufficient_quota", "insufficient balance", "Insufficient Balance", "billing", "credit balance"})
    if (body.find(word) != std::string_view::npos) return true;
  return false;
}

}  // namespace

struct ChatProposer::Attempt {
  ChatAnswer answer;
  Status status;
  bool passes = true;    // trying again may help
  bool lasting = false;  // nothing but a person helps
  bool billed = false;   // the service has begun to answer, or may have begun to think
  double retry_after = 0;
  int http_status = 0;
  std::string error_body;
};

ChatProposer::Attempt ChatProposer::attempt(const ProposalRequest& request, double seconds) {
  Attempt a;
  const auto reader = dialect_->reader();
  SseParser parser([&](std::string_view event, std::string_view data) {
    reader->event(event, data, a.answer);
    return a.answer.error.ok() && a.answer.text.size() <= kReplyTextBytesMax;
  });
  std::string raw;  // the beginning, to say what came when it was no stream
  HttpRequest http;
  http.url = dialect_->url();
  http.headers = dialect_->headers(key_);
  http.body = dialect_->body(request);
  http.seconds_max = seconds;
  http.stall_seconds = options_.stall_seconds;
  http.keep_going = options_.keep_going;
  http.on_bytes = [&](std::string_view bytes) {
    a.billed = true;
    if (raw.size() < kReplyTextBytesMax) raw.append(bytes);
    return parser.feed(bytes);
  };
  bool sent = false;
  http.sent = &sent;
  auto answer = http_post(http);
  if (!answer.ok()) {
    a.status = answer.status();
    // We did not wait for the end. A model that thinks says nothing for minutes, and what it thought is paid for.
    a.billed = a.billed || (sent && a.status.code() == Code::kBusy);
    // Too long once is too long again; and whoever stopped us does not want another try.
    a.passes = a.status.code() != Code::kCorrupt && (!options_.keep_going || options_.keep_going());
    return a;
  }
  a.http_status = answer->status;
  a.retry_after = answer->retry_after;
  if (answer->status != 200) {
    a.error_body = answer->error_body;
    a.lasting = answer->status == 401 || answer->status == 402 || answer->status == 403 ||
                answer->status == 404 || (answer->status == 429 && out_of_credit(a.error_body));
    a.passes = status_passes(answer->status) && !a.lasting;
    a.status = dispatch::io_error("the service answered " + std::to_string(answer->status) + ": " +
                                  error_message(a.error_body));
    return a;
  }
  parser.finish();
  if (a.answer.text.empty() && !a.answer.complete && raw.find_first_not_of(" \r\n\t") != std::string::npos &&
      raw[raw.find_first_not_of(" \r\n\t")] == '{') {
    // A server that does not stream: one object with the whole answer.
    a.answer.error = {};
    reader->event("", raw, a.answer);
  }
  if (!a.answer.error.ok()) {
    a.status = a.answer.error;
    a.passes = a.answer.error_passes;
  } else if (a.answer.text.size() > kReplyTextBytesMax) {
    a.status = dispatch::corrupt("an answer of more than 1 MiB of text");
    a.passes = false;
  } else if (!a.answer.refusal.empty()) {
    a.status = dispatch::invalid("no answer: " + a.answer.refusal.substr(0, 200));
    a.passes = false;
  } else if (!a.answer.complete) {
    a.status = dispatch::io_error("the answer's stream was cut after " +
                                  std::to_string(a.answer.text.size()) + " bytes of text");
  } else if (a.answer.text.empty()) {
    a.status = dispatch::invalid("the answer holds no text");
    a.passes = false;
  }
  return a;
}

// A service that quotes the key in what it says must not get it into a log or a store.
void ChatProposer::redact(std::string& text) const {
  if (key_.size() < 8) return;
  for (size_t at; (at = text.find(key_)) != std::string::npos;) text.replace(at, key_.size(), "[key]");
}

bool ChatProposer::wait(double seconds) const {
  for (const double end = now_seconds() + seconds; now_seconds() < end;) {
    if (options_.keep_going && !options_.keep_going()) return false;
    const double left = end - now_seconds();
    std::this_thread::sleep_for(std::chrono::duration<double>(std::clamp(left, 0.0, 0.1)));
  }
  return true;
}

Result<ProposalReply> ChatProposer::propose(const ProposalRequest& request) {
  const double start = now_seconds();
  if (breaker_.open(start))
    return dispatch::busy("the service failed too often; asked again in " +
                          std::to_string(static_cast<int>(breaker_.seconds_left(start)) + 1) + " s");
  RetryPlan plan(request.seconds_max, options_.retry_first_seconds);
  const int64_t input_guess = estimate_tokens(request.stable.size() + request.prompt.size());
  for (int negotiations = 0;;) {
    NICHE_RETURN_IF_ERROR(budget_.reserve(input_guess, request.tokens_max));
    Attempt a = attempt(request, request.seconds_max - (now_seconds() - start));
    // What was begun is paid for, whether or not it was any use. A cut stream brings no usage, and what a model
    // thought is not in its text: then everything that was reserved counts.
    if (a.billed) {
      Usage& u = a.answer.usage;
      u.estimated = u.input_tokens == 0 || !a.answer.complete;
      if (u.input_tokens == 0) u.input_tokens = input_guess;
      if (!a.answer.complete)
        u.output_tokens = std::max<int64_t>(u.output_tokens, request.tokens_max);
      else if (u.estimated)
        u.output_tokens = std::max(u.output_tokens, estimate_tokens(a.answer.text.size()));
      budget_.settle(u);
    } else {
      budget_.release();
    }
    if (a.status.ok()) {
      breaker_.succeeded();
      redact(a.answer.text);
      return ProposalReply{request.id, std::move(a.answer.text), std::move(a.answer.model), a.answer.usage};
    }
    if (negotiations < kNegotiationsMax && dialect_->learn(a.http_status, a.error_body)) {
      ++negotiations;
      continue;
    }
    const double elapsed = now_seconds() - start;
    const double chance = std::uniform_real_distribution<double>()(random_);
    const double pause = a.passes ? plan.next_wait(elapsed, a.retry_after, chance) : -1;
    if (pause >= 0 && wait(pause)) continue;
    breaker_.failed(now_seconds(), a.lasting);
    std::string text = a.status.message();
    redact(text);
    if (plan.tries() > 1) text += " (after " + std::to_string(plan.tries()) + " tries)";
    return Status(a.lasting ? Code::kUnsupported : a.status.code(), text);
  }
}

}  // namespace niche::evolve::proposer
