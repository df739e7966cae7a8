#include "evolve/probe/shared_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace niche::evolve::probe {

dispatch::Result<std::unique_ptr<SharedMemory>> SharedMemory::make(int64_t bytes) {
  const int fd = ::memfd_create("niche-probe", MFD_CLOEXEC);
  if (fd < 0) return dispatch::errno_status("probe: memfd_create");
  if (::ftruncate(fd, bytes) != 0) {
    const auto s = dispatch::errno_status("probe: shared memory of " + std::to_string(bytes) + " bytes");
    ::close(fd);
    return s;
  }
  return open(fd);
}

dispatch::Result<std::unique_ptr<SharedMemory>> SharedMemory::open(int fd) {
  struct stat st {};
  auto m = std::unique_ptr<SharedMemory>(new SharedMemory());
  m->fd_ = fd;
  if (::fstat(fd, &st) != 0 || st.st_size <= 0) return dispatch::errno_status("probe: shared memory");
  void* p = ::mmap(nullptr, static_cast<size_t>(st.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) return dispatch::errno_status("probe: map shared memory");
  m->base_ = static_cast<uint8_t*>(p);
  m->bytes_ = st.st_size;
  return m;
}

SharedMemory::~SharedMemory() {
  if (base_ != nullptr) ::munmap(base_, static_cast<size_t>(bytes_));
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace niche::evolve::probe
