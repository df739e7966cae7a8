#include "kernels_cache/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

namespace niche::kernels_cache {
namespace {

using dispatch::errno_status;
using dispatch::not_found;
using dispatch::Result;
using dispatch::Status;

Status failed(const char* what, const std::string& name) {
  if (errno == ENOENT) return not_found(std::string(what) + " " + name + ": no such file");
  if (errno == ELOOP) return dispatch::unsupported(std::string(what) + " " + name + ": a symbolic link");
  return errno_status(std::string(what) + " " + name);
}

class PosixFiles final : public Files {
 public:
  Result<int> open(int dir, const std::string& name, int flags, mode_t mode) override {
    int fd;
    do {
      fd = ::openat(dir, name.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, mode);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) return failed("open", name);
    return fd;
  }

  void close(int fd) override { ::close(fd); }

  Result<struct ::stat> stat(int fd) override {
    struct ::stat st;
    if (::fstat(fd, &st) != 0) return errno_status("fstat");
    return st;
  }

  Status make_directory(int dir, const std::string& name, mode_t mode) override {
    if (::mkdirat(dir, name.c_str(), mode) != 0 && errno != EEXIST) return failed("mkdir", name);
    return {};
  }

  Result<size_t> write(int fd, const void* data, size_t bytes) override {
    ssize_t n;
    do {
      n = ::write(fd, data, bytes);
    } while (n < 0 && errno == EINTR);
    if (n < 0) return errno_status("write");
    return static_cast<size_t>(n);
  }

  Result<size_t> read_at(int fd, void* data, size_t bytes, int64_t offset) override {
    ssize_t n;
    do {
      n = ::pread(fd, data, bytes, offset);
    } while (n < 0 && errno == EINTR);
    if (n < 0) return errno_status("read");
    return static_cast<size_t>(n);
  }

  Status sync(int fd) override {
    // Not repeated on failure: after a failed fsync the kernel may have dropped the pages, and a second call
    // succeeds without having written them.
    if (::fsync(fd) != 0) return errno_status("fsync");
    return {};
  }

  Status rename(int dir, const std::string& from, const std::string& to) override {
    if (::renameat(dir, from.c_str(), dir, to.c_str()) != 0) return failed("rename", from + " to " + to);
    return {};
  }

  Status remove(int dir, const std::string& name) override {
    if (::unlinkat(dir, name.c_str(), 0) != 0) return failed("unlink", name);
    return {};
  }

  Result<std::vector<std::string>> list(int dir) override {
    const int fd = ::openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno_status("open directory");
    DIR* d = ::fdopendir(fd);
    if (d == nullptr) {
      ::close(fd);
      return errno_status("open directory");
    }
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* e = ::readdir(d)) {
      const std::string_view name = e->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
    const int error = errno;
    ::closedir(d);
    errno = error;
    if (error != 0) return errno_status("read directory");
    return names;
  }

  Result<bool> try_lock(int fd) override {
    int rc;
    do {
      rc = ::flock(fd, LOCK_EX | LOCK_NB);
    } while (rc != 0 && errno == EINTR);
    if (rc == 0) return true;
    if (errno == EWOULDBLOCK) return false;
    return errno_status("flock");
  }
};

}  // namespace

Files& posix_files() {
  static PosixFiles files;
  return files;
}

}  // namespace niche::kernels_cache
