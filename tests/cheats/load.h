// Load: other work on the machine, for tests and benchmarks of the judge.
#pragma once

#include <sys/types.h>

#include <vector>

namespace niche::evolve::cheats {

// Processes that keep every core busy with memory traffic and bursts of arithmetic until they go away.
class Load {
 public:
  explicit Load(int processes);
  ~Load();

 private:
  std::vector<pid_t> pids_;
};

// Cores that this process may use.
int usable_cores();

}  // namespace niche::evolve::cheats
