#include "evolve/worker/worker_main.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "evolve/worker/frame_channel.h"
#include "evolve/worker/protocol.h"

namespace niche::evolve {
namespace {

using dispatch::Code;
using dispatch::Status;
using worker::FrameChannel;
using worker::Message;

constexpr int kChannelFd = 3;
constexpr int kHelloTimeoutMs = 30'000;
constexpr int kLastWordsTimeoutMs = 10'000;
constexpr int kStartTimeoutMs = 3'600'000;  // a server that wants nothing for an hour has forgotten us
constexpr int kNotOurs = 64, kNonsense = 65, kVersions = 70;

// Time that does not run while the server holds the worker stopped.
class PausableClock final : public dispatch::Clock {
 public:
  int64_t now_ns() const override { return system_.now_ns() - paused_ns_; }
  int64_t unix_time_ns() const override { return system_.unix_time_ns(); }
  void add_pause(double seconds) { paused_ns_ += static_cast<int64_t>(seconds * 1e9); }

 private:
  dispatch::SystemClock system_;
  int64_t paused_ns_ = 0;
};

void write_file(const char* path, const std::string& text) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  (void)!::write(fd, text.data(), text.size());
  ::close(fd);
}

// Best effort: a container may forbid any of it, and the session is right without.
void become_small(const worker::Hello& hello) {
  write_file("/proc/self/oom_score_adj", "1000");
  if (hello.nice > 0) (void)::setpriority(PRIO_PROCESS, 0, hello.nice);
  const sched_param none{};
  if (hello.idle) {
    (void)::sched_setscheduler(0, SCHED_IDLE, &none);
    // A session of its own is a scheduling group of its own where autogrouping is on (a server started from a
    // terminal), and groups share by their own weight: SCHED_IDLE alone would take half of a busy machine.
    write_file("/proc/self/autogroup", "19");
  }
  if (hello.memory_bytes_max > 0) {
    const rlimit limit{static_cast<rlim_t>(hello.memory_bytes_max),
                       static_cast<rlim_t>(hello.memory_bytes_max)};
    (void)::setrlimit(RLIMIT_DATA, &limit);
  }
  const rlimit no_core{0, 0};
  (void)::setrlimit(RLIMIT_CORE, &no_core);
}

// Permits of the server at the other end of the channel.
class Worker : public PermitSource {
 public:
  Worker(FrameChannel& channel, dispatch::OpRegistry& ops, FamilyRegistry& families, const WorkerHooks& hooks)
      : channel_(channel), ops_(ops), families_(families), hooks_(hooks) {}

  int serve() {
    if (const int rc = shake_hands(); rc != 0) return rc;
    auto message = channel_.receive(kStartTimeoutMs);
    if (!message.ok()) return message.status().code() == Code::kNotFound ? 0 : complain(message.status());
    if (!*message) return 0;
    auto start = worker::decode(**message);
    if (!start.ok()) return complain(start.status());
    if (start->type == Message::Type::kStop) return 0;
    if (start->type != Message::Type::kStart) return complain(dispatch::corrupt("expected 'start'"));
    const Status s = run(start->request);
    if (!s.ok()) {
      SessionEvent failed;
      failed.kind = SessionEvent::Kind::kFailed;
      failed.reason = s.to_string();
      send(failed);
    }
    return nonsense_.ok() ? 0 : complain(nonsense_);
  }

  Permit ask(int64_t wanted_ns) override {
    constexpr int kAnswerMs = 5000;
    const Permit none{0, 0, 1'000'000};
    if (stop_ || !channel_.send(worker::encode_ask(wanted_ns), kLastWordsTimeoutMs).ok()) return none;
    for (;;) {
      auto text = channel_.receive(kAnswerMs);
      if (!text.ok() || !*text) break;
      auto message = worker::decode(**text);
      if (message.ok() && message->type == Message::Type::kPermit) return message->permit;
      heard(message);
      if (!nonsense_.ok()) return none;
    }
    stop_ = true;  // a server that does not answer is gone
    return none;
  }
  void give_back(const Permit& permit) override {
    (void)channel_.send(worker::encode_return(permit, false), kLastWordsTimeoutMs);
  }
  void revoke(const Permit& permit) override {
    (void)channel_.send(worker::encode_return(permit, true), kLastWordsTimeoutMs);
  }

 private:
  int complain(const Status& s) {
    std::fprintf(stderr, "niche worker: %s\n", s.to_string().c_str());
    return kNonsense;
  }
  int shake_hands() {
    auto text = channel_.receive(kHelloTimeoutMs);
    if (!text.ok()) return text.status().code() == Code::kNotFound ? 0 : complain(text.status());
    if (!*text) return complain(dispatch::io_error("no greeting from the server"));
    auto message = worker::decode(**text);
    if (!message.ok()) return complain(message.status());
    if (message->type != Message::Type::kHello) return complain(dispatch::corrupt("expected 'hello'"));
    const worker::Hello mine = worker::own_hello();
    const Status answered = channel_.send(worker::encode_hello(mine), kLastWordsTimeoutMs);
    if (Status s = worker::check_versions(mine, message->hello); !s.ok()) {
      std::fprintf(stderr, "niche worker: %s\n", s.to_string().c_str());
      return kVersions;
    }
    if (!answered.ok() && answered.code() != Code::kNotFound) return complain(answered);
    become_small(message->hello);
    return 0;
  }

