#include "evolve/worker/worker_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <future>

#include "evolve/toolchain/scratch_dir.h"
#include "evolve/worker/process_tree.h"

extern char** environ;

namespace niche::evolve::worker {
namespace {

using dispatch::Result;

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

}  // namespace

Result<std::shared_ptr<WorkerProcess>> WorkerProcess::start(const ProcessSpec& spec) {
  auto self = std::make_shared<WorkerProcess>();
  self->own_session_ = spec.own_session;
  const auto spawned = std::make_shared<std::promise<int>>();
  auto error = spawned->get_future();
  self->thread_ = new std::thread([self = self.get(), &spec, spawned] {
    const int rc = self->spawn(spec);
    spawned->set_value(rc);  // `spec` may be gone after this
    if (rc == 0) self->wait_for_end();
  });
  if (const int rc = error.get(); rc != 0) {
    self->join();
    const std::string what = "worker " + spec.program + ": " + std::strerror(rc);
    return rc == ENOENT ? dispatch::not_found(what) : dispatch::io_error(what);
  }
  return self;
}

void WorkerProcess::send(int number) {
  if (own_session_)
    signal_session(pid_, number);
  else
    ::kill(pid_, number);
}

bool WorkerProcess::signal(int number) {
  const std::lock_guard lock(mutex_);
  if (ended_) return false;
  send(number);
  return true;
}

std::string WorkerProcess::end_within(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [this] { return ended_; }) ? end_ : "is still there";
}

bool WorkerProcess::ended() {
  const std::lock_guard lock(mutex_);
  return ended_;
}

void WorkerProcess::join() {
  if (thread_ == nullptr) return;
  thread_->join();
  delete thread_;
  thread_ = nullptr;
}

int WorkerProcess::spawn(const ProcessSpec& spec) {
  std::vector<char*> argv{const_cast<char*>(spec.program.c_str())};
  for (const std::string& a : spec.args) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> env;
  for (char** e = environ; e != nullptr && *e != nullptr; ++e)
    if (harmless(*e)) env.push_back(*e);
  env.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  // Above every number that they get first: one of them may stand where another has to go.
  std::vector<int> high;
  for (const auto& [here, there] : spec.descriptors) high.push_back(::fcntl(here, F_DUPFD_CLOEXEC, 64));
  int next = 3;
  for (size_t i = 0; i < high.size(); ++i) {
    posix_spawn_file_actions_adddup2(&actions, high[i], spec.descriptors[i].second);
    next = spec.descriptors[i].second + 1;
  }
  posix_spawn_file_actions_addclosefrom_np(&actions, next);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  const int session = spec.own_session ? POSIX_SPAWN_SETSID : 0;
  posix_spawnattr_setflags(&attributes,
                           static_cast<short>(session | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK));
  sigset_t all, none;
  sigfillset(&all);
  sigemptyset(&none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setsigmask(&attributes, &none);
  const int rc = posix_spawn(&pid_, spec.program.c_str(), &actions, &attributes, argv.data(), env.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  for (int fd : high) ::close(fd);
  return rc;
}

void WorkerProcess::wait_for_end() {
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  // Its pid is not free before it is reaped, so that nobody else can be hit by the sweep.
  const std::lock_guard lock(mutex_);
  if (own_session_) signal_session(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  if (own_session_) ScratchDir::sweep();
  end_ = describe_exit(info);
  ended_ = true;
  changed_.notify_all();
}

}  // namespace niche::evolve::worker
