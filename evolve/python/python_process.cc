#include "evolve/python/python_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "evolve/python/driver.h"
#include "evolve/toolchain/confine.h"
#include "evolve/toolchain/wall_meter.h"
#include "evolve/worker/frame_channel.h"

namespace niche::evolve::python {
namespace {

using dispatch::Code;
using dispatch::Result;
using dispatch::Status;

constexpr int kPollMs = 50;
constexpr int kSendTimeoutMs = 10'000;
constexpr int64_t kPrintedBytesMax = 1 << 20;
constexpr int64_t kDataBytesMax = int64_t{8} << 30;
constexpr size_t kLastWordsBytes = 400;
// Above every number that the child's own descriptors take.
constexpr int kHighFd = 64;

struct ExecPlan {
  char** argv;
  char** envp;
  int channel_fd, memory_fd, printed_fd, landlock_fd;  // all >= kHighFd, or -1
  ResourceLimits limits;
};

// The vfork child shares our memory: only system calls on prepared data from here to exec.
[[noreturn]] void exec_child(const ExecPlan& plan) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, 0);
  dup2(plan.printed_fd, 1);
  dup2(plan.printed_fd, 2);
  dup2(plan.channel_fd, 3);
  dup2(plan.memory_fd, 4);
  if (chdir("/") != 0) _exit(126);
  apply_resource_limits(plan.limits);
  if (plan.landlock_fd >= 0 && !enter_landlock(plan.landlock_fd)) _exit(126);
  forbid_network();
  syscall(SYS_close_range, 5, ~0U, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(plan.argv[0], plan.argv, plan.envp);
  _exit(127);
}

std::string in_seconds(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", v);
  return text;
}

// A worker has a limit of its own, which its children keep.
int64_t data_bytes_max() {
  rlimit own{};
  getrlimit(RLIMIT_DATA, &own);
  return static_cast<int64_t>(std::min<rlim_t>(own.rlim_cur, static_cast<rlim_t>(kDataBytesMax)));
}

int high(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, kHighFd); }

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> p;
  for (std::string& s : strings) p.push_back(s.data());
  p.push_back(nullptr);
  return p;
}

}  // namespace

PythonProcess::PythonProcess() = default;

PythonProcess::~PythonProcess() {
  end();
  if (printed_fd_ >= 0) close(printed_fd_);
}

Result<std::unique_ptr<PythonProcess>> PythonProcess::start(const std::string& program, int memory_fd) {
  auto process = std::unique_ptr<PythonProcess>(new PythonProcess());
  process->program_ = program;
  process->printed_fd_ = memfd_create("niche-python-output", MFD_CLOEXEC);
  if (process->printed_fd_ < 0) return dispatch::errno_status("memfd_create");
  fcntl(process->printed_fd_, F_SETFL, O_APPEND);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return dispatch::errno_status("socketpair");
  process->channel_ = std::make_unique<worker::FrameChannel>(ends[0]);

  std::vector<std::string> args = {program, "-I", "-B", "-c", kDriver};
  const char* path = std::getenv("PATH");
  std::vector<std::string> env = {std::string("PATH=") + (path != nullptr ? path : "/usr/bin:/bin"),
                                  "LC_ALL=C.UTF-8", "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1"};
  if (const char* libraries = std::getenv("LD_LIBRARY_PATH"))
    env.push_back(std::string("LD_LIBRARY_PATH=") + libraries);
  std::vector<char*> argv = pointers(args), envp = pointers(env);
  const int landlock = make_landlock_ruleset({"/"}, {"/dev/null"});
  ExecPlan plan{argv.data(),
                envp.data(),
                high(ends[1]),
                high(memory_fd),
                high(process->printed_fd_),
                landlock >= 0 ? high(landlock) : -1,
                {}};
  plan.limits.file_bytes = kPrintedBytesMax;
  plan.limits.data_bytes = data_bytes_max();
  const pid_t pid = vfork();
  if (pid == 0) exec_child(plan);
  const int failure = errno;
  for (int fd : {ends[1], landlock, plan.channel_fd, plan.memory_fd, plan.printed_fd, plan.landlock_fd})
    if (fd >= 0) close(fd);
  if (pid < 0) return dispatch::io_error("start " + program + ": " + strerror(failure));
  process->pid_ = pid;
  return process;
}

double PythonProcess::cpu_seconds() const {
  clockid_t clock;
  timespec t{};
  if (pid_ <= 0 || clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &t) != 0) return 0;
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

Result<std::string> PythonProcess::exchange(std::string_view message, const TimeLimits& limits) {
  if (!death_.ok()) return death_;
  const double cpu_start = cpu_seconds();
  WallMeter wall;
  if (const Status sent = channel_->send(message, kSendTimeoutMs); !sent.ok())
    return give_up(Code::kIo, sent.code() == Code::kNotFound ? "" : "does not read");
  for (bool over = false;;) {
    auto answer = channel_->receive(over ? 0 : kPollMs);
    if (!answer.ok())
      return answer.status().code() == Code::kNotFound ? give_up(Code::kIo, "")
                                                       : give_up(Code::kCorrupt, answer.status().message());
    if (*answer) return std::move(**answer);
    if (over) return give_up(Code::kIo, "");
    over = ended();  // a helper may hold its end of the channel; what it said last is read first
    if (cpu_seconds() - cpu_start > limits.cpu_seconds)
      return give_up(Code::kIo, "no answer within " + in_seconds(limits.cpu_seconds) + " of CPU time");
    if (wall.seconds() > limits.wall_seconds)
      return give_up(Code::kIo, "no answer within " + in_seconds(limits.wall_seconds));
  }
}

bool PythonProcess::ended() const {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT | WNOHANG) == 0 && info.si_pid != 0;
}

Status PythonProcess::give_up(Code code, const std::string& why) {
  const std::string ended = end();
  std::string text = program_ + ": " + (why.empty() ? ended : why);
  const std::string words = last_words();
  if (!words.empty()) text += "; its last words: " + words;
  return death_ = Status(code, std::move(text));
}

std::string PythonProcess::last_words() const {
  const off_t size = lseek(printed_fd_, 0, SEEK_END);
  if (size <= 0) return "";
  const auto keep = std::min<off_t>(size, kLastWordsBytes);
  std::string text(static_cast<size_t>(keep), '\0');
  const ssize_t n = pread(printed_fd_, text.data(), text.size(), size - keep);
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  const size_t last = text.find_last_not_of(' ');
  text.resize(last == std::string::npos ? 0 : last + 1);
  return text;
}

std::string PythonProcess::end() {
  if (pid_ <= 0) return "is gone";
  // One that ended by itself gets some time to be reaped: its own end is the report, not our signal.
  for (int i = 0; i < 100 && !ended(); ++i) {
    pollfd p{channel_->fd(), POLLIN, 0};
    if (!(poll(&p, 1, 0) > 0 && (p.revents & POLLHUP) != 0)) break;
    poll(nullptr, 0, 10);
  }
  kill(-pid_, SIGKILL);  // helpers too, before the leader is reaped and its number free
  kill(pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  if (WIFSIGNALED(status))
    return "ended by signal " + std::to_string(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) + ")";
  if (WEXITSTATUS(status) == 127) return "cannot be executed";
  if (WEXITSTATUS(status) == 126) return "confinement refused by the system";
  return "ended with status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace niche::evolve::python
