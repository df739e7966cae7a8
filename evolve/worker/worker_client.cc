#include "evolve/worker_client.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <future>
#include <mutex>
#include <thread>

#include "evolve/toolchain/scratch_dir.h"
#include "evolve/worker/frame_channel.h"
#include "evolve/worker/process_tree.h"
#include "evolve/worker/protocol.h"

extern char** environ;

namespace niche::evolve {
namespace {

using dispatch::Code;
using dispatch::Result;
using dispatch::Status;
using SteadyClock = std::chrono::steady_clock;

constexpr int kSendTimeoutMs = 2000;
constexpr int kWorkerFd = 3;

// Variables that a compiler, a library or a sanitizer may need. Whatever else the server's environment holds
// (keys, tokens, addresses) does not reach a process in which candidates run.
bool harmless(std::string_view entry) {
  constexpr std::array kNames{std::string_view("PATH="),
                              std::string_view("HOME="),
                              std::string_view("TMPDIR="),
                              std::string_view("LANG="),
                              std::string_view("LC_ALL="),
                              std::string_view("TZ="),
                              std::string_view("LD_LIBRARY_PATH="),
                              std::string_view("OMP_NUM_THREADS="),
                              std::string_view("MKL_NUM_THREADS="),
                              std::string_view("CXX="),
                              std::string_view("ASAN_OPTIONS="),
                              std::string_view("TSAN_OPTIONS="),
                              std::string_view("UBSAN_OPTIONS="),
                              std::string_view("CUDA_VISIBLE_DEVICES="),
                              std::string_view("HIP_VISIBLE_DEVICES=")};
  for (std::string_view name : kNames)
    if (entry.starts_with(name)) return true;
  return false;
}

std::string describe_exit(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return "ended with status " + std::to_string(info.si_status);
  return "was killed by signal " + std::to_string(info.si_status) + " (" + strsignal(info.si_status) + ")";
}

// The worker process. A thread of its own starts it, waits for its end and sweeps what it left behind: the
// kernel's promise to kill a child with its parent is about the parent *thread*.
class WorkerProcess {
 public:
  static Result<std::shared_ptr<WorkerProcess>> start(const WorkerOptions& options, int socket) {
    auto self = std::make_shared<WorkerProcess>();
    const auto spawned = std::make_shared<std::promise<int>>();
    auto error = spawned->get_future();
    self->thread_ = new std::thread([self = self.get(), &options, socket, spawned] {
      const int rc = self->spawn(options, socket);
      spawned->set_value(rc);  // `options` and `socket` may be gone after this
      if (rc == 0) self->wait_for_end();
    });
    if (const int rc = error.get(); rc != 0) {
      self->join();
      const std::string what = "worker " + options.program + ": " + std::strerror(rc);
      return rc == ENOENT ? dispatch::not_found(what) : dispatch::io_error(what);
    }
    return self;
  }
  pid_t pid() const { return pid_; }
  // Signals all of the worker's processes, unless it is gone.
  bool signal(int number) {
    const std::lock_guard lock(mutex_);
    if (ended_) return false;
    worker::signal_session(pid_, number);
    return true;
  }
  // How it ended, if it does within the time.
  std::string end_within(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [this] { return ended_; }) ? end_ : "is still there";
  }
  void join() {
    if (thread_ == nullptr) return;
    thread_->join();
    delete thread_;
    thread_ = nullptr;
  }

 private:
  int spawn(const WorkerOptions& options, int socket) {
    std::vector<char*> argv{const_cast<char*>(options.program.c_str())};
    for (const std::string& a : options.args) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    std::vector<char*> env;
    for (char** e = environ; e != nullptr && *e != nullptr; ++e)
      if (harmless(*e)) env.push_back(*e);
    env.push_back(nullptr);

    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, socket, kWorkerFd);
    posix_spawn_file_actions_addclosefrom_np(&actions, kWorkerFd + 1);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setsigmask(&attributes, &none);
    const int rc =
        posix_spawn(&pid_, options.program.c_str(), &actions, &attributes, argv.data(), env.data());
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return rc;
  }
  void wait_for_end() {
    siginfo_t info{};
    while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
    }
    // Its pid is not free before it is reaped, so that nobody else can be hit by the sweep.
    const std::lock_guard lock(mutex_);
    worker::signal_session(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ScratchDir::sweep();
    end_ = describe_exit(info);
    ended_ = true;
    changed_.notify_all();
  }

  std::thread* thread_ = nullptr;  // a pointer: in a forked child it can be neither joined nor destroyed
  pid_t pid_ = -1;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::string end_;
};

class Client final : public WorkerClient {
 public:
  Client(std::shared_ptr<WorkerProcess> process, int fd) : process_(std::move(process)), channel_(fd) {}
  ~Client() override {
    if (::getpid() != owner_) {
      new std::shared_ptr<WorkerProcess>(process_);  // a forked child: the process is not its own; let it be
      return;
    }
    process_->signal(SIGKILL);
    process_->join();
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

  // What went wrong on the channel, with how the worker ended where it did.
  Status trouble(const std::string& who, const Status& s) {
    if (s.code() != Code::kNotFound) return {s.code(), who + s.message()};
    return dispatch::io_error(who + "it " + process_->end_within(std::chrono::milliseconds(1000)));
  }
  SessionEvent failed(const Status& why) {
    over_ = true;
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
  bool started_ = false, over_ = false, paused_ = false;
  SteadyClock::time_point paused_since_;
  SessionEvent last_;
};

}  // namespace

Result<std::unique_ptr<WorkerClient>> WorkerClient::spawn(const WorkerOptions& options) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
    return dispatch::errno_status("worker: socketpair");
  auto process = WorkerProcess::start(options, fds[1]);
  ::close(fds[1]);
  if (!process.ok()) {
    ::close(fds[0]);
    return process.status();
  }
  auto client = std::make_unique<Client>(std::move(*process), fds[0]);
  NICHE_RETURN_IF_ERROR(client->shake_hands(options));
  return std::unique_ptr<WorkerClient>(std::move(client));
}

}  // namespace niche::evolve
