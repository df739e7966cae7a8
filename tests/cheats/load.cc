#include "tests/cheats/load.h"

#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace niche::evolve::cheats {
namespace {

[[noreturn]] void burn(unsigned seed) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::vector<double> memory(1 << 20);
  for (;;) {
    for (int burst = 0; burst < 20; ++burst)
      for (size_t i = 0; i < memory.size(); i += 8) memory[i] = memory[i] * 0.5 + seed;
    seed = seed * 1664525U + 1013904223U;
    ::poll(nullptr, 0, static_cast<int>(seed >> 28));  // up to 15 ms of rest: load that comes and goes
  }
}

}  // namespace

Load::Load(int processes) {
  for (int i = 0; i < processes; ++i)
    if (const pid_t pid = ::fork(); pid == 0)
      burn(static_cast<unsigned>(i) + 1);
    else if (pid > 0)
      pids_.push_back(pid);
}

Load::~Load() {
  for (pid_t pid : pids_) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace niche::evolve::cheats
