#include "evolve/judge/child.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

#include "evolve/toolchain/wall_meter.h"

namespace niche::evolve::judge {
namespace {

// How often a running child's CPU clock is looked at.
constexpr int kPollMs = 50;

}  // namespace

dispatch::Result<std::unique_ptr<Child>> Child::fork(const std::function<void(int)>& body) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return dispatch::errno_status("socketpair");
  const pid_t parent = getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    close(ends[0]), close(ends[1]);
    return dispatch::errno_status("fork");
  }
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    close(ends[0]);
    body(ends[1]);
    _exit(0);
  }
  close(ends[1]);
  auto c = std::unique_ptr<Child>(new Child());
  c->pid_ = pid;
  c->channel_ = ends[0];
  return c;
}

Child::~Child() { end(); }

double Child::cpu_seconds() const {
  clockid_t clock;
  timespec t{};
  if (pid_ <= 0 || clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &t) != 0) return 0;
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

CallEnd Child::call(const CallLimits& limits) {
  if (pid_ <= 0) return CallEnd::kDied;
  const double cpu_start = cpu_seconds();
  WallMeter wall;
  const char go = 'g';
  if (send(channel_, &go, 1, MSG_NOSIGNAL) != 1) return end(), CallEnd::kDied;
  for (;;) {
    pollfd p{channel_, POLLIN, 0};
    const int ready = poll(&p, 1, kPollMs);
    if (ready > 0) {
      char done;
      const ssize_t n = recv(channel_, &done, 1, 0);
      if (n == 1) return CallEnd::kAnswered;
      if (n < 0 && errno == EINTR) continue;
      return end(), CallEnd::kDied;
    }
    if (ready < 0 && errno != EINTR) return end(), CallEnd::kDied;
    if (cpu_seconds() - cpu_start > limits.cpu_seconds || wall.seconds() > limits.wall_seconds)
      return end(), CallEnd::kHung;
  }
}

void Child::end() {
  if (pid_ <= 0) return;
  // A child that crashed has ended by itself: its own signal is the report, not ours.
  int status = 0;
  pid_t reaped = waitpid(pid_, &status, WNOHANG);
  if (reaped == 0) {
    // Its socket may close some µs before it can be reaped.
    pollfd p{channel_, POLLIN, 0};
    char byte;
    const bool closed = poll(&p, 1, 0) > 0 && recv(channel_, &byte, 1, MSG_DONTWAIT) == 0;
    if (!closed) kill(pid_, SIGKILL);
    while ((reaped = waitpid(pid_, &status, 0)) < 0 && errno == EINTR) {
    }
  }
  end_signal_ = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  end_text_ = WIFSIGNALED(status)
                  ? "signal " + std::to_string(end_signal_) + " (" + strsignal(end_signal_) + ")"
                  : "exit code " + std::to_string(WEXITSTATUS(status));
  close(channel_);
  pid_ = 0;
  channel_ = -1;
}

bool wait_for_command(int channel) {
  char go;
  ssize_t n;
  do {
    n = read(channel, &go, 1);
  } while (n < 0 && errno == EINTR);
  return n == 1;
}

void answer(int channel) {
  const char done = 'd';
  while (write(channel, &done, 1) < 0 && errno == EINTR) {
  }
}

}  // namespace niche::evolve::judge
