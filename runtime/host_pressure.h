// HostPressure: is now a good time to tune? Memory, throttling by the cgroup, and CPU time of the sessions,
// read from /proc and /sys.
//
// Roles: the control thread samples; Planner decides on the values. Thread-safety: one owner thread.
// Cost: a sample reads some ten small files, 100–200 µs; at most a few a second.
// Degrades: where a file is missing (no cgroup, another layout) its value says "unknown" and never pauses
// anything.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace niche {

struct PressureSample {
  double memory_share = -1;         // used / limit of the tightest cgroup, else of the machine; -1: unknown
  int64_t throttled = -1;           // nr_throttled, all periods so far; -1: unknown
  double children_cpu_seconds = 0;  // of the process trees asked for so far
};

class HostPressure {
 public:
  // `root` is "/" but in tests.
  explicit HostPressure(std::string root = "/");
  // `trees`: process ids whose descendants count as sessions.
  PressureSample sample(const std::vector<int>& trees);

 private:
  std::string read(const std::string& path) const;
  double memory_share() const;
  int64_t throttled() const;

  const std::string root_;
  std::vector<std::string> cgroups_;  // directories from ours up to the root, v2; or v1's cpu and memory ones
};

}  // namespace niche
