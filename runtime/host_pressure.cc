#include "runtime/host_pressure.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <unordered_map>

namespace niche {
namespace {

namespace fs = std::filesystem;

// Value after "key " at a line's start; -1: not there.
int64_t field(const std::string& text, const std::string& key) {
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    if (line.compare(0, key.size(), key) == 0 && line.size() > key.size() &&
        (line[key.size()] == ' ' || line[key.size()] == ':'))
      return std::atoll(line.c_str() + key.size() + 1);
  return -1;
}

int64_t number(const std::string& text) {
  return text.empty() || text[0] < '0' || text[0] > '9' ? -1 : std::atoll(text.c_str());
}

struct Process {
  int parent = 0;
  double cpu_seconds = 0;  // itself and the children it has waited for
};

// /proc/<pid>/stat; false where the process is gone.
bool parse_stat(const std::string& text, Process* p) {
  const size_t end = text.rfind(')');  // a name may hold anything
  if (end == std::string::npos) return false;
  char state = 0;
  long long ticks[4] = {};
  const int n =
      std::sscanf(text.c_str() + end + 1, " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lld %lld %lld %lld",
                  &state, &p->parent, &ticks[0], &ticks[1], &ticks[2], &ticks[3]);
  if (n != 6) return false;
  p->cpu_seconds = static_cast<double>(ticks[0] + ticks[1] + ticks[2] + ticks[3]) /
                   static_cast<double>(sysconf(_SC_CLK_TCK));
  return true;
}

}  // namespace

HostPressure::HostPressure(std::string root) : root_(std::move(root)) {
  // "0::/a/b" (v2) or "4:memory:/a/b" (v1); inside a container often just "/".
  std::istringstream in(read("proc/self/cgroup"));
  for (std::string line; std::getline(in, line);) {
    const size_t a = line.find(':'), b = line.find(':', a + 1);
    if (a == std::string::npos || b == std::string::npos) continue;
    const std::string controllers = line.substr(a + 1, b - a - 1);
    std::string base = "sys/fs/cgroup";
    if (!controllers.empty()) {
      const bool ours =
          controllers.find("memory") != std::string::npos || controllers.find("cpu") != std::string::npos;
      if (!ours || controllers.find("cpuset") != std::string::npos) continue;
      base += "/" + controllers;
    }
    for (fs::path at = line.substr(b + 1);; at = at.parent_path()) {
      cgroups_.push_back(base + (at == "/" ? "" : at.string()));
      if (at == "/" || at.empty()) break;
    }
  }
}

std::string HostPressure::read(const std::string& path) const {
  std::ifstream in(fs::path(root_) / path);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  return text.str();
}

double HostPressure::memory_share() const {
  double share = -1;
  for (const std::string& dir : cgroups_) {
    int64_t limit = number(read(dir + "/memory.max")), used = number(read(dir + "/memory.current"));
    if (limit < 0)
      limit = number(read(dir + "/memory.limit_in_bytes")),
      used = number(read(dir + "/memory.usage_in_bytes"));
    if (limit <= 0 || used < 0 || limit > (int64_t{1} << 60)) continue;  // "no limit" of v1 is near 2^63
    // The page cache counts as used, and the kernel gives it back first.
    const int64_t file = std::max<int64_t>(field(read(dir + "/memory.stat"), "inactive_file"), 0);
    share = std::max(share, static_cast<double>(used - std::min(file, used)) / static_cast<double>(limit));
  }
  const std::string machine = read("proc/meminfo");
  const int64_t total = field(machine, "MemTotal"), available = field(machine, "MemAvailable");
  if (total > 0 && available >= 0)
    share = std::max(share, 1 - static_cast<double>(available) / static_cast<double>(total));
  return share;
}

int64_t HostPressure::throttled() const {
  int64_t sum = -1;
  for (const std::string& dir : cgroups_) {
    const int64_t n = field(read(dir + "/cpu.stat"), "nr_throttled");
    if (n >= 0) sum = std::max<int64_t>(sum, 0) + n;
  }
  return sum;
}

PressureSample HostPressure::sample(const std::vector<int>& trees) {
  PressureSample s;
  s.memory_share = memory_share();
  s.throttled = throttled();
  if (trees.empty()) return s;
  std::unordered_map<int, Process> all;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(fs::path(root_) / "proc", ignored)) {
    const int64_t pid = number(entry.path().filename().string());
    Process p;
    if (pid > 0 && parse_stat(read("proc/" + std::to_string(pid) + "/stat"), &p))
      all[static_cast<int>(pid)] = p;
  }
  for (const auto& [pid, p] : all) {
    int at = pid;
    for (int depth = 0; depth < 16 && at > 1; ++depth) {
      if (std::find(trees.begin(), trees.end(), at) != trees.end()) {
        s.children_cpu_seconds += p.cpu_seconds;
        break;
      }
      const auto up = all.find(at);
      at = up == all.end() ? 0 : up->second.parent;
    }
  }
  return s;
}

}  // namespace niche
