#include "evolve/worker/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace niche::evolve::worker {
namespace {

constexpr int kRounds = 4;

// State and session of a process, from /proc/<pid>/stat; the name in parentheses may hold anything.
bool read_stat(pid_t pid, char* state, pid_t* session) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  std::array<char, 1024> text{};
  const ssize_t n = ::read(fd, text.data(), text.size() - 1);
  ::close(fd);
  if (n <= 0) return false;
  const char* after_name = std::strrchr(text.data(), ')');
  int ppid = 0, group = 0, sid = 0;
  if (after_name == nullptr || std::sscanf(after_name + 1, " %c %d %d %d", state, &ppid, &group, &sid) != 4)
    return false;
  *session = sid;
  return true;
}

}  // namespace

std::vector<pid_t> session_members(pid_t session) {
  std::vector<pid_t> out;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir("/proc"), ::closedir);
  if (dir == nullptr) return out;
  while (const dirent* entry = ::readdir(dir.get())) {
    const int pid = std::atoi(entry->d_name);
    char state = 0;
    pid_t sid = 0;
    if (pid > 0 && read_stat(pid, &state, &sid) && sid == session && state != 'Z' && state != 'X')
      out.push_back(pid);
  }
  return out;
}

int signal_session(pid_t session, int signal) {
  std::vector<pid_t> done;
  for (int round = 0; round < kRounds; ++round) {
    bool fresh = false;
    for (pid_t pid : session_members(session)) {
      if (std::find(done.begin(), done.end(), pid) != done.end()) continue;
      ::kill(pid, signal);
      done.push_back(pid);
      fresh = true;
    }
    if (!fresh) break;
  }
  return static_cast<int>(done.size());
}

}  // namespace niche::evolve::worker