  Status run(const SessionRequest& request) {
    for (const std::string& library : request.op_libraries) {
      if (!hooks_.load_library)
        return dispatch::unsupported("this worker loads no operator libraries: " + library);
      NICHE_RETURN_IF_ERROR(hooks_.load_library(request, library, ops_, families_));
    }
    LocalSessionOptions options;
    options.ops = &ops_;
    std::unique_ptr<proposer::ProposalSource> source;
    std::unique_ptr<kb::Library> library;
    if (!request.model.proposer.empty()) {
      const Status s = start_model(request.model, &source, &library);
      if (!s.ok()) options.model.trouble = s.to_string();
      options.model.source = source.get();
      options.model.library = library.get();
      options.model.options.questions_max = request.model.questions_max;
      options.model.options.answer_seconds_max = request.model.answer_seconds_max;
      options.model.options.context_bytes_max = request.model.context_bytes_max;
    }
    DeviceSession device;
    if (request.device.empty()) {
      auto environment = hooks_.environment(request);
      if (!environment.ok()) return environment.status();
      options.families = &families_;
      options.environment = std::move(*environment);
      options.make_evaluator = hooks_.make_evaluator;
    } else {
      if (!hooks_.device) return dispatch::unsupported("this worker has no device '" + request.device + "'");
      auto session = hooks_.device(request, *this, clock_);
      if (!session.ok()) return session.status();
      device = std::move(*session);
      options.families = &device.families;
      options.environment = device.environment;
      options.make_evaluator = device.make_evaluator;
      options.device = device.device;
      options.cuda = device.cuda;
    }
    options.evaluator_options.child_start = hooks_.child_start;
    options.clock = &clock_;
    options.on_event = [this](const SessionEvent& e) { send(e); };
    options.stop = [this] { return listen(); };
    options.log = [](const std::string& line) { std::fprintf(stderr, "niche worker: %s\n", line.c_str()); };
    auto last = run_local_session(request, std::move(options));
    return last.ok() ? Status() : last.status();
  }

  Status start_model(const ModelRequest& model, std::unique_ptr<proposer::ProposalSource>* source,
                     std::unique_ptr<kb::Library>* library) const {
    if (!hooks_.proposer)
      return dispatch::unsupported("this worker asks no proposer; worker_program must be `niche`");
    auto opened = kb::Library::open();
    if (!opened.ok()) return opened.status();
    auto started = hooks_.proposer(model);
    if (!started.ok()) return started.status();
    *library = std::move(*opened);
    *source = std::move(*started);
    return {};
  }

  // Progress may be lost when the server does not read; news of a kernel and the end wait for it.
  void send(const SessionEvent& e) {
    const bool last = e.kind == SessionEvent::Kind::kDone || e.kind == SessionEvent::Kind::kFailed;
    const bool progress = e.kind == SessionEvent::Kind::kProgress;
    const Status s = channel_.send(worker::encode_event(e), progress ? 0 : kLastWordsTimeoutMs);
    if (!s.ok() && !last && s.code() != Code::kBusy) stop_ = true;
  }

  // Reads what the server said meanwhile; true: the session is to end.
  bool listen() {
    while (!stop_) {
      auto text = channel_.receive(0);
      if (!text.ok()) {
        stop_ = true;  // the server is gone: nobody wants the rest
        if (text.status().code() != Code::kNotFound) nonsense_ = text.status();
        break;
      }
      if (!*text) break;
      heard(worker::decode(**text));
    }
    return stop_;
  }
  void heard(const dispatch::Result<Message>& message) {
    if (message.ok() && message->type == Message::Type::kPaused) {
      clock_.add_pause(message->paused_seconds);
    } else {
      stop_ = true;
      if (!message.ok()) nonsense_ = message.status();
    }
  }

  FrameChannel& channel_;
  dispatch::OpRegistry& ops_;
  FamilyRegistry& families_;
  const WorkerHooks& hooks_;
  PausableClock clock_;
  bool stop_ = false;
  Status nonsense_;
};

}  // namespace

int worker_main(int, char**, dispatch::OpRegistry& ops, FamilyRegistry& families, const WorkerHooks& hooks) {
  int type = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(kChannelFd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM) {
    std::fprintf(stderr, "niche worker: is started by niche itself, with a socket at descriptor %d\n",
                 kChannelFd);
    return kNotOurs;
  }
  ::fcntl(kChannelFd, F_SETFD, FD_CLOEXEC);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  FrameChannel channel(kChannelFd);
  return Worker(channel, ops, families, hooks).serve();
}

}  // namespace niche::evolve
