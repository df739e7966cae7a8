#include "dispatch/devices/cpu/cpu_module.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

namespace niche::dispatch {
namespace {

std::atomic<int64_t> modules_loaded{0};

// A path to `fd` that no earlier load had. dlopen takes two equal path texts for the same library, so a
// reused descriptor number would give the code that was loaded through it before. Each bit of a running
// number becomes "/" or "/.".
std::string unique_path(int fd) {
  static std::atomic<uint32_t> loads{0};
  uint32_t n = loads.fetch_add(1, std::memory_order_relaxed);
  std::string path = "/proc/self/fd";
  for (; n != 0; n >>= 1) path += (n & 1) ? "/." : "/";
  return path + "/" + std::to_string(fd);
}

Status write_all(int fd, std::span<const uint8_t> bytes, const std::string& name) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return errno_status("module " + name + ": write to memfd");
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const CpuModule>> CpuModule::load_fd(int fd, const std::string& name) {
  dlerror();
  void* handle = dlopen(unique_path(fd).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return corrupt("module " + name + ": " + (why != nullptr ? why : "dlopen failed"));
  }
  modules_loaded.fetch_add(1, std::memory_order_relaxed);
  return std::shared_ptr<const CpuModule>(new CpuModule(handle, name));
}

Result<std::shared_ptr<const CpuModule>> CpuModule::load_bytes(std::span<const uint8_t> bytes,
                                                               const std::string& name) {
  const int fd = memfd_create("niche-kernel", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return errno_status("module " + name + ": memfd_create");
  Status s = write_all(fd, bytes, name);
  if (s.ok() && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0)
    s = errno_status("module " + name + ": seal memfd");
  Result<std::shared_ptr<const CpuModule>> module = s.ok() ? load_fd(fd, name) : s;
  close(fd);  // the mapping stays
  return module;
}

Result<void*> CpuModule::symbol(const std::string& symbol) const {
  void* p = dlsym(handle_, symbol.c_str());
  if (p == nullptr) return not_found("module " + name_ + ": no symbol '" + symbol + "'");
  return p;
}

int64_t CpuModule::resident_modules() { return modules_loaded.load(std::memory_order_relaxed); }

}  // namespace niche::dispatch
