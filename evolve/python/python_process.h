// PythonProcess: an interpreter behind walls that answers one frame at a time, and may die, hang or talk nonsense.
//
// It gets no network (seccomp refuses sockets; Landlock TCP too), reads files but writes none (Landlock), an
// environment of PATH, LD_LIBRARY_PATH and LC_ALL, limits on data and on what it prints, an own process group, and
// SIGKILL when the thread that started it ends. Walls that the system's kernel does not have are left out.
//
// Thread-safety: one owner. It belongs to the process that started it: not to be used after a fork. Progress:
// exchange() ends when the interpreter answers, dies or is out of time. Time in which a stopped session stands still
// does not count (WallMeter).
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>

#include "dispatch/base/status.h"

namespace niche::evolve::worker {
class FrameChannel;
}

namespace niche::evolve::python {

struct TimeLimits {
  double cpu_seconds = 60;
  double wall_seconds = 600;
};

class PythonProcess {
 public:
  // `memory_fd` becomes the interpreter's descriptor 4; the caller keeps its own. kIo: not startable.
  static dispatch::Result<std::unique_ptr<PythonProcess>> start(const std::string& program, int memory_fd);
  ~PythonProcess();  // kills and reaps
  PythonProcess(const PythonProcess&) = delete;
  PythonProcess& operator=(const PythonProcess&) = delete;

  // One message there, one back. kIo: it died ("signal 11 ...", with its last words) or was out of time; kCorrupt:
  // what came is no frame. Either way it is gone, and every later call says the same.
  dispatch::Result<std::string> exchange(std::string_view message, const TimeLimits& limits);

 private:
  PythonProcess();
  dispatch::Status give_up(dispatch::Code code, const std::string& why);
  std::string last_words() const;  // of what it printed
  double cpu_seconds() const;
  bool ended() const;  // and not reaped yet
  std::string end();   // kills, reaps, says how it ended

  std::string program_;
  pid_t pid_ = 0;
  int printed_fd_ = -1;
  std::unique_ptr<worker::FrameChannel> channel_;
  dispatch::Status death_;
};

}  // namespace niche::evolve::python
