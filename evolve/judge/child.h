// Child: a forked process that serves commands over a socket, one at a time, and may die at any moment.
//
// Thread-safety: one owner thread, in a process without other threads. Progress: call() ends when the child
// answers, dies, or uses more CPU time than allowed. CPU time, not wall time: under idle scheduling a child
// may wait for seconds without being at fault, and a stopped session must not be read as a hang; a generous
// wall limit catches a deadlock.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "dispatch/base/status.h"

namespace niche::evolve::judge {

struct CallLimits {
  double cpu_seconds = 10;
  double wall_seconds = 300;
};

enum class CallEnd : uint8_t { kAnswered, kDied, kHung };

class Child {
 public:
  // Runs `body(channel)` in a forked process. The body reads a byte, acts, writes a byte, until the read
  // gives nothing. Stays in this process's group: stopping the session stops it too. Dies with this process.
  static dispatch::Result<std::unique_ptr<Child>> fork(const std::function<void(int channel)>& body);
  ~Child();  // kills and reaps
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // One command. After kDied or kHung the process is gone.
  CallEnd call(const CallLimits& limits);
  bool alive() const { return pid_ > 0; }
  // CPU seconds used so far; 0 once it is gone.
  double cpu_seconds() const;
  // How it ended: "signal 11 (Segmentation fault)", "exit code 3".
  const std::string& end_text() const { return end_text_; }
  int end_signal() const { return end_signal_; }

 private:
  Child() = default;
  void end();  // kill, reap, describe
  pid_t pid_ = 0;
  int channel_ = -1;
  int end_signal_ = 0;
  std::string end_text_;
};

// In the child: waits for the next command; false: the parent is gone.
bool wait_for_command(int channel);
void answer(int channel);

}  // namespace niche::evolve::judge
