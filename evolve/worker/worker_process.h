// WorkerProcess: a program started by posix_spawn to do what may crash: with a bare environment, with the
// descriptors it is given and no others, waited for by a thread of its own, and swept away with everything
// that it started.
//
// Thread-safety: signal() and end_within() from any thread; join() once, by the owner.
// Progress: signal() never waits; end_within() waits at most its timeout.
// Why a thread: the kernel's promise to kill a child with its parent is about the parent *thread*.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dispatch/base/status.h"

namespace niche::evolve::worker {

struct ProcessSpec {
  std::string program;
  std::vector<std::string> args{};
  std::vector<std::pair<int, int>> descriptors{};  // (here, there); there: 3, 4, ... in order
  // True: leads a session of its own, and signals go to all of its members. False: stays in this process's
  // session, so that whoever ends that one ends it too; it must start no processes.
  bool own_session = true;
};

class WorkerProcess {
 public:
  // kNotFound: no such program; kIo: it could not be started.
  static dispatch::Result<std::shared_ptr<WorkerProcess>> start(const ProcessSpec& spec);

  pid_t pid() const { return pid_; }
  // Signals all of the worker's processes, unless it is gone.
  bool signal(int number);
  // How it ended, if it does within the time: "was killed by signal 9 (Killed)"; "is still there".
  std::string end_within(std::chrono::milliseconds timeout);
  bool ended();
  void join();

 private:
  int spawn(const ProcessSpec& spec);
  void wait_for_end();
  void send(int number);  // under mutex_

  std::thread* thread_ = nullptr;  // a pointer: in a forked child it can be neither joined nor destroyed
  pid_t pid_ = -1;
  bool own_session_ = true;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::string end_;
};

}  // namespace niche::evolve::worker
