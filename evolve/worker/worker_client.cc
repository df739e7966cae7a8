#include "evolve/worker_client.h"

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

#include "evolve/probe/permit_gate.h"
#include "evolve/worker/frame_channel.h"
#include "evolve/worker/protocol.h"
#include "evolve/worker/worker_process.h"

namespace niche::evolve {
namespace {

using dispatch::Code;
using dispatch::Result;
using dispatch::Status;
using SteadyClock = std::chrono::steady_clock;
using worker::WorkerProcess;

constexpr int kSendTimeoutMs = 2000;
class Client final : public WorkerClient {
 public:
  Client(std::shared_ptr<WorkerProcess> process, int fd, PermitSource* permits)
      : process_(std::move(process)), channel_(fd), permits_(permits) {}
  ~Client() override {
    if (::getpid() != owner_) {
      new std::shared_ptr<WorkerProcess>(process_);  // a forked child: the process is not its own; let it be
      return;
    }
    process_->signal(SIGKILL);
    process_->join();
    take_permit_back();
  }

  Status shake_hands(const WorkerOptions& options) {
    worker::Hello mine = worker::own_hello();
    mine.nice = options.nice;
    mine.idle = options.idle_scheduling;
    mine.memory_bytes_max = options.memory_bytes_max;
    const std::string who = "worker " + options.program + ": ";
    if (Status s = channel_.send(worker::encode_hello(mine), kSendTimeoutMs); !s.ok()) return trouble(who, s);
    auto answer = channel_.receive(options.handshake_timeout_ms);
    if (!answer.ok()) return trouble(who, answer.status());
    if (!*answer)
      return dispatch::io_error(who + "no answer within " + std::to_string(options.handshake_timeout_ms) +
                                " ms");
    auto message = worker::decode(**answer);
    if (!message.ok()) return dispatch::corrupt(who + message.status().message());
    if (message->type != worker::Message::Type::kHello)
      return dispatch::corrupt(who + "its first message is no hello");
    const Status versions = worker::check_versions(mine, message->hello);
    return versions.ok() ? versions : dispatch::unsupported(who + versions.message());
  }

  Status start(const SessionRequest& request) override {
    if (foreign()) return foreign_status();
    if (started_) return dispatch::busy("worker: a session was started already");
    started_ = true;
    return channel_.send(worker::encode_start(request), kSendTimeoutMs);
  }

  std::optional<SessionEvent> poll(int timeout_ms) override {
    if (over_ || foreign()) return std::nullopt;
    auto text = channel_.receive(timeout_ms);
    if (!text.ok()) return failed(text.status());
    if (!*text) return std::nullopt;
    auto message = worker::decode(**text);
    if (!message.ok()) return failed(message.status());
    if (message->type == worker::Message::Type::kAsk || message->type == worker::Message::Type::kReturn) {
      if (const Status s = answer(*message); !s.ok()) return failed(s);
      return std::nullopt;
    }
    if (message->type != worker::Message::Type::kEvent)
      return failed(dispatch::corrupt("worker message: not an event: " + (*text)->substr(0, 80)));
    over_ = message->event.kind == SessionEvent::Kind::kDone ||
            message->event.kind == SessionEvent::Kind::kFailed;
    last_ = message->event;
    return message->event;
  }

  Status pause() override {
    if (foreign()) return foreign_status();
    if (paused_) return {};
    if (!process_->signal(SIGSTOP)) return dispatch::not_found("worker: it has ended");
    paused_ = true;
    paused_since_ = SteadyClock::now();
    return {};
  }
  Status resume() override {
    if (foreign()) return foreign_status();
    if (!paused_) return {};
    paused_ = false;
    const double seconds = std::chrono::duration<double>(SteadyClock::now() - paused_since_).count();
    // First the message, then the signal: the worker must not take the pause for its own time.
    const Status sent = channel_.send(worker::encode_paused(seconds), kSendTimeoutMs);
    if (!process_->signal(SIGCONT)) return dispatch::not_found("worker: it has ended");
    return sent;
  }
  Status stop() override {
    if (foreign()) return foreign_status();
    return channel_.send(worker::encode_stop(), kSendTimeoutMs);
  }
  int pid() const override { return process_->pid(); }

 private:
  bool foreign() const { return ::getpid() != owner_; }
  static Status foreign_status() { return dispatch::unsupported("worker: not of this process (forked)"); }

  // A worker that is gone holds its permit no longer.
  void take_permit_back() {
    if (held_) permits_->revoke(held_);
    held_ = {};
  }
  Status answer(const worker::Message& m) {
    if (permits_ == nullptr)
      return dispatch::corrupt("worker message: asks for a device that it was not given");
    if (m.type == worker::Message::Type::kReturn) {
      if (!held_ || m.permit.id != held_.id)
        return dispatch::corrupt("worker message: returns a permit that it does not hold");
      held_.used_ns = m.permit.used_ns;
      m.revoked ? permits_->revoke(held_) : permits_->give_back(held_);
      held_ = {};
      return {};
    }
    if (held_) return dispatch::corrupt("worker message: asks for a second permit");
    const Permit granted = permits_->ask(m.wanted_ns);
    if (granted) held_ = granted;
    return channel_.send(worker::encode_permit(granted), kSendTimeoutMs);
  }

  // What went wrong on the channel, with how the worker ended where it did.
  Status trouble(const std::string& who, const Status& s) {
    if (s.code() != Code::kNotFound) return {s.code(), who + s.message()};
    return dispatch::io_error(who + "it " + process_->end_within(std::chrono::milliseconds(1000)));
  }
  SessionEvent failed(const Status& why) {
    over_ = true;
    take_permit_back();
    const bool died = why.code() == Code::kNotFound;
    if (!died) process_->signal(SIGKILL);  // what it says makes no sense: do not listen further
    SessionEvent e = last_;                // the counters so far
    e.kind = SessionEvent::Kind::kFailed;
    e.record_file.clear();
    e.kernel_name.clear();
    e.reason = died ? "the worker " + process_->end_within(std::chrono::milliseconds(1000)) : why.message();
    return e;
  }

  const pid_t owner_ = ::getpid();
  std::shared_ptr<WorkerProcess> process_;
  worker::FrameChannel channel_;
  PermitSource* const permits_;
  Permit held_;
  bool started_ = false, over_ = false, paused_ = false;
  SteadyClock::time_point paused_since_;
  SessionEvent last_;
};

}  // namespace

Result<std::unique_ptr<WorkerClient>> WorkerClient::spawn(const WorkerOptions& options) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
    return dispatch::errno_status("worker: socketpair");
  auto process = WorkerProcess::start({options.program, options.args, {{fds[1], 3}}});
  ::close(fds[1]);
  if (!process.ok()) {
    ::close(fds[0]);
    return process.status();
  }
  auto client = std::make_unique<Client>(std::move(*process), fds[0], options.permits);
  NICHE_RETURN_IF_ERROR(client->shake_hands(options));
  return std::unique_ptr<WorkerClient>(std::move(client));
}

}  // namespace niche::evolve
