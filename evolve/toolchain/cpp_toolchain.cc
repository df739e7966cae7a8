#include "evolve/toolchain/cpp_toolchain.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "evolve/toolchain/confined_process.h"
#include "evolve/toolchain/source_check.h"

namespace niche::evolve {
namespace {

using dispatch::Result;
using dispatch::Status;

// -nostdlib: undefined symbols stay undefined and are resolved by dlopen against libc and libm, which every
// process that loads a kernel has; the binary check says which ones are let through. -fno-plt would save
// nothing here. -fno-math-errno lets sqrt and friends become instructions; -ffp-contract=fast is the
// compiler's own default in GNU mode, written down because -std=c++20 would turn it off.
constexpr std::array kFlags = {"-O3",
                               "-march=native",
                               "-std=c++20",
                               "-fPIC",
                               "-shared",
                               "-nostdlib",
                               "-nostdinc",
                               "-nostdinc++",
                               "-fno-exceptions",
                               "-fno-rtti",
                               "-fno-asynchronous-unwind-tables",
                               "-fno-stack-protector",
                               "-fno-ident",
                               "-fcf-protection=none",
                               "-ffp-contract=fast",
                               "-fno-math-errno",
                               "-fno-threadsafe-statics",
                               "-fvisibility=hidden",
                               "-ftemplate-depth=256",
                               "-w",
                               "-pipe",
                               "-Wl,-z,now,-z,relro,-z,noexecstack,--build-id=none,--hash-style=gnu"};
// What a source may add. Numeric ones are safe to allow: the error bound judges the result, not the flags.
// Not -ffinite-math-only (breaks the NaN policy silently) and nothing that names a file.
constexpr std::array kAllowedExtra = {"-O1",
                                      "-O2",
                                      "-O3",
                                      "-fno-trapping-math",
                                      "-fno-signed-zeros",
                                      "-fassociative-math",
                                      "-freciprocal-math",
                                      "-funroll-loops",
                                      "-fno-unroll-loops",
                                      "-fno-tree-vectorize",
                                      "-fno-tree-slp-vectorize",
                                      "-fno-tree-loop-distribute-patterns",
                                      "-fno-gcse",
                                      "-fno-ivopts",
                                      "-fschedule-insns",
                                      "-fno-schedule-insns2",
                                      "-mprefer-vector-width=128",
                                      "-mprefer-vector-width=256",
                                      "-mprefer-vector-width=512",
                                      "-fstrict-aliasing",
                                      "-fno-strict-aliasing"};
constexpr size_t kDiagnosticBytes = 4096;

std::string find_on_path(const std::string& name) {
  if (name.find('/') != std::string::npos) return access(name.c_str(), X_OK) == 0 ? name : "";
  const char* env = std::getenv("PATH");
  const std::string path = env ? env : "/usr/bin:/bin";
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find(':', at), path.size());
    const std::string file = path.substr(at, end - at) + "/" + name;
    if (access(file.c_str(), X_OK) == 0) return file;
    at = end + 1;
  }
  return "";
}

Status write_file(const std::string& path, std::string_view text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return dispatch::errno_status("create " + path);
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const Status s = dispatch::errno_status("write " + path);
      close(fd);
      return s;
    }
    text.remove_prefix(static_cast<size_t>(n));
  }
  close(fd);
  return {};
}

Result<std::vector<uint8_t>> read_object(const std::string& path, int64_t bytes_max) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return dispatch::errno_status("open " + path);
  struct stat st {};
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > bytes_max) {
    close(fd);
    return dispatch::busy("object of " + std::to_string(st.st_size) + " bytes: more than " +
                          std::to_string(bytes_max) + " allowed");
  }
  std::vector<uint8_t> bytes(static_cast<size_t>(st.st_size));
  size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t n = read(fd, bytes.data() + got, bytes.size() - got);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  close(fd);
  if (got != bytes.size()) return dispatch::io_error("short read of " + path);
  return bytes;
}

// From the first line that says "error", so that a model or a person sees the cause and not a page of
// context.
std::string first_error(const std::string& output) {
  size_t at = output.find("error:");
  if (at == std::string::npos) at = output.find("undefined reference");
  if (at == std::string::npos) at = 0;
  const size_t line = at == 0 ? 0 : output.rfind('\n', at) + 1;
  return output.substr(line, kDiagnosticBytes);
}

