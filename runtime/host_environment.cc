#include "runtime/host_environment.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "dispatch/devices/cpu/cpu_info.h"
#include "kernels_cache/sha256.h"

extern char** environ;

namespace niche {
namespace {

namespace fs = std::filesystem;
using dispatch::Result;
using kernels_cache::Environment;

// Extensions that generated code may use; a flag that only an operating system cares for must not make a
// cache foreign.
bool matters(const std::string& flag) {
  static constexpr std::string_view kPrefixes[] = {
      "avx",    "sse",   "ssse", "amx",   "fma", "bmi",   "f16c", "vpclmul", "gfni", "vaes",
      "popcnt", "lzcnt", "abm",  "movbe", "adx", "asimd", "sve",  "fphp",    "bf16", "i8mm"};
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](std::string_view p) { return flag.compare(0, p.size(), p) == 0; });
}

std::string first_line_of(const char* program) {
  int out[2];
  if (::pipe2(out, O_CLOEXEC) != 0) return {};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  char version[] = "--version";
  char* argv[] = {const_cast<char*>(program), version, nullptr};
  pid_t pid = 0;
  const int rc = ::posix_spawnp(&pid, program, &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(out[1]);
  std::string text;
  if (rc == 0) {
    char buffer[4096];
    for (ssize_t n; (n = ::read(out[0], buffer, sizeof buffer)) > 0 && text.size() < 65536;)
      text.append(buffer, static_cast<size_t>(n));
  }
  ::close(out[0]);
  int status = 0;
  if (rc != 0 || ::waitpid(pid, &status, 0) != pid || status != 0) return {};
  return text.substr(0, text.find('\n'));
}

}  // namespace

std::string compiler_identity() {
  for (const char* name : {"c++", "g++", "clang++"})
    if (std::string line = first_line_of(name); !line.empty()) return line;
  return {};
}

Result<Environment> host_environment(const std::vector<std::string>& libraries,
                                     const std::vector<std::string>& op_libraries, bool with_compiler) {
  Environment e;
  const dispatch::CpuInfo cpu = dispatch::CpuInfo::detect();
  e.device_class = "cpu";
  e.device_model = cpu.model_name + " (family " + std::to_string(cpu.family) + ", model " +
                   std::to_string(cpu.model) + ", stepping " + std::to_string(cpu.stepping) + ")";
  std::copy_if(cpu.flags.begin(), cpu.flags.end(), std::back_inserter(e.isa_flags), matters);
  e.libraries = libraries;
  for (const std::string& path : op_libraries) {
    std::ifstream in(path, std::ios::binary);
    if (!in) return dispatch::errno_status("operator library '" + path + "'");
    std::vector<uint8_t> bytes((std::istreambuf_iterator<char>(in)), {});
    e.op_libraries.push_back(fs::path(path).filename().string() + " " +
                             kernels_cache::to_hex(kernels_cache::sha256(bytes)));
  }
  if (with_compiler) e.compiler = compiler_identity();
  return e;
}

}  // namespace niche
