#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>

#include "evolve/proposer/local_proposers.h"

extern char** environ;

namespace niche::evolve::proposer {
namespace {

using dispatch::Result;
using dispatch::Status;
using SteadyClock = std::chrono::steady_clock;

struct Pipe {
  int read = -1, write = -1;
  ~Pipe() { close_read(), close_write(); }
  Status open() {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) return dispatch::errno_status("exec: pipe");
    read = fds[0], write = fds[1];
    return {};
  }
  void close_read() {
    if (read >= 0) ::close(read);
    read = -1;
  }
  void close_write() {
    if (write >= 0) ::close(write);
    write = -1;
  }
};

// A program in a process group of its own, killed as a whole.
class Child {
 public:
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(-pid_, SIGKILL);
    int status = 0;
    if (!reaped_) ::waitpid(pid_, &status, 0);
  }
  Status start(const std::string& command) {
    for (Pipe* p : {&in, &out, &err}) NICHE_RETURN_IF_ERROR(p->open());
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in.read, 0);
    posix_spawn_file_actions_adddup2(&actions, out.write, 1);
    posix_spawn_file_actions_adddup2(&actions, err.write, 2);
    posix_spawn_file_actions_addclosefrom_np(&actions, 3);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
    sigset_t all;
    sigfillset(&all);
    posix_spawnattr_setsigdefault(&attributes, &all);
    std::string shell = "/bin/sh", dash_c = "-c", text = command;
    std::array<char*, 4> argv{shell.data(), dash_c.data(), text.data(), nullptr};
    const int rc = ::posix_spawn(&pid_, "/bin/sh", &actions, &attributes, argv.data(), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    in.close_read(), out.close_write(), err.close_write();
    if (rc != 0) {
      pid_ = -1;
      return dispatch::io_error(std::string("exec: /bin/sh: ") + std::strerror(rc));
    }
    for (int fd : {in.write, out.read, err.read}) ::fcntl(fd, F_SETFL, O_NONBLOCK);
    return {};
  }
  // Its end, once it has one.
  bool ended(int& status) {
    if (!reaped_ && ::waitpid(pid_, &status_, WNOHANG) == pid_) reaped_ = true;
    status = status_;
    return reaped_;
  }
  Pipe in, out, err;

 private:
  pid_t pid_ = -1;
  bool reaped_ = false;
  int status_ = 0;
};

// What is there now, at most 256 KiB: who writes faster than that is read meets the deadline all the same.
// False: the pipe's end.
bool drain(int fd, std::string& to, size_t most) {
  std::array<char, 16 << 10> buffer;
  for (int reads = 0; reads < 16; ++reads) {
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n == 0) return false;
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (to.size() <= most) to.append(buffer.data(), static_cast<size_t>(n));
  }
  return true;
}

std::string last_line(std::string text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.pop_back();
  text = text.substr(text.rfind('\n') + 1).substr(0, 200);
  return text.substr(0, valid_utf8(text));
}

}  // namespace

Result<ProposalReply> ExecProposer::propose(const ProposalRequest& request) {
  NICHE_RETURN_IF_ERROR(budget_.reserve(0, 0));
  if (options_.budget.usd_max > 0 && budget_.usd_spent() >= options_.budget.usd_max)
    return dispatch::busy("model budget: the program has stated costs of all of it");
  std::signal(SIGPIPE, SIG_IGN);  // a program that ends without reading is no reason to die
  Child child;
  NICHE_RETURN_IF_ERROR(child.start(command_));
  const std::string text = request_to_json(request) + '\n';
  std::string out, err;
  size_t sent = 0;
  const auto start = SteadyClock::now();
  for (bool out_open = true, err_open = true; out_open || err_open;) {
    std::array<pollfd, 3> fds{pollfd{out_open ? child.out.read : -1, POLLIN, 0},
                              pollfd{err_open ? child.err.read : -1, POLLIN, 0},
                              pollfd{child.in.write, POLLOUT, 0}};
    ::poll(fds.data(), fds.size(), 100);
    if (child.in.write >= 0 && fds[2].revents != 0) {
      const ssize_t n = ::write(child.in.write, text.data() + sent, text.size() - sent);
      if (n > 0) sent += static_cast<size_t>(n);
      if (sent == text.size() || (n < 0 && errno != EAGAIN && errno != EINTR)) child.in.close_write();
    }
    if (out_open && fds[0].revents != 0) out_open = drain(child.out.read, out, kReplyTextBytesMax);
    if (err_open && fds[1].revents != 0) err_open = drain(child.err.read, err, 64 << 10);
    if (out.size() > kReplyTextBytesMax)
      return dispatch::corrupt("program '" + command_ + "': more than 1 MiB of output");
    if (std::chrono::duration<double>(SteadyClock::now() - start).count() > request.seconds_max)
      return dispatch::busy("program '" + command_ + "': no answer within " +
                            std::to_string(static_cast<int>(request.seconds_max)) + " s");
    if (options_.keep_going && !options_.keep_going())
      return dispatch::busy("program '" + command_ + "': stopped");
    int status = 0;
    // Whoever it left behind may hold the pipes open; its answer is what was written by now.
    if (child.ended(status)) {
      if (out_open) drain(child.out.read, out, kReplyTextBytesMax);
      if (err_open) drain(child.err.read, err, 64 << 10);
      break;
    }
  }
  int status = 0;
  while (!child.ended(status)) {
    if (std::chrono::duration<double>(SteadyClock::now() - start).count() > request.seconds_max)
      return dispatch::busy("program '" + command_ + "': does not end");
    ::poll(nullptr, 0, 10);
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    const bool missing = WIFEXITED(status) && (WEXITSTATUS(status) == 126 || WEXITSTATUS(status) == 127);
    const std::string how = WIFEXITED(status) ? "ended with status " + std::to_string(WEXITSTATUS(status))
                                              : "was killed by signal " + std::to_string(WTERMSIG(status));
    return Status(missing ? dispatch::Code::kUnsupported : dispatch::Code::kIo,
                  "program '" + command_ + "' " + how + ": " + last_line(err));
  }
  auto reply = reply_from_text(out, request);
  if (!reply.ok()) return dispatch::invalid("program '" + command_ + "': " + reply.status().message());
  budget_.settle(reply->usage);
  return reply;
}

}  // namespace niche::evolve::proposer
