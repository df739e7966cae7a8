#include "kernels_cache/artefact.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "kernels_cache/sha256.h"

namespace niche::kernels_cache {
namespace {

using dispatch::errno_status;
using dispatch::Result;
using dispatch::Status;

Status write_all(int fd, const uint8_t* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = ::write(fd, data, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return errno_status("write artefact");
    data += n;
    bytes -= static_cast<size_t>(n);
  }
  return {};
}

int unnamed_file(bool* sealable) {
  const int fd = ::memfd_create("niche-kernel", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  *sealable = fd >= 0;
  if (fd >= 0) return fd;
  const char* tmp = std::getenv("TMPDIR");
  return ::open(tmp != nullptr ? tmp : "/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600);
}

}  // namespace

Artefact::~Artefact() {
  if (fd_ >= 0) ::close(fd_);
}

std::string Artefact::load_path() const {
  static std::atomic<uint64_t> next{1};
  // The number, written in bits as "/" and "/." components, which the kernel drops and glibc does not.
  std::string path = "/proc/self/fd";
  for (uint64_t n = next.fetch_add(1, std::memory_order_relaxed); n != 0; n >>= 1)
    path += (n & 1) != 0 ? "/." : "/";
  return path + "/" + std::to_string(fd_);
}

Result<Artefact> open_artefact(const KernelRecord& record) {
  const std::string got = to_hex(sha256(record.artefact));
  if (got != record.artefact_sha256)
    return dispatch::corrupt("kernel '" + record.name + "': artefact has SHA-256 " + got +
                             ", its record names " + record.artefact_sha256);
  bool sealable = false;
  Artefact artefact(unnamed_file(&sealable));
  if (artefact.fd() < 0) return errno_status("kernel '" + record.name + "': memory file");
  NICHE_RETURN_IF_ERROR(write_all(artefact.fd(), record.artefact.data(), record.artefact.size()));
  if (sealable &&
      ::fcntl(artefact.fd(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0)
    return errno_status("kernel '" + record.name + "': seal memory file");
  return artefact;
}

}  // namespace niche::kernels_cache
