#include "evolve/toolchain/confined_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "evolve/toolchain/wall_meter.h"

namespace niche::evolve {
namespace {

struct ExecPlan {
  const ConfinedCommand* command;
  char** argv;
  char** envp;
  int output_fd;
};

// The vfork child shares our memory: only system calls on prepared data from here to exec.
[[noreturn]] void exec_child(const ExecPlan& plan) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, 0);
  dup2(plan.output_fd, 1);
  dup2(plan.output_fd, 2);
  if (!plan.command->working_dir.empty() && chdir(plan.command->working_dir.c_str()) != 0) _exit(126);
  apply_resource_limits(plan.command->limits);
  if (plan.command->landlock_fd >= 0 && !enter_landlock(plan.command->landlock_fd)) _exit(126);
  syscall(SYS_close_range, 3, ~0U, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(plan.argv[0], plan.argv, plan.envp);
  _exit(127);
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> p;
  for (std::string& s : strings) p.push_back(s.data());
  p.push_back(nullptr);
  return p;
}

constexpr int kPollMs = 100;

// Reads until the last writer closes, the time is up or the caller wants no more; says which in `result`.
void drain(int fd, const ConfinedCommand& command, ConfinedResult& result) {
  char chunk[4096];
  WallMeter wall;
  for (;;) {
    result.timed_out = wall.seconds() >= command.wall_seconds;
    result.stopped = !result.timed_out && command.keep_going && !command.keep_going();
    if (result.timed_out || result.stopped) return;
    pollfd p{fd, POLLIN, 0};
    const int ready = poll(&p, 1, kPollMs);
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    if (ready < 0) {
      result.timed_out = true;
      return;
    }
    const ssize_t n = read(fd, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    const size_t kept = result.output.size();
    const size_t room = command.output_bytes_max > kept ? command.output_bytes_max - kept : 0;
    result.output.append(chunk, std::min(room, static_cast<size_t>(n)));
  }
}

}  // namespace

dispatch::Result<ConfinedResult> run_confined(const ConfinedCommand& command) {
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return dispatch::errno_status("pipe for " + command.argv[0]);
  std::vector<std::string> args = command.argv;
  std::vector<std::string> env = {"PATH=/usr/bin:/bin", "LC_ALL=C", "TMPDIR=" + command.working_dir};
  std::vector<char*> argv = pointers(args), envp = pointers(env);
  const ExecPlan plan{&command, argv.data(), envp.data(), pipe_fds[1]};

  const pid_t pid = vfork();
  if (pid == 0) exec_child(plan);
  close(pipe_fds[1]);
  if (pid < 0) {
    close(pipe_fds[0]);
    return dispatch::errno_status("start " + command.argv[0]);
  }

  ConfinedResult result;
  drain(pipe_fds[0], command, result);
  close(pipe_fds[0]);
  if (result.timed_out || result.stopped) kill(-pid, SIGKILL);
  // The group is killed before its leader is reaped: a helper left behind must not live on, and the group's
  // number cannot have been given to anybody else yet.
  siginfo_t ended;
  while (waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
  }
  kill(-pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  if (result.exit_code == 127) return dispatch::io_error(command.argv[0] + ": cannot be executed");
  if (result.exit_code == 126)
    return dispatch::io_error(command.argv[0] + ": confinement refused by the kernel");
  return result;
}

}  // namespace niche::evolve