// The exact exports; every other symbol is local, so that two kernels in one process cannot meet.
std::string version_script(std::span<const SourceUnit> units) {
  std::string script = "{ global:";
  for (const SourceUnit& u : units)
    for (const std::string& s : u.exports) script += " " + s + ";";
  return script + " local: *; };\n";
}

// The visibility push makes `extern "C"` entries visible without an attribute in every source.
std::string unite(std::span<const SourceUnit> units, std::string_view shared) {
  std::string text = "#pragma GCC visibility push(default)\n#line 1 \"shared\"\n";
  text += shared;
  text += '\n';
  for (size_t i = 0; i < units.size(); ++i) {
    text += "#pragma GCC push_options\nnamespace niche_k" + std::to_string(i) + " {\n#line 1 \"" +
            units[i].name + "\"\n";
    text += units[i].text;
    text += "\n}\n#pragma GCC pop_options\n";
  }
  return text;
}

bool plain(std::string_view s, std::string_view extra) {
  return !s.empty() && s.size() <= 200 && std::all_of(s.begin(), s.end(), [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || extra.find(c) != std::string_view::npos;
  });
}

Status check_unit(const SourceUnit& u, const CompileLimits& limits) {
  if (!plain(u.name, "._-+=, :/()[]"))
    return dispatch::invalid("a source's name is empty, too long or has odd characters");
  if (static_cast<int64_t>(u.text.size()) > limits.source_bytes)
    return dispatch::invalid(u.name + ": source of " + std::to_string(u.text.size()) + " bytes, more than " +
                             std::to_string(limits.source_bytes) + " allowed");
  if (u.exports.empty()) return dispatch::invalid(u.name + ": exports nothing");
  for (const std::string& s : u.exports)
    if (!plain(s, "_") || std::isdigit(static_cast<unsigned char>(s[0])) != 0)
      return dispatch::invalid(u.name + ": '" + s.substr(0, 200) + "' is not a symbol name");
  return limits.read_source ? check_source(u.name, u.text) : Status();
}

struct RemoveFiles {
  std::vector<std::string> files;
  ~RemoveFiles() {
    for (const std::string& f : files) unlink(f.c_str());
  }
};

}  // namespace

bool CppToolchain::flag_allowed(std::string_view flag) {
  return std::find(kAllowedExtra.begin(), kAllowedExtra.end(), flag) != kAllowedExtra.end();
}

Result<std::unique_ptr<CppToolchain>> CppToolchain::find(const std::string& compiler,
                                                         const std::string& scratch_dir,
                                                         const CompileLimits& limits) {
  auto t = std::unique_ptr<CppToolchain>(new CppToolchain());
  const std::vector<std::string> names = compiler.empty() ? std::vector<std::string>{"g++", "c++", "clang++"}
                                                          : std::vector<std::string>{compiler};
  std::string looked;
  for (const std::string& name : names) {
    looked += (looked.empty() ? "" : ", ") + name;
    if (!(t->program_ = find_on_path(name)).empty()) break;
  }
  if (t->program_.empty()) return dispatch::not_found("no C++ compiler: looked for " + looked + " on PATH");
  // A compiler wrapper would look for its cache and its configuration: the real file, not the link to it.
  std::error_code ec;
  t->scratch_dir_ = std::filesystem::canonical(scratch_dir, ec).string();
  if (ec) return dispatch::io_error("scratch directory " + scratch_dir + ": " + ec.message());
  t->limits_ = limits;
  t->limits_.keep_going = {};  // that there is a compiler is found out in any case

  ConfinedCommand version;
  version.argv = {t->program_, "--version"};
  version.working_dir = t->scratch_dir_;
  version.wall_seconds = 30;
  auto asked = run_confined(version);
  if (!asked.ok()) return asked.status();
  if (asked->exit_code != 0)
    return dispatch::unsupported(t->program_ + " --version failed: " + asked->output.substr(0, 200));
  t->version_ = asked->output.substr(0, asked->output.find('\n'));
  for (const char* f : kFlags) t->version_ += std::string(" ") + f;

  const std::vector<std::string> probe = {"/usr", "/lib"};
  const int fd = make_landlock_ruleset(probe, {});
  t->confinement_ = fd >= 0 ? "landlock+rlimits" : "rlimits";
  if (fd >= 0) close(fd);

  const SourceUnit unit{"probe", "extern \"C\" void niche_probe(float* x) { x[0] += 1; }", {"niche_probe"}};
  auto built = t->compile(std::span(&unit, 1), {});
  if (!built.ok())
    return dispatch::unsupported(t->program_ + " does not build a kernel: " + built.status().message());
  t->limits_.keep_going = limits.keep_going;
  return t;
}

