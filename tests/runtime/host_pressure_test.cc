#include "runtime/host_pressure.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace niche {
namespace {

namespace fs = std::filesystem;

// A machine's /proc and /sys, as files.
class FakeRoot {
 public:
  FakeRoot() {
    std::string pattern = testing::TempDir() + "niche_root_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~FakeRoot() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  void file(const std::string& name, const std::string& text) const {
    fs::create_directories((fs::path(path_) / name).parent_path());
    std::ofstream(fs::path(path_) / name) << text;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(HostPressure, TheTightestCgroupOfVersion2Counts) {
  const FakeRoot root;
  root.file("proc/self/cgroup", "0::/pod/server\n");
  root.file("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB\n");
  root.file("sys/fs/cgroup/pod/server/memory.max", "max\n");
  root.file("sys/fs/cgroup/pod/server/memory.current", "100\n");
  root.file("sys/fs/cgroup/pod/memory.max", "1000\n");
  root.file("sys/fs/cgroup/pod/memory.current", "900\n");
  root.file("sys/fs/cgroup/pod/memory.stat", "anon 500\ninactive_file 200\n");
  root.file("sys/fs/cgroup/pod/cpu.stat", "usage_usec 5\nnr_periods 10\nnr_throttled 7\n");
  HostPressure pressure(root.path());
  const PressureSample s = pressure.sample({});
  EXPECT_NEAR(s.memory_share, 0.7, 1e-9);
  EXPECT_EQ(s.throttled, 7);
}

TEST(HostPressure, Version1AndTheMachineItself) {
  const FakeRoot root;
  root.file("proc/self/cgroup", "5:memory:/a\n4:cpu,cpuacct:/a\n3:cpuset:/a\n");
  root.file("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 250 kB\n");
  root.file("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
  root.file("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "100\n");
  root.file("sys/fs/cgroup/cpu,cpuacct/a/cpu.stat", "nr_periods 1\nnr_throttled 3\n");
  HostPressure pressure(root.path());
  const PressureSample s = pressure.sample({});
  EXPECT_NEAR(s.memory_share, 0.75, 1e-9) << "no limit in the group: the machine's";
  EXPECT_EQ(s.throttled, 3);
}

TEST(HostPressure, UnknownIsSaidAndPausesNothing) {
  const FakeRoot root;
  HostPressure pressure(root.path());
  const PressureSample s = pressure.sample({});
  EXPECT_EQ(s.memory_share, -1);
  EXPECT_EQ(s.throttled, -1);
}

TEST(HostPressure, ATreeOfProcessesIsSummedWithWhatItWaitedFor) {
  const FakeRoot root;
  const auto stat = [&](int pid, int parent, const std::string& name, int user, int system, int waited) {
    root.file("proc/" + std::to_string(pid) + "/stat",
              std::to_string(pid) + " (" + name + ") S " + std::to_string(parent) + " 1 1 0 -1 0 0 0 0 0 " +
                  std::to_string(user) + " " + std::to_string(system) + " " + std::to_string(waited) +
                  " 0 20 0 1 0 0 0 0\n");
  };
  const int tick = static_cast<int>(sysconf(_SC_CLK_TCK));
  stat(10, 1, "worker", 2 * tick, tick, 4 * tick);
  stat(11, 10, "c++ (a) S 1", tick, 0, 0);
  stat(12, 11, "cc1plus", tick, 0, 0);
  stat(20, 1, "other", 100 * tick, 0, 0);
  HostPressure pressure(root.path());
  EXPECT_DOUBLE_EQ(pressure.sample({10}).children_cpu_seconds, 9);
  EXPECT_DOUBLE_EQ(pressure.sample({}).children_cpu_seconds, 0);
}

TEST(HostPressure, ThisMachineIsRead) {
  HostPressure pressure;
  const PressureSample s = pressure.sample({static_cast<int>(getpid())});
  EXPECT_GT(s.memory_share, 0);
  EXPECT_LE(s.memory_share, 1);
  EXPECT_GE(s.children_cpu_seconds, 0);
}

}  // namespace
}  // namespace niche
