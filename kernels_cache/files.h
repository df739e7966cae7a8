// Files: the only way in which kernels_cache touches the disk, so that tests can make the disk fail at any
// step.
//
// Everything is relative to a held directory descriptor: renaming or replacing a parent while niche runs
// cannot redirect a read or a write. Thread-safety: implementations take calls from several threads. Cost:
// one system call each.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dispatch/base/status.h"

namespace niche::kernels_cache {

class Files {
 public:
  virtual ~Files() = default;

  // openat(2); O_CLOEXEC and O_NOFOLLOW are always added. kNotFound when there is no such file, kIo
  // otherwise.
  virtual dispatch::Result<int> open(int dir, const std::string& name, int flags, mode_t mode) = 0;
  virtual void close(int fd) = 0;
  virtual dispatch::Result<struct ::stat> stat(int fd) = 0;
  // Fine if it exists.
  virtual dispatch::Status make_directory(int dir, const std::string& name, mode_t mode) = 0;
  // May write less, as write(2).
  virtual dispatch::Result<size_t> write(int fd, const void* data, size_t bytes) = 0;
  // 0: end of file.
  virtual dispatch::Result<size_t> read_at(int fd, void* data, size_t bytes, int64_t offset) = 0;
  virtual dispatch::Status sync(int fd) = 0;  // fsync(2)
  virtual dispatch::Status rename(int dir, const std::string& from, const std::string& to) = 0;
  virtual dispatch::Status remove(int dir, const std::string& name) = 0;  // kNotFound when it is not there
  virtual dispatch::Result<std::vector<std::string>> list(int dir) = 0;   // without "." and ".."
  // flock(2), exclusive, without waiting. False: somebody else holds it.
  virtual dispatch::Result<bool> try_lock(int fd) = 0;
};

Files& posix_files();

// A descriptor that closes itself through the Files it came from.
class OwnedFd {
 public:
  OwnedFd() = default;
  OwnedFd(Files& files, int fd) : files_(&files), fd_(fd) {}
  OwnedFd(OwnedFd&& o) noexcept : files_(o.files_), fd_(o.release()) {}
  OwnedFd& operator=(OwnedFd&& o) noexcept {
    if (this != &o) {
      reset();
      files_ = o.files_;
      fd_ = o.release();
    }
    return *this;
  }
  ~OwnedFd() { reset(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void reset() {
    if (fd_ >= 0) files_->close(fd_);
    fd_ = -1;
  }

 private:
  Files* files_ = nullptr;
  int fd_ = -1;
};

}  // namespace niche::kernels_cache
