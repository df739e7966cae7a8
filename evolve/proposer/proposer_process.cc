#include "evolve/proposer/proposer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "evolve/worker/frame_channel.h"

extern char** environ;

namespace niche::evolve::proposer {
namespace {

using dispatch::Code;
using dispatch::Result;
using dispatch::Status;
using json = nlohmann::ordered_json;
using worker::FrameChannel;

constexpr int kFd = 3;
constexpr int kConfigTimeoutMs = 120'000, kSendTimeoutMs = 2000;

int milliseconds(double seconds) { return static_cast<int>(std::clamp(seconds, 0.0, 3600.0) * 1000); }

std::string dump(const json& j) { return j.dump(-1, ' ', false, json::error_handler_t::replace); }

json error_object(const Status& s) {
  return {{"error", {{"code", static_cast<int>(s.code())}, {"message", s.message()}}}};
}
std::string error_frame(const Status& s) { return dump(error_object(s)); }

// {"spent": {"usd", "tokens"}} beside whatever else a frame holds: the ledger after it, or before all of it.
json spent_object(double usd, int64_t tokens) { return {{"usd", usd}, {"tokens", tokens}}; }
std::optional<Usage> spent_of(const json& frame) {
  if (!frame.is_object() || !frame.contains("spent") || !frame["spent"].is_object()) return std::nullopt;
  const json& s = frame["spent"];
  if (!s.contains("usd") || !s["usd"].is_number() || !s.contains("tokens") ||
      !s["tokens"].is_number_integer())
    return std::nullopt;
  Usage u;
  u.usd = s["usd"].get<double>();
  u.output_tokens = s["tokens"].get<int64_t>();
  return u;
}

// OK where the frame holds no error.
Status error_of(const std::string& frame) {
  const json j = json::parse(frame, nullptr, false);
  if (!j.is_object()) return dispatch::corrupt("proposer process: a frame that is no JSON");
  if (!j.contains("error")) return {};
  const json& e = j["error"];
  const int code = e.is_object() ? e.value("code", 0) : 0;
  if (code <= 0 || code > static_cast<int>(Code::kInternal) || !e.contains("message") ||
      !e["message"].is_string())
    return dispatch::corrupt("proposer process: an error without a code");
  return {static_cast<Code>(code), e["message"].get<std::string>()};
}

class Process final : public ProposalSource {
 public:
  Process(pid_t pid, int fd, ModelPrice price)
      : pid_(pid), channel_(std::make_unique<FrameChannel>(fd)), price_(price) {}
  ~Process() override {
    if (::getpid() != owner_) return;
    channel_.reset();  // it sees the end of its input, and ends what it started itself
    for (int i = 0; i < 200; ++i) {
      if (::waitpid(pid_, nullptr, WNOHANG) != 0) return;
      ::poll(nullptr, 0, 10);
    }
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Status greet(const ProposerProcessOptions& o) {
    const json config{{"spec", o.spec},
                      {"usd_max", o.budget.usd_max},
                      {"tokens_max", o.budget.tokens_max},
                      {"price_in", o.price.input},
                      {"price_out", o.price.output},
                      {"key_file", o.key_file},
                      {"stall_seconds", o.stall_seconds}};
    NICHE_RETURN_IF_ERROR(channel_->send(dump(config), kSendTimeoutMs));
    if (!(o.hello_seconds_max > 0)) return {};
    const Status s = hear_hello(milliseconds(o.hello_seconds_max));
    return !s.ok() || greeted_ ? s : dispatch::io_error("proposer process: no answer");
  }
  bool idle() const override { return !ended_ && !request_; }
  bool ended() const override { return ended_; }
  std::optional<Usage> spent() const override { return spent_; }
  Status start_from(const Usage& spent) override {
    const int64_t tokens = spent.input_tokens + spent.output_tokens;
    NICHE_RETURN_IF_ERROR(channel_->send(dump({{"spent", spent_object(spent.usd, tokens)}}), kSendTimeoutMs));
    before_ = Usage{0, tokens, 0, spent.usd, false};
    if (spent_) spent_ = before_;
    return {};
  }
  Status start(const ProposalRequest& request) override {
    // One that has ended may have said why.
    Status s = hear_hello(0);
    if (s.ok()) s = channel_->send(request_to_json(request), kSendTimeoutMs);
    if (!s.ok() && !greeted_)
      if (const Status why = hear_hello(kSendTimeoutMs); !why.ok()) s = why;
    if (s.ok())
      request_ = request;
    else
      ended_ = true;
    return s;
  }
  std::optional<Result<ProposalReply>> poll(int timeout_ms) override {
    if (ended_ || !request_) return std::nullopt;
    const auto start = std::chrono::steady_clock::now();
    if (const Status s = hear_hello(timeout_ms); !s.ok()) {
      request_.reset();
      ended_ = true;
      return Result<ProposalReply>(s);
    }
    if (!greeted_) return std::nullopt;
    const auto heard =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
    auto frame = channel_->receive(std::max(0, timeout_ms - static_cast<int>(heard.count())));
    if (frame.ok() && !*frame) return std::nullopt;
    const ProposalRequest request = std::move(*request_);
    request_.reset();
    if (!frame.ok()) {
      ended_ = true;
      return Result<ProposalReply>(dispatch::unsupported("proposer process: " + frame.status().message()));
    }
    if (auto spent = spent_of(json::parse(**frame, nullptr, false))) spent_ = spent;
    if (Status s = error_of(**frame); !s.ok()) {
      ended_ = s.code() == Code::kUnsupported;
      return Result<ProposalReply>(s);
    }
    return reply_from_text(**frame, request);
  }
  void finish(double seconds_max) override {
    if (ended_) return;
    // It sees that nobody asks any more, and can still say what it has spent.
    ::shutdown(channel_->fd(), SHUT_WR);
    const std::optional<ProposalRequest> asked = request_;
    const bool silent = asked && !poll(milliseconds(seconds_max));
    // One that has not said a word may keep an account.
    if (silent && !greeted_ && !spent_) spent_ = before_.value_or(Usage{});
    if (silent && spent_) {
      Usage most{estimate_tokens(asked->stable.size() + asked->prompt.size()), asked->tokens_max, 0, 0, true};
      spent_->usd += price_.known() ? ModelBudget({}, price_).price_of(most) : 0;
      spent_->output_tokens += most.input_tokens + most.output_tokens;
    }
    ended_ = true;
  }

 private:
  // Its first word, where that has not come: OK and not greeted_: not within the timeout.
  Status hear_hello(int timeout_ms) {
    if (greeted_) return {};
    auto hello = channel_->receive(timeout_ms);
    if (!hello.ok()) return dispatch::unsupported("proposer process: " + hello.status().message());
    if (!*hello) return {};
    NICHE_RETURN_IF_ERROR(error_of(**hello));
    greeted_ = true;
    spent_ = spent_of(json::parse(**hello, nullptr, false));
    if (spent_ && before_) spent_ = before_;
    return {};
  }

  const pid_t owner_ = ::getpid();
  pid_t pid_;
  std::unique_ptr<FrameChannel> channel_;
  std::optional<ProposalRequest> request_;
  std::optional<Usage> spent_;   // nothing: it keeps no account, or has not said so
  std::optional<Usage> before_;  // start_from()
  ModelPrice price_;
  bool greeted_ = false, ended_ = false;
};

bool parent_asks() {
  pollfd p{kFd, POLLRDHUP, 0};
  return ::poll(&p, 1, 0) <= 0 || (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0;
}

Result<std::unique_ptr<Proposer>> configured(const std::string& frame) {
  const json j = json::parse(frame, nullptr, false);
  if (!j.is_object()) return dispatch::corrupt("proposer process: no configuration");
  try {
    ProposerOptions o;
    j.at("usd_max").get_to(o.budget.usd_max);
    j.at("tokens_max").get_to(o.budget.tokens_max);
    j.at("price_in").get_to(o.price.input);
    j.at("price_out").get_to(o.price.output);
    j.at("key_file").get_to(o.key_file);
    j.at("stall_seconds").get_to(o.stall_seconds);
    o.keep_going = parent_asks;
    return make_proposer(j.at("spec").get<std::string>(), o);
  } catch (const json::exception& e) {
    return dispatch::corrupt(std::string("proposer process: ") + e.what());
  }
}

}  // namespace

Result<std::unique_ptr<ProposalSource>> start_proposer_process(const ProposerProcessOptions& options) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
    return dispatch::errno_status("proposer process: socketpair");
  std::vector<std::string> words{options.program};
  words.insert(words.end(), options.args.begin(), options.args.end());
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, fds[1], kFd);
  posix_spawn_file_actions_addclosefrom_np(&actions, kFd + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // Its own group: Ctrl-C ends the session, and the session then ends it.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t pid = -1;
  const int rc = ::posix_spawn(&pid, options.program.c_str(), &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  ::close(fds[1]);
  if (rc != 0) {
    ::close(fds[0]);
    const std::string what = "proposer process " + options.program + ": " + std::strerror(rc);
    return rc == ENOENT ? dispatch::not_found(what) : dispatch::io_error(what);
  }
  auto process = std::make_unique<Process>(pid, fds[0], options.price);
  NICHE_RETURN_IF_ERROR(process->greet(options));
  return std::unique_ptr<ProposalSource>(std::move(process));
}

int proposer_main() {
  FrameChannel channel(kFd);
  auto config = channel.receive(kConfigTimeoutMs);
  if (!config.ok() || !*config) return 1;
  auto proposer = configured(**config);
  if (!proposer.ok()) {
    (void)channel.send(error_frame(proposer.status()), kSendTimeoutMs);
    return 1;
  }
  json ready{{"ready", true}};
  if ((*proposer)->budget() != nullptr) ready["spent"] = spent_object(0, 0);
  if (!channel.send(dump(ready), kSendTimeoutMs).ok()) return 1;
  for (;;) {
    auto frame = channel.receive(60'000);
    if (!frame.ok()) return 0;  // the session is over
    if (!*frame) continue;
    ModelBudget* budget = (*proposer)->budget();
    if (const auto spent = spent_of(json::parse(**frame, nullptr, false))) {
      if (budget != nullptr) budget->start_from(spent->usd, spent->output_tokens);
      continue;
    }
    auto request = request_from_json(**frame);
    json answer;
    if (!request.ok())
      answer = error_object(request.status());
    else if (auto reply = (*proposer)->propose(*request); reply.ok())
      answer = json::parse(reply_to_json(*reply));
    else
      answer = error_object(reply.status());
    if (budget != nullptr) answer["spent"] = spent_object(budget->usd_spent(), budget->tokens_spent());
    if (!channel.send(dump(answer), 10'000).ok()) return 0;
  }
}

}  // namespace niche::evolve::proposer
