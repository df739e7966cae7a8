#include "dispatch/devices/cpu/cpu_info.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

namespace niche::dispatch {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string trimmed(const std::string& s) {
  const size_t a = s.find_first_not_of(" \t\n"), b = s.find_last_not_of(" \t\n");
  return a == std::string::npos ? "" : s.substr(a, b - a + 1);
}

// "32K", "1M", "32768"
int64_t parse_size(const std::string& text) {
  std::istringstream in(text);
  int64_t n = 0;
  char unit = 0;
  if (!(in >> n)) return 0;
  in >> unit;
  return unit == 'K' ? n << 10 : unit == 'M' ? n << 20 : unit == 'G' ? n << 30 : n;
}

void read_caches(CpuInfo* info) {
  for (int i = 0; i < 8; ++i) {
    const std::string dir = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/";
    const std::string level = trimmed(read_file(dir + "level"));
    if (level.empty()) break;
    if (trimmed(read_file(dir + "type")) == "Instruction") continue;
    const int64_t bytes = parse_size(trimmed(read_file(dir + "size")));
    if (level == "1") info->l1d_bytes = bytes;
    if (level == "2") info->l2_bytes = bytes;
    if (level == "3") info->l3_bytes = bytes;
  }
}

}  // namespace

bool CpuInfo::has(const std::string& flag) const {
  return std::binary_search(flags.begin(), flags.end(), flag);
}

std::string CpuInfo::identity() const {
  std::string s = model_name + " family " + std::to_string(family) + " model " + std::to_string(model) +
                  " stepping " + std::to_string(stepping) + ":";
  for (const std::string& f : flags) s += " " + f;
  return s;
}

CpuInfo CpuInfo::parse_cpuinfo(const std::string& text) {
  CpuInfo info;
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line) && !line.empty()) {  // an empty line ends the first processor
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = trimmed(line.substr(0, colon)), value = trimmed(line.substr(colon + 1));
    const auto number = [&] { return static_cast<int>(parse_size(value)); };
    if (key == "model name") info.model_name = value;
    if (key == "cpu family") info.family = number();
    if (key == "model") info.model = number();
    if (key == "stepping") info.stepping = number();
    if (key == "flags" || key == "Features") {
      std::istringstream words(value);
      info.flags.assign(std::istream_iterator<std::string>(words), {});
      std::sort(info.flags.begin(), info.flags.end());
    }
  }
  return info;
}

CpuInfo CpuInfo::detect() {
  CpuInfo info = parse_cpuinfo(read_file("/proc/cpuinfo"));
  read_caches(&info);
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) info.logical_cpus = std::max(1, CPU_COUNT(&set));
  return info;
}

}  // namespace niche::dispatch