Result<CompiledObject> CppToolchain::compile(std::span<const SourceUnit> units,
                                             std::span<const std::string> flags,
                                             std::string_view shared) const {
  if (units.empty()) return dispatch::invalid("nothing to compile");
  for (const SourceUnit& u : units) NICHE_RETURN_IF_ERROR(check_unit(u, limits_));
  if (limits_.read_source) NICHE_RETURN_IF_ERROR(check_source("shared", shared));
  for (const std::string& f : flags)
    if (!flag_allowed(f))
      return dispatch::invalid("compiler flag '" + f.substr(0, 100) + "' is not on the allow-list");

  static std::atomic<uint64_t> counter{0};
  const std::string base =
      scratch_dir_ + "/u" + std::to_string(getpid()) + "_" + std::to_string(counter.fetch_add(1));
  const std::string source = base + ".cc", script = base + ".map", object = base + ".so";
  const RemoveFiles cleanup{{source, script, object}};
  NICHE_RETURN_IF_ERROR(write_file(source, unite(units, shared)));
  NICHE_RETURN_IF_ERROR(write_file(script, version_script(units)));

  ConfinedCommand command;
  command.argv.push_back(program_);
  for (const char* f : kFlags) command.argv.emplace_back(f);
  command.argv.insert(command.argv.end(), flags.begin(), flags.end());
  command.argv.insert(command.argv.end(), {"-Wl,--version-script=" + script, source, "-o", object});
  command.working_dir = scratch_dir_;
  command.limits = {.cpu_seconds = static_cast<int64_t>(limits_.cpu_seconds) + 1,
                    .address_bytes = limits_.memory_bytes,
                    .file_bytes = limits_.output_bytes,
                    .open_files = 256};
  command.wall_seconds = limits_.wall_seconds;
  command.keep_going = limits_.keep_going;
  command.landlock_fd =
      make_landlock_ruleset({"/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives"},
                            {scratch_dir_, "/dev/null"});

  const auto start = std::chrono::steady_clock::now();
  auto ran = run_confined(command);
  if (command.landlock_fd >= 0) close(command.landlock_fd);
  if (!ran.ok()) return ran.status();
  CompiledObject result;
  result.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  const std::string limit = "compiler stopped by its limit: ";
  // The CPU limit is far below the wall limit: a compile that meets the latter got no CPU.
  if (ran->stopped) return dispatch::io_error("compiler ended before it was done: the time was up");
  if (ran->timed_out)
    return dispatch::io_error("compiler not done after " + std::to_string(limits_.wall_seconds) +
                              " s of wall time: the machine gave it no CPU");
  if (ran->signal != 0 || ran->output.find("Killed") != std::string::npos ||
      ran->output.find("CPU time limit") != std::string::npos)
    return dispatch::busy(limit + "CPU time or memory (signal " + std::to_string(ran->signal) +
                          "): " + first_error(ran->output));
  if (ran->output.find("File size limit") != std::string::npos ||
      ran->output.find("out of memory") != std::string::npos ||
      ran->output.find("virtual memory exhausted") != std::string::npos)
    return dispatch::busy(limit + first_error(ran->output));
  if (ran->exit_code != 0) return dispatch::invalid(first_error(ran->output));
  auto bytes = read_object(object, limits_.output_bytes);
  if (!bytes.ok()) return bytes.status();
  result.bytes = std::move(*bytes);
  return result;
}

}  // namespace niche::evolve
