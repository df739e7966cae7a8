#include "evolve/store/process_mark.h"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>

namespace niche::evolve::store {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string boot_id() { return first_line("/proc/sys/kernel/random/boot_id"); }

std::string pid_namespace() {
  char text[64] = {};
  const ssize_t n = readlink("/proc/self/ns/pid", text, sizeof text - 1);
  return n > 0 ? std::string(text, static_cast<size_t>(n)) : "-";
}

// Field 22 of /proc/<pid>/stat; the second, a name in brackets, may hold anything. Empty: no such process, or one that
// only waits to be reaped.
std::string start_time(const std::string& pid) {
  const std::string stat = first_line("/proc/" + pid + "/stat");
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return "";
  std::istringstream in(stat.substr(name_end + 1));
  const std::istream_iterator<std::string> begin(in), end;
  constexpr int kState = 0, kStart = 19;  // counted from the third field
  int i = 0;
  for (auto it = begin; it != end; ++it, ++i) {
    if (i == kState && (*it == "Z" || *it == "X")) return "";
    if (i == kStart) return *it;
  }
  return "";
}

}  // namespace

std::string own_process_mark() {
  const std::string pid = std::to_string(getpid());
  return pid + ' ' + start_time(pid) + ' ' + boot_id() + ' ' + pid_namespace();
}

Liveness liveness(std::string_view mark) {
  std::istringstream in{std::string(mark)};
  std::string pid, start, boot, space;
  if (!(in >> pid >> start >> boot >> space) || pid.find_first_not_of("0123456789") != std::string::npos)
    return Liveness::kUnknown;
  if (boot != boot_id()) return Liveness::kGone;
  if (space != pid_namespace()) return Liveness::kUnknown;
  return start_time(pid) == start ? Liveness::kRuns : Liveness::kGone;
}

}  // namespace niche::evolve::store
